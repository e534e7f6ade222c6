"""A session over modes whose engines start, fail and are late as told."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from corun_pd.bench import session as session_module
from corun_pd.bench.experiments import Plan
from corun_pd.bench.modes import mode_named
from corun_pd.bench.records import Job, Record, Run
from corun_pd.bench.session import Session, Variant
from corun_pd.bench.workloads import parse_workloads
from corun_pd.config import EngineConfig
from corun_pd.contract import Contract
from corun_pd.core import InstanceLoad, Role
from corun_pd.engine.base import EngineInfo
from corun_pd.errors import EngineFailed

INFO = EngineInfo(Contract({"engine": "mock"}), "m", 8, 100, 16, 512, 64, 1024, 20, 512, "scheme-1")


@dataclass
class Script:
    """What the engines of a session do. `dies_at` is the job, from 1, at which that role's engine fails."""

    dead: set[Role] = field(default_factory=set)
    dies_at: dict[Role, int] = field(default_factory=dict)
    ready_s: float = 0.0
    roles: list[Role] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    told = Script()

    class MockProcess:
        def __init__(
            self, model: Path, role: Role, config: EngineConfig, log: Path, environment: dict[str, str]
        ) -> None:
            self.role, self.log, self.jobs = role, log, 0
            told.roles.append(role)

        def ready(self, timeout_s: float) -> EngineInfo:
            time.sleep(told.ready_s)
            if self.role in told.dead:
                raise EngineFailed(f"no such kernel; see {self.log}")
            return INFO

        def run(self, job: Job, timeout_s: float) -> Run:
            self.jobs += 1
            told.jobs.append(job)
            if self.jobs == told.dies_at.get(self.role):
                raise EngineFailed("out of memory")
            return make_run(job)

        def __enter__(self) -> "MockProcess":
            return self

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...

    monkeypatch.setattr(session_module, "EngineProcess", MockProcess)
    return told


def make_run(job: Job) -> Run:
    records = tuple(
        Record(tuple(range(request.sampling.max_tokens)), (), "length", 0.0, 0.5, 1.0)
        for request in job.requests
    )
    load = InstanceLoad(steps=3, rows=30, padding_rows=3)
    return Run(records, 2.0, InstanceLoad(), load, ((0.5, len(records)),), (len(records),))


def make_session(folder: Path, *experiments: str, limit_s: float = 60.0) -> Session:
    workloads = parse_workloads("8/4:2,16/8:2", 2, 512)
    plan = Plan(workloads=workloads, loop=workloads[0], ragged=workloads[1], in_flight=(1, 2))
    outs = {name: folder / f"{name}.json" for name in experiments}
    return Session(folder, plan, outs, {"slots": 8, "out": "x"}, limit_s, say=lambda text: None)


def variants(*modes: str) -> list[Variant]:
    return [Variant(mode_named(mode), mode_named(mode).apply(EngineConfig(), 64)) for mode in modes]


def rows(folder: Path, experiment: str) -> Iterator[tuple[str, str, bool]]:
    for row in json.loads((folder / f"{experiment}.json").read_text())["rows"]:
        yield row["mode"], row["workload"], "error" in row


def read(folder: Path, experiment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{experiment}.json").read_text())
    return found


def test_experiments_share_an_engine_a_mode_and_equal_runs(tmp_path: Path, script: Script) -> None:
    """Padding looks at the runs of throughput: a warm-up, two workloads, and one request alone."""
    assert make_session(tmp_path, "throughput", "padding").run(variants("standard", "packed"))
    assert script.roles == [Role.STANDARD, Role.COLOCATED]
    assert len(script.jobs) == 2 * 4
    assert list(rows(tmp_path, "throughput")) == [
        (mode, workload, False) for mode in ("standard", "packed") for workload in ("8/4", "16/8", "total")
    ]
    found = read(tmp_path, "padding")
    assert [engine["mode"] for engine in found["engines"]] == ["standard", "packed"]
    assert "out" not in found["settings"]


def test_a_mode_that_does_not_start_leaves_the_others(tmp_path: Path, script: Script) -> None:
    """Its error stands in every experiment's result, with the log's place."""
    script.dead = {Role.STANDARD}
    assert not make_session(tmp_path, "throughput", "timeline").run(variants("standard", "packed"))
    assert list(rows(tmp_path, "timeline")) == [("standard", "", True), ("packed", "8/4", False)]
    assert "no such kernel" in read(tmp_path, "throughput")["rows"][0]["error"]
    assert "standard-" in read(tmp_path, "throughput")["rows"][0]["error"]


def test_rows_before_a_failure_are_kept(tmp_path: Path, script: Script) -> None:
    """The third job is the second workload: the first one's row stands, and the next experiment is run."""
    script.dies_at = {Role.COLOCATED: 3}
    assert not make_session(tmp_path, "throughput", "timeline").run(variants("packed"))
    assert list(rows(tmp_path, "throughput")) == [("packed", "8/4", False), ("packed", "", True)]
    assert list(rows(tmp_path, "timeline")) == [("packed", "8/4", False)]


def test_a_mode_out_of_time_runs_no_further_job_and_leaves_the_others(tmp_path: Path, script: Script) -> None:
    """The limit holds for each mode, its start included."""
    script.ready_s = 0.02
    assert not make_session(tmp_path, "throughput", limit_s=0.01).run(variants("standard", "packed"))
    assert script.jobs == []
    assert [error for _, _, error in rows(tmp_path, "throughput")] == [True, True]
    assert "no time left" in read(tmp_path, "throughput")["rows"][0]["error"]


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        ("latency", [{"requests_per_s": None}]),
        ("concurrency", [{"in_flight": 1}, {"in_flight": 2}]),
        ("timeline", [{"done_s": 1.0}]),
        (
            "throughput",
            [{"output_tokens_per_s": 4.0}, {"output_tokens_per_s": 8.0}, {"output_tokens_per_s": 6.0}],
        ),
    ],
)
def test_each_experiment_says_what_tells_its_rows_apart(
    tmp_path: Path, script: Script, experiment: str, expected: Sequence[dict[str, object]]
) -> None:
    """Beside mode and N, which are in all rows."""
    assert make_session(tmp_path, experiment).run(variants("packed"))
    found = read(tmp_path, experiment)["rows"]
    assert [{name: row[name] for name in one} for row, one in zip(found, expected, strict=True)] == expected
    assert {(row["mode"], row["slots"]) for row in found} == {("packed", EngineConfig().slots)}
