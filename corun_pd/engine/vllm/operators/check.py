"""All operators of a model, and the check that an engine makes before it starts."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from vllm.platforms import current_platform

from corun_pd.config import EngineConfig
from corun_pd.engine.operators import ModelDims, Need, OperatorResult, failures
from corun_pd.engine.vllm.operators.attention import attention_probes
from corun_pd.engine.vllm.operators.collectives import all_reduce_probes, rank_group_of, ring_probes
from corun_pd.engine.vllm.operators.control import control_probes
from corun_pd.engine.vllm.operators.dense import dense_probes
from corun_pd.engine.vllm.operators.experts import expert_probes
from corun_pd.engine.vllm.operators.plan import Scene, has_batch_invariant_kernels
from corun_pd.engine.vllm.operators.probe import Probe, examine
from corun_pd.engine.vllm.rank_group import RankGroup
from corun_pd.errors import SetupError

__all__ = ["examine_operators", "require_operators"]

#: Batches that a row is compared in, beside those of the contract.
SIZES = (1, 2, 3, 8, 16, 32, 64, 128)

#: KV lengths of attention's rows reach to here, or to the model's limit.
KV_TOKENS = 4096


def examine_operators(
    model: Path,
    config: EngineConfig,
    timed: Sequence[int] = (),
    repeats: int = 30,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[list[OperatorResult], list[OperatorResult]]:
    """Results of every kernel, and those of the controls, which are position-dependent on purpose.

    `timed` are row counts at which kernels are timed. Raises ConfigError for a config.json without the
    widths, SetupError when there is none or the mode's kernels are missing here.
    """
    scene = _scene(model, config)
    sizes = sorted({*SIZES, scene.slots, scene.chunk_tokens})
    with _ranks(scene) as group:
        found = [examine(probe, sizes, timed, repeats) for probe in _told(_all_probes(scene, group), say)]
        controls = [examine(probe, sizes) for probe in (*control_probes(scene), *ring_probes(scene, group))]
    return found, controls


def require_operators(model: Path, config: EngineConfig) -> None:
    """Runs the kernels that the contract uses. Raises SetupError that names those it cannot rest on."""
    scene = _scene(model, config)
    sizes = (1, scene.slots, scene.chunk_tokens)
    with _ranks(scene) as group:
        needed = (probe for probe in _all_probes(scene, group) if probe.need is not Need.NOTHING)
        faults = failures([examine(probe, sizes if probe.need is Need.BATCH else ()) for probe in needed])
    if scene.device.type == "cuda":
        torch.cuda.empty_cache()
    if faults:
        raise SetupError("engine.check_operators: " + "; ".join(faults))


def _ranks(scene: Scene) -> contextlib.AbstractContextManager[RankGroup | None]:
    return rank_group_of(scene) if scene.tensor_parallel_size > 1 else contextlib.nullcontext()


def _all_probes(scene: Scene, group: RankGroup | None) -> Iterator[Probe]:
    for makers in (dense_probes(scene), attention_probes(scene), expert_probes(scene)):
        for make in makers:
            yield from make()
    if group is not None:
        yield from all_reduce_probes(scene, group)


def _told(probes: Iterator[Probe], say: Callable[[str], None]) -> Iterator[Probe]:
    for probe in probes:
        say(f"{probe.operator} ({probe.kernel})")
        yield probe


def _scene(model: Path, config: EngineConfig) -> Scene:
    file = model / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(f"{file}: {error.strerror}") from error
    if config.prefill.mode == "hybrid" and not has_batch_invariant_kernels():
        raise SetupError(
            "engine.prefill.mode: hybrid needs batch-invariant kernels, which vLLM 0.32.0 has on CUDA alone"
        )
    dims = ModelDims.from_config(values, str(file))
    named = dims.dtype if config.dtype == "auto" else config.dtype
    kind = str(current_platform.device_type)
    limit = config.max_model_tokens or values.get("max_position_embeddings") or KV_TOKENS
    if kind == "cpu":
        torch.set_num_threads(config.cpu_threads)
    return Scene(
        dims=dims,
        mode=config.prefill.mode,
        slots=config.slots,
        chunk_tokens=config.prefill.chunk_tokens,
        block_tokens=config.block_tokens,
        kv_tokens=min(KV_TOKENS, int(limit)),
        tensor_parallel_size=config.tensor_parallel_size,
        device=torch.device(kind),
        dtype=getattr(torch, named),
    )
