"""Experiments over modes: every mode in a process of its own, one process for all experiments of a mode.

Results are written row by row, so what fails later costs nothing of what is done.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corun_pd.bench.experiments import EXPERIMENTS, Plan, Row
from corun_pd.bench.modes import Mode
from corun_pd.bench.process import EngineProcess
from corun_pd.bench.report import write_result
from corun_pd.bench.station import Station
from corun_pd.config import EngineConfig
from corun_pd.engine.base import EngineInfo
from corun_pd.errors import CorunError

__all__ = ["Session", "Variant"]


@dataclass(frozen=True, slots=True)
class Variant:
    """A mode and the engine that runs it."""

    mode: Mode
    config: EngineConfig


@dataclass
class Session:
    """`outs` says where each experiment's JSON goes; `settings` go into all of them.

    `limit_s` is the time of each mode, its engine's start included; `environment` is that of its process.
    """

    model: Path
    plan: Plan
    outs: Mapping[str, Path]
    settings: Mapping[str, object]
    limit_s: float
    say: Callable[[str], None]
    environment: Mapping[str, str] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    engines: list[Row] = field(default_factory=list)

    def run(self, variants: Sequence[Variant]) -> bool:
        """Runs every experiment on every variant. Says whether all went well."""
        went_well = True
        for variant in variants:
            try:
                went_well &= self._measure(variant)
            except CorunError as error:
                went_well = False
                for experiment in self.outs:
                    self._add(experiment, variant, {"workload": "", "error": str(error)})
                self.say(f"{variant.mode.name}: {error}")
        return went_well

    def _measure(self, variant: Variant) -> bool:
        began_s = time.monotonic()
        logs = next(iter(self.outs.values())).with_suffix("")
        log = logs / f"{variant.mode.name}-{variant.config.slots}.log"
        went_well = True
        where = dict(self.environment)
        with EngineProcess(self.model, variant.mode.role, variant.config, log, where) as engine:
            info = engine.ready(self.limit_s)
            start_s = time.monotonic() - began_s
            self.say(f"{variant.mode.name}: {variant.config.slots} slots, started in {start_s:.0f} s")
            self.engines.append(engine_facts(variant, info, start_s))
            station = Station(variant.mode, engine, info, began_s + self.limit_s, self.say)
            station.warm_up()
            for experiment in self.outs:
                try:
                    for row in EXPERIMENTS[experiment](station, self.plan):
                        self._add(experiment, variant, row)
                except CorunError as error:
                    went_well = False
                    self._add(experiment, variant, {"workload": "", "error": str(error)})
                    self.say(f"{variant.mode.name}: {experiment}: {error}")
        return went_well

    def _add(self, experiment: str, variant: Variant, row: Row) -> None:
        head = {"mode": variant.mode.name, "slots": variant.config.slots}
        self.rows.setdefault(experiment, []).append(head | row)
        write_result(
            self.outs[experiment], experiment, self.settings, self.rows[experiment], engines=self.engines
        )


def engine_facts(variant: Variant, info: EngineInfo, start_s: float) -> Row:
    """What is the same in every run of an engine."""
    return {
        "mode": variant.mode.name,
        "slots": info.slots,
        "start_s": start_s,
        "fingerprint": info.contract.fingerprint,
        "contract": dict(info.contract.settings),
        "kv_blocks": info.blocks,
        "block_tokens": info.block_tokens,
        "kv_bytes_per_token": info.block_bytes // info.block_tokens,
        "max_model_tokens": info.max_model_tokens,
        "prefill_tokens": info.prefill_tokens,
    }
