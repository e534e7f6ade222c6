"""Removes torchvision, torchaudio and torchcodec from this environment where they do not import.

vLLM's metadata asks for them whatever the model. PyPI has them as CUDA builds, which do not load beside a
CPU build of torch, and libraries that import them when they are installed then fail as well. Text models
need none of them.
"""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

EXTRAS = ("torchvision", "torchaudio", "torchcodec")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def main() -> None:
    for name in EXTRAS:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        # In a process of its own: a library that half loads can take the interpreter down with it.
        probe = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True)
        if probe.returncode == 0:
            continue
        why = (probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
        subprocess.run([*PIP, "uninstall", "--yes", name], check=True)
        print(f"removed {name} {found}, which does not import here ({why})")


if __name__ == "__main__":
    main()
