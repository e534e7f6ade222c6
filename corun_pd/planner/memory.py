"""Where a device's memory goes: weights, activations, and KV in what is left; or why that is too little."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from corun_pd.errors import SetupError
from corun_pd.planner.model_shape import ModelShape

__all__ = ["KV_MARGIN", "Infeasible", "MemoryPlan", "confirm_blocks", "plan_memory"]

#: What CUDA, NCCL and captured graphs take beside the tensors.
RUNTIME_BYTES: Final = 2 << 30

#: By how much an engine's KV pool may differ from its plan, as a share: activations are an estimate.
KV_MARGIN: Final = 0.1


class Infeasible(SetupError):
    """A plan cannot be met. `limit` names what binds."""

    reason: ClassVar[str] = "INFEASIBLE"

    def __init__(self, limit: str, problem: str) -> None:
        super().__init__(f"cannot be met because of {limit}: {problem}", limit=limit)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on each device of an instance; `kv_blocks` are of the whole instance."""

    device_bytes: int
    usable_bytes: int
    weights_bytes: int
    activation_bytes: int
    runtime_bytes: int
    kv_bytes: int
    kv_blocks: int
    block_tokens: int

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_tokens

    def lines(self) -> list[str]:
        """The plan in lines of text."""
        rows = {
            "device": self.device_bytes,
            "usable": self.usable_bytes,
            "weights": self.weights_bytes,
            "activations (estimate)": self.activation_bytes,
            "runtime (allowance)": self.runtime_bytes,
            f"KV cache ({self.kv_blocks} blocks of {self.block_tokens} tokens)": self.kv_bytes,
        }
        return [f"{name}: {count} bytes ({count / (1 << 30):.2f} GiB)" for name, count in rows.items()]


def plan_memory(
    shape: ModelShape,
    *,
    device_bytes: int,
    memory_ratio: float,
    weight_bytes: int,
    kv_element_bytes: int,
    activation_element_bytes: int = 2,
    slots: int,
    step_tokens: int,
    max_model_tokens: int,
    block_tokens: int,
    tensor_parallel_size: int = 1,
) -> MemoryPlan:
    """What is left for KV. `weight_bytes` and the like are per element; TP splits weights and KV heads.

    Raises Infeasible when weights and activations fill the device, or a sequence of `max_model_tokens`
    does not fit what is left; ValueError for sizes that are not positive.
    """
    sizes = (device_bytes, weight_bytes, kv_element_bytes, slots, step_tokens, max_model_tokens, block_tokens)
    if min(*sizes, tensor_parallel_size) <= 0 or not 0 < memory_ratio <= 1:
        raise ValueError(f"sizes must be positive and the ratio in (0, 1]: {sizes}, {memory_ratio}")
    weights = -(-shape.parameters * weight_bytes // tensor_parallel_size)
    activations = shape.activation_bytes(step_tokens, slots, activation_element_bytes)
    usable = int(device_bytes * memory_ratio)
    if weights > usable:
        raise Infeasible("weights", f"{weights} bytes a device, {usable} of {device_bytes} are usable")
    kv_bytes = usable - weights - activations - RUNTIME_BYTES
    if kv_bytes <= 0:
        raise Infeasible(
            "activations",
            f"{activations} bytes and {RUNTIME_BYTES} for the runtime beside {weights} of weights; "
            f"{usable} are usable",
        )
    # A KV head that cannot be split further is held by several devices.
    split = min(tensor_parallel_size, shape.kv_heads)
    block_bytes = block_tokens * shape.kv_bytes_per_token(kv_element_bytes) // split
    blocks = kv_bytes // block_bytes
    if blocks * block_tokens < max_model_tokens:
        raise Infeasible(
            "the KV cache",
            f"one sequence of {max_model_tokens} tokens needs {-(-max_model_tokens // block_tokens)} blocks; "
            f"{blocks} fit in {kv_bytes} bytes",
        )
    return MemoryPlan(
        device_bytes, usable, weights, activations, RUNTIME_BYTES, kv_bytes, blocks, block_tokens
    )


def confirm_blocks(planned: int, started: Mapping[str, int], margin: float = KV_MARGIN) -> str:
    """Holds the KV blocks of started instances, by name, against the plan; says so when they are within it.

    Raises Infeasible that names the instance with the fewest when that is below the plan by more than
    `margin`, a share: requests that the plan runs at once would queue there.
    """
    name, fewest = min(started.items(), key=lambda pair: pair[1])
    most = max(started.values())
    if fewest < planned * (1 - margin):
        raise Infeasible(
            "the KV cache",
            f"{name} started with {fewest} blocks, {1 - fewest / planned:.0%} below the {planned} planned; "
            f"{margin:.0%} is allowed",
        )
    return f"confirmed: {len(started)} instances have {fewest} to {most} KV blocks, {planned} are planned"
