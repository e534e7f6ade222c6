"""What is known of the operators that a model's step is made of (the paper's Table I): values and verdicts.

Two properties are measured for each kernel, on the machine at hand, at the model's own shapes:

- batch-invariant: a row has the same bits alone and in batches of every size;
- position-invariant: at a fixed number of rows, a row has the same bits in every place, whatever the other
  rows hold. The determinism contract rests on it.

Which kernels the contract uses, and which of the properties it needs of them, depends on the prefill mode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from corun_pd.errors import ConfigError

__all__ = ["ModelDims", "Need", "OperatorResult", "failures"]


class Need(StrEnum):
    """The property that the contract needs of a kernel; NOTHING when its steps never run it."""

    NOTHING = ""
    POSITION = "position"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """One kernel of an operator at one shape. Rows are what a batch is counted in.

    `batch_differs` are sizes of `batch_sizes` at which a row differs from itself alone; `position_differs`
    are row counts of `position_shapes` at which a row differs from itself in another place or in other
    company. `latency_s` is by row count. `error` says why the kernel could not be run.
    """

    operator: str
    kernel: str
    shape: str
    need: Need
    batch_sizes: tuple[int, ...] = ()
    batch_differs: tuple[int, ...] = ()
    position_shapes: tuple[int, ...] = ()
    position_differs: tuple[int, ...] = ()
    latency_s: Mapping[int, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def is_batch_invariant(self) -> bool | None:
        """None when it was not measured."""
        return not self.batch_differs if self.batch_sizes else None

    @property
    def is_position_invariant(self) -> bool | None:
        """None when it was not measured."""
        return not self.position_differs if self.position_shapes else None

    @property
    def fault(self) -> str | None:
        """Why the contract cannot rest on this kernel; None when it can, or need not."""
        if self.need is Need.NOTHING:
            return None
        name = f"{self.operator} ({self.kernel}, {self.shape})"
        if self.error is not None:
            return f"{name} could not be run: {self.error}"
        if self.need is Need.BATCH and not self.is_batch_invariant:
            return f"{name} is not batch-invariant at {_rows(self.batch_differs)}"
        if not self.is_position_invariant:
            return f"{name} is not position-invariant at {_rows(self.position_differs)}"
        return None


def failures(results: Sequence[OperatorResult]) -> list[str]:
    """The faults of all kernels that the contract uses."""
    return [fault for result in results if (fault := result.fault) is not None]


def _rows(counts: Sequence[int]) -> str:
    return ", ".join(f"{count} rows" for count in counts) if counts else "no row count: it was not measured"


@dataclass(frozen=True, slots=True)
class ModelDims:
    """A model's widths, from its config.json; what a model does not have is 0."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    dtype: str
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any], place: str) -> "ModelDims":
        """From a parsed config.json. Raises ConfigError naming `place` and what is missing."""
        values = {**config, **(config.get("text_config") or {})}

        def number(*names: str, default: int | None = None) -> int:
            for name in names:
                if isinstance(values.get(name), int):
                    return int(values[name])
            if default is None:
                raise ConfigError(f"{place}: no {names[0]}, which the operators' shapes need")
            return default

        hidden, heads = number("hidden_size"), number("num_attention_heads")
        return cls(
            hidden=hidden,
            intermediate=number("intermediate_size", default=0),
            heads=heads,
            kv_heads=number("num_key_value_heads", default=heads),
            head_dim=number("head_dim", default=hidden // heads),
            vocabulary=number("vocab_size"),
            dtype=str(values.get("torch_dtype") or values.get("dtype") or "bfloat16"),
            experts=number("num_experts", "n_routed_experts", "num_local_experts", default=0),
            experts_per_token=number("num_experts_per_tok", default=0),
            expert_intermediate=number("moe_intermediate_size", "intermediate_size", default=0),
            q_lora_rank=number("q_lora_rank", default=0),
            kv_lora_rank=number("kv_lora_rank", default=0),
            qk_nope_head_dim=number("qk_nope_head_dim", default=0),
            qk_rope_head_dim=number("qk_rope_head_dim", default=0),
            v_head_dim=number("v_head_dim", default=0),
        )

    @property
    def is_mla(self) -> bool:
        """Whether attention is latent."""
        return self.kv_lora_rank > 0

    def matmuls(self, tensor_parallel_size: int = 1) -> dict[str, tuple[int, int]]:
        """(input width, output width) of each weight matrix, of one tensor-parallel rank, by name."""
        tp = tensor_parallel_size
        heads, kv_heads = self.heads // tp, max(1, self.kv_heads // tp)
        found: dict[str, tuple[int, int]] = {}
        if self.is_mla:
            latent = self.kv_lora_rank + self.qk_rope_head_dim
            query = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
            found["qkv_a"] = (self.hidden, self.q_lora_rank + latent)
            found["q_b"] = (self.q_lora_rank or self.hidden, query)
            found["kv_b"] = (self.kv_lora_rank, heads * (self.qk_nope_head_dim + self.v_head_dim))
            found["o"] = (heads * self.v_head_dim, self.hidden)
        else:
            found["qkv"] = (self.hidden, (heads + 2 * kv_heads) * self.head_dim)
            found["o"] = (heads * self.head_dim, self.hidden)
        if self.intermediate:
            found["gate_up"] = (self.hidden, 2 * self.intermediate // tp)
            found["down"] = (self.intermediate // tp, self.hidden)
        if self.experts:
            found["router"] = (self.hidden, self.experts)
        found["lm_head"] = (self.hidden, self.vocabulary // tp)
        return found
