"""What deploy/ ships has the form that its launchers expect, and names commands and options that exist."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
import yaml

from corun_pd.cli.main import cli
from corun_pd.config import load_cluster

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCRIPTS = sorted(path for path in DEPLOY.rglob("*") if path.suffix in (".sh", ".sbatch"))


def parse(argv: Sequence[str]) -> None:
    """Parses a command line of ours without running it; click's UsageError says what is wrong with it."""
    name, *arguments = argv
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None, f"no command {name}"
    with command.make_context(name, arguments, parent=context):
        pass


def command_lines(script: str) -> list[list[str]]:
    """The arguments of every corun-pd in a script; a role that is a variable is `decode`, all else is 1."""
    code = "\n".join(line for line in script.splitlines() if not line.startswith("#"))
    code = re.sub(r"\$\w+|\$\([^)]*\)", "1", code.replace('"$role"', "decode"))
    return [shlex.split(line) for line in re.findall(r"\bcorun-pd ([^|&;>\n]+)", code)]


def test_cluster_file_is_accepted() -> None:
    """The shipped fleet is one that this version reads."""
    config = load_cluster(DEPLOY / "cluster.yaml")
    assert {instance.role.value for instance in config.instances} == {"prefill", "decode"}


def test_every_pod_of_the_fleet_runs_a_command_of_ours() -> None:
    """Deployments name roles that `corun-pd` has, and each has a probe and the cluster file."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "fleet.yaml").read_text()))
    pods = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "Deployment"]
    roles = [pod["containers"][0]["args"][0] for pod in pods]
    assert sorted(roles) == ["decode", "prefill", "router"]
    for pod in pods:
        (container,) = pod["containers"]
        assert container["args"][1:3] == ["--config", "/config/cluster.yaml"]
        assert "grpc" in container["readinessProbe"]

        parse(container["args"])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses_and_its_commands_do(script: Path) -> None:
    """bash accepts the syntax, and the command line each option."""
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for argv in command_lines(script.read_text()):
        parse(argv)


def test_scripts_name_the_commands_that_they_are_for() -> None:
    """The reading of scripts above finds what is in them."""
    found = {path.name: [argv[0] for argv in command_lines(path.read_text())] for path in SCRIPTS}
    assert found == {
        "batch.sh": ["up", "run-batch"],
        "fleet.sbatch": ["router", "decode", "describe", "run-batch"],
        "ray.sbatch": [],
    }
    assert (DEPLOY / "ray" / "batch.sh").stat().st_mode & 0o111
    assert "-- deploy/ray/batch.sh " in (DEPLOY / "slurm" / "ray.sbatch").read_text()


def test_ray_job_has_a_pod_for_each_instance_and_our_version_of_ray() -> None:
    """The head offers no CPUs and runs the script that the image holds; each worker has one GPU."""
    job = yaml.safe_load((DEPLOY / "kubernetes" / "rayjob.yaml").read_text())
    script, *arguments = job["spec"]["entrypoint"].split()
    image = (DEPLOY / "container" / "Dockerfile").read_text()
    assert (script, len(arguments)) == ("/app/deploy/ray/batch.sh", 3)
    assert "WORKDIR /app\n" in image
    assert "COPY deploy/ray deploy/ray\n" in image
    ray = job["spec"]["rayClusterSpec"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["ray"] == [f"ray=={ray['rayVersion']}"]
    assert ray["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    (workers,) = ray["workerGroupSpecs"]
    (worker,) = workers["template"]["spec"]["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 1
    instances = load_cluster(DEPLOY / "cluster.yaml").instances
    assert workers["replicas"] == sum(instance.count for instance in instances)
    mounts = {m["name"] for m in ray["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]}
    volumes = {v["name"] for v in ray["headGroupSpec"]["template"]["spec"]["volumes"]}
    assert mounts == volumes == {"config", "models", "jobs"}
