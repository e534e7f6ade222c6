"""`corun-pd profile` on a pair of fake engines: real processes, pipes and pulls, in real time."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from corun_pd.cli.main import cli
from corun_pd.planner.cost import load_profile

pytestmark = pytest.mark.timeout(60)

ENGINE = ("--fake", "--shape", "qwen3-8b", "--chunk", "128", "--longest", "256")


def test_a_profile_of_two_widths_is_measured_and_can_be_planned_with(tmp_path: Path) -> None:
    """Steps, prompts and pulls of the fake engine have known lengths, below which nothing is measured."""
    out = tmp_path / "profile.json"
    result = CliRunner().invoke(
        cli, ["profile", *ENGINE, "--mode", "isolated", "--slots", "4,2", "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    found = load_profile(out)
    assert [point.slots for point in found.decode] == [2, 4]
    assert all(point.base_s > 0.002 for point in found.decode)
    assert found.prefill.alone_s(256) > found.prefill.alone_s(16) > 0
    assert found.transfer.latency_s > 0.0005
    assert found.contract["engine"] == '"fake"'
    assert set(found.residuals) == {"prefill", "decode", "transfer"}
    assert set(found.samples) == {"prefill", "decode of 2", "decode of 4", "transfer"}
    plan = [
        "--trace",
        "64/8",
        "--requests",
        "20",
        "--format",
        "synthetic",
        "--slots",
        "3",
        "--kv-blocks",
        "99",
    ]
    result = CliRunner().invoke(cli, ["plan", "--profile", str(out), "--gpus", "2", *plan])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--model", "."), "give one of --model, --shape and --router"),
        (("--cores", "0"), "--cores 0: takes 2 numbers"),
        (("--slots", "many"), "--slots many"),
        (("--slots", "0"), "slots: Input should be greater than 0 (got 0)"),
        (("--cores", "0,99999"), "core 99999 is not there"),
        (("--kv-cache-bytes", "65536"), "the KV pool of 64 tokens does not hold two prompts of 256 tokens"),
        (
            ("--kv-cache-bytes", "1048576", "--slots", "32"),
            "the KV pool of 1024 tokens does not hold 32 rows of 65 tokens",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    """With the option or the limit."""
    result = CliRunner().invoke(cli, ["profile", *ENGINE, *options, "--out", str(tmp_path / "p.json")])
    assert result.exit_code == 2
    assert problem in result.stderr.replace("\n", " ")
    assert not (tmp_path / "p.json").exists()
