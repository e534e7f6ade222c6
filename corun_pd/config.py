"""Configuration: frozen, composed, checked when it is made.

A cluster file is YAML:

    model: models/qwen3-wide
    engine: {slots: 8, prefill: {mode: isolated, chunk_tokens: 64}}
    router: {port: 50051}
    instances:
      - {role: prefill}
      - {role: decode, count: 2}

Unknown keys and bad values are refused with the place and the value. Names carry their units.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from corun_pd.core import Role
from corun_pd.errors import ConfigError

__all__ = [
    "Ablation",
    "ClusterConfig",
    "EngineConfig",
    "FakeConfig",
    "InstanceConfig",
    "PrefillConfig",
    "RayConfig",
    "RouterConfig",
    "load_cluster",
]

Port = Annotated[int, Field(ge=0, le=65535)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Model(BaseModel):
    """The base: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Ablation(StrEnum):
    """A mechanism to switch off, so that a test can show that it is needed. Part of the contract."""

    FIXED_SHAPE_DECODE = "fixed_shape_decode"
    NO_SPLIT_KV = "no_split_kv"
    SAMPLER_PADDING = "sampler_padding"
    REQUEST_RNG = "request_rng"
    PREFIX_CACHE_BORDERS = "prefix_cache_borders"


class PrefillConfig(Model):
    """How prompts are computed.

    `chunk_tokens` is C of `isolated`, T of `packed` and the most tokens of a step of `hybrid`, which runs
    batch-invariant kernels (CUDA). `batch-invariant` is the standard role's baseline.
    """

    mode: Literal["isolated", "packed", "hybrid", "batch-invariant"] = "isolated"
    chunk_tokens: Annotated[int, Field(ge=3)] = 2048


class FakeConfig(Model):
    """Timings of the fake engine, in seconds. Zero is as fast as the event loop turns."""

    prefill_s_per_token: Annotated[float, Field(ge=0)] = 0.0
    decode_step_s: Annotated[float, Field(ge=0)] = 0.0
    transfer_s: Annotated[float, Field(ge=0)] = 0.0
    vocabulary: PositiveInt = 512


class EngineConfig(Model):
    """The engine. All but `kind`, `kv_cache_bytes` and `fake` is the same in the whole fleet.

    `slots` is N, the decode shape. `max_model_tokens` None takes the model's own limit.
    `kv_cache_bytes` None lets the engine size its pool from the memory at hand.
    `lease_s` is how long a handoff that nobody pulls keeps its blocks. `weights: random` needs no
    weights, only a config.json: it is for benchmarks of a model's shape. `check_operators` runs the kernels
    that the contract uses before the start, which fails when one of them is not invariant. `prefix_cache`
    keeps the KV of a prompt's whole chunks for prompts that begin with the same tokens; no bit changes.
    """

    kind: Literal["vllm", "fake"] = "vllm"
    weights: Literal["files", "random"] = "files"
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    slots: PositiveInt = 8
    prefill: PrefillConfig = PrefillConfig()
    max_model_tokens: PositiveInt | None = None
    block_tokens: PositiveInt = 32
    kv_cache_bytes: PositiveInt | None = None
    gpu_memory_ratio: Annotated[float, Field(gt=0, le=1)] = 0.85
    tensor_parallel_size: PositiveInt = 1
    cpu_threads: PositiveInt = 1
    max_logprobs: Annotated[int, Field(ge=0)] = 20
    compile: bool = False
    attention_backend: str | None = None
    lease_s: PositiveFloat = 600.0
    check_operators: bool = False
    prefix_cache: bool = False
    ablate: tuple[Ablation, ...] = ()
    fake: FakeConfig = FakeConfig()


class RouterConfig(Model):
    """The router.

    `max_waiting` bounds the queue; a request beyond it gets RESOURCE_EXHAUSTED and is told to come
    back. `decode_lookahead` is how many requests may be reserved on a decode instance beyond its
    slots, so that a slot that gets free finds a KV cache to pull; None is a quarter of the slots.
    `max_replays` is how often a sample whose instance failed is run again from its prompt.
    """

    host: str = "127.0.0.1"
    port: Port = 50051
    max_waiting: PositiveInt = 65536
    decode_lookahead: Annotated[int, Field(ge=0)] | None = None
    default_completion_tokens: PositiveInt = 16
    max_replays: Annotated[int, Field(ge=0)] = 2


class RayConfig(Model):
    """Placement by Ray (`corun-pd up --ray`).

    `strategy` is that of Ray's placement group, in which each instance is a bundle. `place_timeout_s`
    bounds the wait for nodes that have room for all of them.
    """

    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    place_timeout_s: PositiveFloat = 60.0


class InstanceConfig(Model):
    """`count` instances of a role. `cores` pins each of them to those CPU cores.

    `gpus` are dealt out in order, `engine.tensor_parallel_size` to each; None shows them all to each.
    `resources` is what Ray sets aside for each, as {CPU: 4, GPU: 1}; None is a GPU for each of
    `tensor_parallel_size` with CUDA engines, and a CPU for each core or compute thread.
    """

    role: Role
    count: PositiveInt = 1
    host: str = "127.0.0.1"
    cores: tuple[int, ...] | None = None
    gpus: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    resources: Annotated[dict[str, PositiveFloat], Field(min_length=1)] | None = None

    def one(self, number: int, ranks: int) -> Self:
        """Instance `number`, from 0, of `ranks` tensor-parallel ranks, by itself."""
        gpus = None if self.gpus is None else self.gpus[number * ranks : (number + 1) * ranks]
        return self.model_copy(update={"count": 1, "gpus": gpus})


class ClusterConfig(Model):
    """A cluster. `ready_timeout_s` bounds the wait for every role to be ready."""

    model: Path
    engine: EngineConfig = EngineConfig()
    router: RouterConfig = RouterConfig()
    ray: RayConfig = RayConfig()
    instances: Annotated[tuple[InstanceConfig, ...], Field(min_length=1)]
    ready_timeout_s: PositiveFloat = 300.0
    drain_timeout_s: PositiveFloat = 10.0
    log_dir: Path = Path("logs")

    @model_validator(mode="after")
    def _roles_make_a_cluster(self) -> Self:
        roles = {instance.role for instance in self.instances}
        for needed, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            if needed in roles and other not in roles:
                raise ValueError(f"instances: {needed} without {other}; a cluster has both or neither")
        return self

    @model_validator(mode="after")
    def _gpus_are_enough(self) -> Self:
        ranks = self.engine.tensor_parallel_size
        for place, instance in enumerate(self.instances):
            gpus, count = instance.gpus, instance.count
            if gpus is None:
                continue
            if len(gpus) != count * ranks:
                raise ValueError(
                    f"instances.{place}.gpus: {len(gpus)} GPUs for {count} instances of {ranks} ranks each"
                )
            for number in range(count):
                own = instance.one(number, ranks).gpus or ()
                if len(set(own)) < ranks:
                    raise ValueError(f"instances.{place}.gpus: two ranks of one instance on a GPU: {own}")
        return self


def load_cluster(path: Path) -> ClusterConfig:
    """Reads a cluster file. Raises ConfigError that names the file, the place and the value.

    A relative `model` is taken from the folder of the file.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    try:
        config = ClusterConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}: " + describe_validation(error)) from error
    return config.model_copy(update={"model": path.parent / config.model})


def describe_validation(error: ValidationError) -> str:
    """A pydantic error in one line per fault: place, problem, value."""
    rows = []
    for fault in error.errors(include_url=False):
        place = ".".join(str(part) for part in fault["loc"]) or "file"
        value = "" if fault["type"] == "missing" else f" (got {fault['input']!r})"
        rows.append(f"{place}: {fault['msg']}{value}")
    return "; ".join(rows)
