"""`corun-pd bench determinism`: the same requests in other company, bit for bit."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from corun_pd.bench.bits import Agreement, check_company, check_handover, differences
from corun_pd.bench.modes import Mode, modes_named
from corun_pd.bench.process import EngineProcess, Job, Record
from corun_pd.bench.report import print_table, write_result
from corun_pd.bench.workloads import EngineRequest, mixed_requests
from corun_pd.cli.bench_options import common, devices, engine_config, model_of
from corun_pd.core import Role
from corun_pd.errors import CorunError

__all__ = ["determinism"]

Row = dict[str, object]

DIFFERENT, INCOMPLETE = 1, 3


@click.command()
@common("standard,isolated,packed,hybrid")
@click.option("--requests", type=int, default=2048, show_default=True)
@click.option("--output", type=int, default=32, show_default=True, help="Output tokens of each.")
@click.option("--longest", type=int, default=8000, show_default=True, help="The longest prompt.")
@click.option("--others", type=int, default=512, show_default=True, help="Requests that make the crowd.")
@click.option("--alone", type=int, default=24, show_default=True, help="How many also run one at a time.")
@click.option("--restart/--no-restart", default=True, help="Whether a second process runs them too.")
@click.option("--handover/--no-handover", default=True, help="Whether a P/D pair runs them too.")
@click.option("--pair-memory", type=float, default=0.42, show_default=True, help="Memory of each of a pair.")
@click.option(
    "--budget",
    type=float,
    default=540.0,
    show_default=True,
    help="Seconds for all; runs that it has no room for are left out and named.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The result's JSON.")
def determinism(**settings: Any) -> None:
    """The same requests in other company, after a restart with cold caches and through P/D (paper V-B).

    With --gpus 0,1 the pair has prefill on GPU 0 and decode on GPU 1, and the other engines GPU 0.

    Exit code 1 when a mode under the contract differs anywhere, or could not run; 3 when what ran is equal
    but the budget had no room for all of it.
    """
    check = _Check(settings)
    for mode in modes_named(settings["modes"]):
        try:
            check.measure(mode)
        except CorunError as error:
            check.fail(mode, str(error))
    keys = ("mode", "run", "requests", "same_tokens", "same_bits", "seconds")
    columns = ("mode", "run", "requests", "same tokens", "same bits", "s")
    cells = [
        [row.get(key, row.get("error", "") if key == "run" else "") for key in keys] for row in check.rows
    ]
    print_table("equal to the batch run", columns, cells)
    raise SystemExit(DIFFERENT if check.has_failed else INCOMPLETE if check.is_incomplete else 0)


class _Check:
    """Runs modes; rows are written as they come."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.pair = devices(settings, 2)
        self.model = model_of(settings)
        self.logs = settings["out"].with_suffix("")
        self.began_s = time.monotonic()
        self.rows: list[Row] = []
        self.has_failed = self.is_incomplete = False

    def measure(self, mode: Mode) -> None:
        """One mode: an engine for all company, then a pair and a second engine, whichever of these fails."""
        settings = self.settings
        config = mode.apply(engine_config(settings), settings["chunk"])
        began_s = time.monotonic()
        log = self.logs / f"{mode.name}.log"
        with EngineProcess(self.model, mode.role, config, log, self.pair[0]) as engine:
            info = engine.ready()
            start_s = time.monotonic() - began_s
            sizes = (settings["chunk"], settings["block_tokens"], info.vocabulary, settings["longest"])
            requests = mixed_requests(settings["requests"], *sizes, settings["output"])
            others = mixed_requests(settings["others"], *sizes, settings["output"], seed=11)
            facts: Row = {"fingerprint": info.contract.fingerprint, "kv_blocks": info.blocks}
            _, batch = check_company(
                engine,
                requests,
                others,
                settings["alone"],
                lambda agreement: self.add(mode, agreement, facts),
                lambda run, needed_s: self.has_room(mode, run, needed_s),
            )
        if mode.role is Role.STANDARD:
            return
        for run, needed_s, check in (
            ("p/d", start_s + 1.2 * batch.wall_s, self._handover),
            ("restart", start_s + batch.wall_s, self._restart),
        ):
            if settings["handover" if run == "p/d" else run] and self.has_room(mode, run, needed_s):
                try:
                    check(mode, requests, batch.records, facts)
                except CorunError as error:
                    self.fail(mode, f"{run}: {error}")

    def _restart(
        self, mode: Mode, requests: Sequence[EngineRequest], reference: Sequence[Record], facts: Row
    ) -> None:
        config = mode.apply(engine_config(self.settings), self.settings["chunk"])
        log = self.logs / f"{mode.name}-again.log"
        with (
            tempfile.TemporaryDirectory() as caches,
            EngineProcess(self.model, mode.role, config, log, _cold(caches) | self.pair[0]) as engine,
        ):
            engine.ready()
            run = engine.run(Job(requests))
            self.add(mode, differences("restart", reference, run.records, run.wall_s), facts)

    def _handover(
        self, mode: Mode, requests: Sequence[EngineRequest], reference: Sequence[Record], facts: Row
    ) -> None:
        settings = self.settings
        config = mode.apply(engine_config(settings, settings["pair_memory"]), settings["chunk"])
        first, second = self.pair
        agreement, moved = check_handover(self.model, config, requests, reference, self.logs, (first, second))
        self.add(mode, agreement, facts | {"kv_moved_bytes": moved})

    def add(self, mode: Mode, agreement: Agreement, facts: Row) -> None:
        """Takes what one run gave."""
        names = ("run", "requests", "same_tokens", "same_bits", "seconds")
        self.rows.append({"mode": mode.name} | {name: getattr(agreement, name) for name in names} | facts)
        self.has_failed |= agreement.same_bits < agreement.requests and mode.role is not Role.STANDARD
        text = f"{agreement.same_bits} of {agreement.requests} equal, {agreement.seconds:.1f} s"
        click.echo(f"[{self.spent_s:6.1f} s] {mode.name}: {agreement.run}: {text}", err=True)
        self.write()

    def fail(self, mode: Mode, error: str) -> None:
        """Notes a mode that could not run, or not to its end."""
        click.echo(f"{mode.name}: {error}", err=True)
        self.rows.append({"mode": mode.name, "error": error})
        self.has_failed = True
        self.write()

    def has_room(self, mode: Mode, run: str, needed_s: float) -> bool:
        """Whether the budget has room for a run; one that it has none for is named in the result."""
        left_s: float = self.settings["budget"] - self.spent_s
        if needed_s > left_s:
            self.is_incomplete = True
            self.rows.append({"mode": mode.name, "error": f"{run}: left out, {left_s:.0f} s were left"})
            self.write()
        return needed_s <= left_s

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began_s

    def write(self) -> None:
        """Writes the rows."""
        write_result(self.settings["out"], "determinism", self.settings, self.rows)


def _cold(folder: str) -> dict[str, str]:
    """Empty caches of compiled kernels."""
    places = {
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "VLLM_CACHE_ROOT": "vllm",
        "CUDA_CACHE_PATH": "cuda",
    }
    return {name: str(Path(folder, place)) for name, place in places.items()}
