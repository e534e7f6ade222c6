"""The commands: help, exit codes, and what an error looks like."""

import importlib.metadata
import logging
import os
import sys
from collections.abc import Coroutine, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from corun_pd import __version__
from corun_pd.cli.main import COMMANDS, cli
from corun_pd.cluster.local import role_command
from corun_pd.cluster.packages import Package
from corun_pd.config import load_cluster


@pytest.fixture(autouse=True)
def root_log_level() -> Iterator[None]:
    """Commands configure logging for their process; here that is the tests' own."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def write_cluster(folder: Path, text: str) -> str:
    """A cluster file."""
    file = folder / "cluster.yaml"
    file.write_text(text)
    return str(file)


def test_version_is_told_by_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the package's own, and asks for no metadata."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    result = CliRunner().invoke(cli, ["--version"], prog_name="corun-pd")
    assert (result.exit_code, result.output) == (0, f"corun-pd, version {__version__}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str) -> None:
    """Each is where the table says, and has help."""
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: m\ninstances: [{role: prefil}]", ["instances.0.role", "'prefil'"]),
        ("model: m\ninstances: [{role: prefill}]", ["prefill without decode"]),
        ("model: m\nengine: {slots: 0}\ninstances: [{role: colocated}]", ["engine.slots", "(got 0)"]),
        ("model: m\nengine: {slot: 8}\ninstances: [{role: colocated}]", ["engine.slot", "(got 8)"]),
        ("model: m\ninstances: []", ["instances", "(got [])"]),
        ("instances: [{role: colocated}]", ["model: Field required"]),
        ("model: [", ["not YAML"]),
    ],
)
def test_wrong_configuration_is_named_by_place_and_value(tmp_path: Path, text: str, said: list[str]) -> None:
    """File, place and value on stderr, exit code 2, no traceback."""
    file = write_cluster(tmp_path, text)
    result = CliRunner().invoke(cli, ["up", "--config", file])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {file}: ")
    assert all(part in result.stderr for part in said), result.stderr
    assert "Traceback" not in result.stderr


def test_missing_model_is_named(tmp_path: Path) -> None:
    """The path is that of the cluster file's folder and the model in it."""
    file = write_cluster(tmp_path, "model: m\nengine: {kind: fake}\ninstances: [{role: colocated}]")
    result = CliRunner().invoke(cli, ["up", "--config", file])
    assert (result.exit_code, result.stderr) == (2, f"error: model: {tmp_path}/m is not a folder\n")


def test_debug_level_adds_the_traceback(tmp_path: Path) -> None:
    """An expected failure keeps its exit code."""
    result = CliRunner().invoke(cli, ["--log-level", "debug", "up", "--config", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.endswith(f"error: {tmp_path}/none: No such file or directory\n")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only CorunErrors become a line."""

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("corun_pd.cli.doctor.installed_packages", fail)
    result = CliRunner().invoke(cli, ["doctor"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_doctor_names_every_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, one line a fault."""
    packages = {"nixl-cu12": Package("nixl-cu12", "1.5.1")}
    monkeypatch.setattr("corun_pd.cli.doctor.installed_packages", lambda: packages)
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "fault: vLLM is not installed: pip install 'corun-pd[cpu]' or 'corun-pd[cuda]'",
        "fault: nixl-cu12 1.5.1 without the base package nixl: pip install nixl",
    ]


def test_up_runs_the_doctor_before_a_real_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken environment is named before any process is started."""
    monkeypatch.setattr("corun_pd.cluster.doctor.installed_packages", dict)
    (tmp_path / "config.json").write_text("{}")
    file = write_cluster(tmp_path, "model: .\nrouter: {port: 0}\ninstances: [{role: colocated}]")
    result = CliRunner().invoke(cli, ["up", "--config", file])
    assert (result.exit_code, result.stderr[:29]) == (2, "error: vLLM is not installed:")


@pytest.mark.parametrize("option", ["--ray", "--ray-address=host:6379"])
def test_up_says_when_ray_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """Which extra to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    file = write_cluster(tmp_path, "model: .\ninstances: [{role: colocated}]")
    result = CliRunner().invoke(cli, ["up", "--config", file, option])
    assert (result.exit_code, result.stderr) == (2, "error: --ray needs Ray: pip install 'corun-pd[ray]'\n")


def test_verify_needs_a_cluster() -> None:
    """Neither a router nor a file: a usage error."""
    result = CliRunner().invoke(cli, ["verify"])
    assert result.exit_code == 2
    assert "give --router, --config or both" in result.stderr


def test_verify_refuses_a_standard_instance_in_the_checked_cluster(tmp_path: Path) -> None:
    """It is the control, and verify starts its own."""
    file = write_cluster(tmp_path, "model: .\nengine: {kind: fake}\ninstances: [{role: standard}]")
    result = CliRunner().invoke(cli, ["verify", "--config", file])
    assert result.exit_code == 2
    assert "standard instance is outside the contract" in result.stderr


def test_describe_of_no_router_ends_within_the_time_given() -> None:
    """Nobody listens on the discard port here."""
    result = CliRunner().invoke(cli, ["describe", "--router", "127.0.0.1:9", "--timeout-s", "0.5"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_cores_are_a_list_of_numbers_and_ranges() -> None:
    """`0,2-3` as taskset has it."""
    from corun_pd.cli.roles import Places

    assert Places("cores").convert("0,2-4,3", None, None) == (0, 2, 3, 4)
    with pytest.raises(click.BadParameter, match="no list of cores"):
        Places("cores").convert("0,x", None, None)


def test_a_role_sees_the_gpus_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted among those that its launcher shows; set before the engine is built."""
    from corun_pd.cli import roles

    seen: list[str | None] = []

    def serve(running: Coroutine[Any, Any, None]) -> None:
        running.close()
        seen.append(os.environ.get("CUDA_VISIBLE_DEVICES"))

    monkeypatch.setattr(roles, "serve", serve)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    file = write_cluster(
        tmp_path, "model: .\nengine: {kind: fake}\ninstances: [{role: colocated, gpus: [1]}]"
    )
    (instance,) = load_cluster(Path(file)).instances
    options = role_command("colocated", instance, Path(file), "127.0.0.1:1")[-3:]
    assert options[1:] == ["--gpus", "1"]
    for arguments in (options[1:], ["--gpus", "7"]):
        result = CliRunner().invoke(cli, ["colocated", "--config", file, *arguments])
        assert result.exit_code == (0 if arguments[1] == "1" else 2), result.output
    assert seen == ["5"]


@pytest.mark.parametrize("route", ["disaggregated", "colocated"])
def test_a_route_is_named_as_summaries_name_it(route: str, tmp_path: Path) -> None:
    """Whichever version of click is there: it is the missing router that ends the command."""
    source = tmp_path / "in.jsonl"
    source.write_text("")
    command = ["run-batch", "-i", str(source), "-o", str(source), "--route", route]
    result = CliRunner().invoke(cli, command)
    assert "must be a file of its own" in result.output
