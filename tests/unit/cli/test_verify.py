"""What `corun-pd verify` says and with which code it exits, by what was found."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from corun_pd.bench.compare import Comparison, Difference
from corun_pd.bench.determinism import Report
from corun_pd.bench.prompts import Request
from corun_pd.cli.main import cli

SAME = Comparison("colocated, batched", 2, ())
OTHER = Comparison("colocated, batched", 2, (Difference(1, 0, "token_ids", 3, "5", "6"),))


def make_report(comparison: Comparison, *leaks: str) -> Report:
    """Two requests, one run beside the reference."""
    requests = (Request((1,), {"temperature": 0.0}), Request((1, 2, 3), {"temperature": 0.8, "top_k": 40}))
    return Report("f" * 64, "colocated, alone", requests, (comparison,), leaks)


def verify(monkeypatch: pytest.MonkeyPatch, outcome: tuple[Report, Report | None], *options: str) -> Result:
    """Runs the command with what the check would find."""

    async def found(*_: object) -> tuple[Report, Report | None]:
        return outcome

    monkeypatch.setattr("corun_pd.cli.verify._verify", found)
    return CliRunner().invoke(cli, ["verify", "--router", "127.0.0.1:1", *options], env={"COLUMNS": "200"})


def test_identical_with_a_control_that_differs_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one outcome that shows that the contract holds."""
    result = verify(monkeypatch, (make_report(SAME), make_report(OTHER)))
    assert result.exit_code == 0
    assert "the contract holds here" in result.output


def test_identical_without_a_control_says_what_it_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0, with a reservation."""
    result = verify(monkeypatch, (make_report(SAME), None))
    assert result.exit_code == 0
    assert "not that it could" in result.output


def test_control_that_does_not_differ_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 3: neither passed nor failed."""
    result = verify(monkeypatch, (make_report(SAME), make_report(SAME)))
    assert result.exit_code == 3
    assert "this proves nothing here" in result.output


def test_difference_fails_and_names_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1; field, position and the request in words."""
    result = verify(monkeypatch, (make_report(OTHER), make_report(OTHER)))
    assert result.exit_code == 1
    assert "token_ids of request 1, token 3 (3 prompt tokens, temperature 0.8, top_k 40)" in result.output


def test_leak_fails_although_all_is_identical(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that do not come back end a cluster sooner or later."""
    result = verify(monkeypatch, (make_report(SAME, "decode-1 holds 3 KV blocks"), None))
    assert result.exit_code == 1
    assert "decode-1 holds 3 KV blocks" in result.output


def test_outcome_is_written_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every difference, and no control where none ran."""
    file = tmp_path / "outcome.json"
    verify(monkeypatch, (make_report(OTHER), None), "--json", str(file))
    found = json.loads(file.read_text())
    assert found["control"] is None
    assert found["check"]["runs"] == [
        {
            "name": "colocated, batched",
            "requests": 2,
            "identical": 1,
            "differences": ["request 1, sample 0: token_ids[3] 6 != 5"],
        }
    ]
