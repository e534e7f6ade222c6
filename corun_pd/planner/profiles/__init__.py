"""Cost profiles that ship with the package: `corun-pd plan --profile NAME` takes them by name."""

from pathlib import Path
from typing import Final

from corun_pd.errors import ConfigError
from corun_pd.planner.cost import Profile, load_profile

__all__ = ["open_profile", "shipped_profiles"]

_FOLDER: Final = Path(__file__).parent


def shipped_profiles() -> list[str]:
    """Their names, in order."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def open_profile(name: str) -> Profile:
    """A profile by its file, or one that ships by its name. Raises ConfigError that tells the names."""
    if Path(name).exists():
        return load_profile(Path(name))
    if name in shipped_profiles():
        return load_profile(_FOLDER / f"{name}.json")
    known = ", ".join(shipped_profiles()) or "none"
    raise ConfigError(f"--profile {name}: neither a file nor a profile that ships ({known})")
