"""What deploy/ ships has the form that its launchers expect."""

import subprocess
from pathlib import Path

import yaml

from corun_pd.config import load_cluster

DEPLOY = Path(__file__).parents[2] / "deploy"


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


def test_slurm_script_parses() -> None:
    """bash accepts the script's syntax."""
    script = DEPLOY / "slurm" / "fleet.sbatch"
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
