"""What offline jobs cost and gain: lines a second, memory, restarts, and the order of lines.

    python -m corun_pd.bench.batch_load lines --json bench/results/batch-lines-cpu.json

`corun-pd run-batch` and the router share a core; the instances have another. `lines`, `million`, `restart`
and `order` run on fake engines, whose steps take a fixed time, `engine` on a real engine on the CPU. CPU
times are those of whole processes, the job's with its start, from /proc and wait4.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from corun_pd.bench.process import EngineProcess, Job
from corun_pd.bench.report import write_result
from corun_pd.bench.router_load import COMMAND, PROMPT, free_port, wait_for_port, write_model
from corun_pd.bench.workloads import EngineRequest, make_engine_requests, stand_in
from corun_pd.client import AsyncClient
from corun_pd.config import EngineConfig
from corun_pd.core import Role
from corun_pd.errors import SetupError

__all__ = ["main"]

Row = dict[str, object]
Line = dict[str, object]

#: Which core each side has.
JOB_CORE: Final = min(os.sched_getaffinity(0))
ENGINE_CORE: Final = max(os.sched_getaffinity(0))

APART: Final = ("prefill", "decode")

#: Slots of fake instances, and the time of their decode steps in seconds.
SLOTS: Final = 2048
STEP_S: Final = 0.002

#: Of `order`: lines, slots, and step times that make a decode step of a prompt of some 250 tokens.
ORDER_LINES: Final = 600
ORDER_SLOTS: Final = 32
ORDER_STEP_S: Final = 0.005
ORDER_PREFILL_S: Final = 0.00002

#: Of `engine`: requests of one length, prompt and output tokens, so that no order is better than another.
ENGINE_SLOTS: Final = 8
ENGINE_LENGTHS: Final = (64, 48)


class Roles:
    """A router on the job's core and instances on the other."""

    def __init__(self, folder: Path, model: Path, engine: Mapping[str, object], roles: Sequence[str]) -> None:
        self.folder, self.model = folder, model
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._config = folder / "cluster.yaml"
        instances = [{"role": role} for role in roles]
        settings = {"model": str(model), "engine": dict(engine), "instances": instances}
        self._config.write_text(yaml.safe_dump({**settings, "router": {"port": port}}))
        self.router = self._spawn("router", JOB_CORE)
        wait_for_port(port, self.router)
        self.instances = [self._spawn(role, ENGINE_CORE, "--router", self.address) for role in roles]
        asyncio.run(self._joined(len(roles)))

    def _spawn(self, role: str, core: int, *options: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{role}.log").open("wb") as log:
            return subprocess.Popen(
                [*COMMAND, role, "--config", str(self._config), *options],
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
                stdout=log,
                stderr=log,
            )

    async def _joined(self, count: int) -> None:
        async with AsyncClient(self.address) as client, asyncio.timeout(300):
            while len((await client.describe()).members) < count:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)

    def cpu_s(self) -> tuple[float, float]:
        """CPU time of the router and of all instances so far."""
        used = [psutil.Process(p.pid).cpu_times() for p in (self.router, *self.instances)]
        router, *others = (times.user + times.system for times in used)
        return router, sum(others)

    def start(self, source: Path, out: Path, *options: str) -> "subprocess.Popen[bytes]":
        """`run-batch`, begun on its core."""
        files = ["-i", str(source), "-o", str(out), "--router", self.address]
        return subprocess.Popen(
            [*COMMAND, "run-batch", *files, *options],
            preexec_fn=lambda: os.sched_setaffinity(0, {JOB_CORE}),
            stderr=subprocess.DEVNULL,
        )

    def run(self, lines: Iterable[Line], *options: str) -> "Ran":
        """A whole job. Raises SetupError when a line of it failed."""
        source, out, summary = (self.folder / name for name in ("in.jsonl", "out.jsonl", "summary.json"))
        write_lines(source, lines)
        before = self.cpu_s()
        job = self.start(source, out, "--summary", str(summary), *options)
        _, status, used = os.wait4(job.pid, 0)
        job.returncode = os.waitstatus_to_exitcode(status)
        if job.returncode:
            raise SetupError(f"run-batch ended with exit code {job.returncode}")
        after = self.cpu_s()
        return Ran(
            json.loads(summary.read_text()),
            used.ru_utime + used.ru_stime,
            after[0] - before[0],
            after[1] - before[1],
            used.ru_maxrss / 1024,
        )

    def stop(self) -> None:
        """Ends the processes, the instances first."""
        for process in (*self.instances, self.router):
            process.terminate()
            process.wait(timeout=60)


@dataclass(frozen=True)
class Ran:
    """A job's summary, CPU seconds of the three sides, and the job's peak resident memory."""

    summary: dict[str, Any]
    job_s: float
    router_s: float
    instances_s: float
    peak_rss_mb: float

    def figures(self) -> dict[str, float]:
        """By the name in tables."""
        count = int(self.summary["line_count"])
        return {
            "lines/s": count / self.summary["elapsed_s"],
            "job's CPU µs a line": 1e6 * self.job_s / count,
            "router's CPU µs a line": 1e6 * self.router_s / count,
            "instances' CPU µs a line": 1e6 * self.instances_s / count,
            "job's peak RSS MB": self.peak_rss_mb,
        }


@contextmanager
def fake_roles(
    slots: int = SLOTS, step_s: float = STEP_S, prefill_s: float = 0.0, room: int = 2048
) -> Iterator[Roles]:
    """A prefill and a decode instance on fake engines."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": room}))
        fake = {"decode_step_s": step_s, "prefill_s_per_token": prefill_s}
        engine = {"kind": "fake", "slots": slots, "fake": fake, "max_model_tokens": room}
        roles = Roles(folder, folder, engine, APART)
        try:
            yield roles
        finally:
            roles.stop()


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """Batch lines of completions, numbered."""
    with path.open("w") as file:
        for number, body in enumerate(lines):
            line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def texts(roles: Roles, count: int, max_tokens: int, group: int = 1) -> Iterator[Line]:
    """Lines of some 30 prompt tokens; `group` of them in a row have the same prompt."""
    for number in range(count):
        body = {"prompt": f"{PROMPT} {number // group}", "max_tokens": max_tokens, "ignore_eos": True}
        yield {"model": roles.model.name, **body}


def lines(count: int) -> Iterator[Row]:
    """Lines a second, with a prompt each and with a prompt for eight."""
    for group, name in ((1, "a prompt a line"), (8, "eight lines a prompt")):
        with fake_roles() as roles:
            roles.run(texts(roles, 2000, 16))  # warm-up
            for file in roles.folder.glob("out.jsonl*"):
                file.unlink()
            ran = roles.run(texts(roles, count, 16, group))
        yield {"name": f"{count:,} lines of 30 → 16 tokens, {name}", "figures": ran.figures()}


def million(count: int) -> Iterator[Row]:
    """Memory of a long job."""
    with fake_roles() as roles:
        ran = roles.run(texts(roles, count, 1))
    yield {"name": f"{count:,} lines of 30 → 1 tokens", "figures": ran.figures()}


def restart(count: int) -> Iterator[Row]:
    """How soon a job that was killed half-way has an answer to a line that was missing."""
    with fake_roles() as roles:
        source, out = roles.folder / "in.jsonl", roles.folder / "out.jsonl"
        journal = roles.folder / "out.jsonl.journal"
        write_lines(source, texts(roles, count, 16))
        job = roles.start(source, out)
        part = roles.folder / "out.jsonl.part"
        while not part.exists() or _line_count(part) < count // 2:
            time.sleep(0.2)
        job.kill()
        job.wait()
        finished, size = _line_count(part), journal.stat().st_size
        began = time.perf_counter()
        job = roles.start(source, out)
        while journal.stat().st_size <= size:
            time.sleep(0.002)
        seconds = time.perf_counter() - began
        job.wait()
        if job.returncode:
            raise SetupError(f"run-batch ended with exit code {job.returncode}")
    figures = {"finished before": finished, "s to the first new answer": seconds}
    yield {"name": f"{count:,} lines, killed -9 half-way, started again", "figures": figures}


def _line_count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def order(count: int) -> Iterator[Row]:
    """Longest lines first against the order of the input, where lengths are long-tailed."""
    lengths = stand_in("burstgpt", count, limit=4096)
    draw = random.Random(1)
    figures: dict[str, float] = {}
    spans = []
    for name, options in (("longest first", ()), ("input order", ("--keep-order",))):
        with fake_roles(ORDER_SLOTS, ORDER_STEP_S, ORDER_PREFILL_S, room=4096) as roles:
            bodies = (
                {
                    "model": roles.model.name,
                    "prompt": [draw.randrange(300) for _ in range(prompt)],
                    "max_tokens": output,
                    "ignore_eos": True,
                    "seed": number,
                }
                for number, (prompt, output) in enumerate(lengths)
            )
            ran = roles.run(bodies, *options)
        spans.append(ran.summary["elapsed_s"])
        figures[f"s, {name}"] = spans[-1]
        figures[f"padded rows %, {name}"] = 100 * ran.summary["padding_ratio"]
    figures["input order's time by longest first's"] = spans[1] / spans[0]
    name = f"{count:,} lines, lengths of the BurstGPT stand-in, {ORDER_SLOTS} slots, fake steps of"
    yield {"name": f"{name} {1000 * ORDER_STEP_S:g} ms", "figures": figures}


def engine(count: int) -> Iterator[Row]:
    """A job's throughput by the engine's own: the same requests, pushed straight into it before and after."""
    model = Path(__file__).parents[2] / "models" / "qwen3-wide"
    config: dict[str, object] = {
        "slots": ENGINE_SLOTS,
        "max_model_tokens": 512,
        "kv_cache_bytes": 64 << 20,
        "prefill": {"mode": "isolated", "chunk_tokens": 64},
    }
    requests = make_engine_requests([ENGINE_LENGTHS] * count, 700)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = [_straight(model, config, requests, folder)]
        roles = Roles(folder, model, config, ["colocated"])
        try:
            ran = roles.run(_same(roles, requests))
        finally:
            roles.stop()
        own.append(_straight(model, config, requests, folder))
    tokens = count * ENGINE_LENGTHS[1]
    rate = tokens / ran.summary["elapsed_s"]
    straight = tokens / (sum(own) / len(own))
    prompt, output = ENGINE_LENGTHS
    figures = {
        "job's tokens/s": rate,
        "engine's own tokens/s, before": tokens / own[0],
        "engine's own tokens/s, after": tokens / own[1],
        "job's by the engine's own": rate / straight,
    }
    yield {
        "name": f"{count:,} lines of {prompt} → {output} tokens, qwen3-wide on one core, colocated",
        "figures": figures,
    }


def _straight(
    model: Path, config: Mapping[str, object], requests: Sequence[EngineRequest], folder: Path
) -> float:
    """Seconds for all requests on an engine that has the instances' core, and twice its slots under way."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {ENGINE_CORE})  # the process inherits it
    try:
        process = EngineProcess(
            model, Role.COLOCATED, EngineConfig.model_validate(config), folder / "own.log"
        )
    finally:
        os.sched_setaffinity(0, cores)
    with process:
        process.ready()
        process.run(Job(requests[: 2 * ENGINE_SLOTS]))
        return process.run(Job(requests, concurrency=2 * ENGINE_SLOTS)).wall_s


def _same(roles: Roles, requests: Sequence[EngineRequest]) -> Iterator[Line]:
    """The requests as lines."""
    for request in requests:
        sampling = request.sampling
        yield {
            "model": roles.model.name,
            "prompt": list(request.prompt),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "top_p": 1.0,
            "top_k": 0,
            "ignore_eos": True,
        }


#: By name: the measurement and how many lines it takes.
MEASUREMENTS: Final[dict[str, tuple[Callable[[int], Iterator[Row]], int]]] = {
    "lines": (lines, 50_000),
    "million": (million, 1_000_000),
    "restart": (restart, 100_000),
    "engine": (engine, 400),
    "order": (order, ORDER_LINES),
}


def main() -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Measures offline jobs.")
    parser.add_argument("measurement", choices=MEASUREMENTS)
    parser.add_argument("--lines", type=int, help="how many")
    parser.add_argument("--json", type=Path, help="write the measurement here")
    options = parser.parse_args()
    measure, usual = MEASUREMENTS[options.measurement]
    rows = []
    for row in measure(options.lines or usual):
        rows.append(row)
        print(json.dumps(row, indent=2, ensure_ascii=False), flush=True)
    if options.json is not None:
        settings = {"slots": SLOTS, "step_s": STEP_S}
        write_result(options.json, "batch", settings, rows, "python -m corun_pd.bench.batch_load")


if __name__ == "__main__":
    main()
