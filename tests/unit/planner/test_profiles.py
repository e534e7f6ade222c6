"""Profiles by name and by file."""

from pathlib import Path

import pytest

from corun_pd.errors import ConfigError
from corun_pd.planner.profiles import open_profile, shipped_profiles
from tests.unit.planner.make import make_profile


def test_a_file_is_opened_by_its_path(tmp_path: Path) -> None:
    """Whatever its name."""
    path = tmp_path / "mine"
    path.write_text(make_profile().to_json())
    assert open_profile(str(path)) == make_profile()


@pytest.mark.parametrize("name", shipped_profiles())
def test_every_profile_that_ships_tells_its_machine_and_its_errors(name: str) -> None:
    """Measured, and checked as any other."""
    profile = open_profile(name)
    assert profile.machine["command"].startswith("corun-pd profile ")
    assert profile.versions["corun-pd"]
    assert profile.samples["prefill"]
    assert set(profile.residuals) >= {"prefill", "decode", "transfer"}


def test_a_name_that_is_nothing_is_refused_with_those_that_are() -> None:
    """Both the name and the choice."""
    with pytest.raises(ConfigError, match="h100-imagined: neither a file nor a profile that ships"):
        open_profile("h100-imagined")
