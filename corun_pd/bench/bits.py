"""Whether an engine keeps the contract: the same requests in other company, bit for bit (paper V-B).

alone       one at a time (a share of the requests, since it is slow)
batch       all at once; the reference
reversed    all at once, in reverse order
crowd       all at once, in random order, between as many others
restart     all at once, in a new process
p/d         through a prefill and a decode engine, in reverse order
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corun_pd.bench.process import EngineProcess, Job, Record
from corun_pd.bench.workloads import EngineRequest
from corun_pd.config import EngineConfig
from corun_pd.core import Role

__all__ = ["Agreement", "check_company", "check_handover", "differences"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many of `requests` requests equal the reference, in tokens and in all bits."""

    run: str
    requests: int
    same_tokens: int
    same_bits: int


def differences(run: str, expected: Sequence[Record], found: Sequence[Record]) -> Agreement:
    """Compares records pairwise."""
    pairs = list(zip(expected, found, strict=True))
    return Agreement(
        run=run,
        requests=len(pairs),
        same_tokens=sum(a.token_ids == b.token_ids for a, b in pairs),
        same_bits=sum(a.bits() == b.bits() for a, b in pairs),
    )


def check_company(
    engine: EngineProcess, requests: Sequence[EngineRequest], others: Sequence[EngineRequest], alone: int
) -> tuple[list[Agreement], tuple[Record, ...]]:
    """Runs them in other company on one engine. Returns what agreed, and the reference records."""
    reference = engine.run(Job(requests)).records
    found = [differences("reversed", reference, engine.run(Job(requests[::-1])).records[::-1])]
    mixed = [*requests, *others]
    order = list(range(len(mixed)))
    random.Random(3).shuffle(order)
    crowd = engine.run(Job([mixed[i] for i in order])).records
    placed = dict(zip(order, crowd, strict=True))
    found.append(differences("crowd", reference, [placed[i] for i in range(len(requests))]))
    step = max(1, len(requests) // alone) if alone else len(requests) + 1
    few = list(range(0, len(requests), step))[:alone]
    if few:
        solo = engine.run(Job([requests[i] for i in few], concurrency=1)).records
        found.append(differences("alone", [reference[i] for i in few], solo))
    return found, reference


def check_handover(
    model: Path,
    config: EngineConfig,
    requests: Sequence[EngineRequest],
    reference: Sequence[Record],
    logs: Path,
    devices: tuple[dict[str, str], dict[str, str]] = ({}, {}),
    wave: int = 64,
) -> tuple[Agreement, int]:
    """Runs them through a prefill and a decode engine, in reverse order, `wave` handoffs at a time.

    `devices` are environment variables of the two processes. Returns what agreed and the bytes moved.
    """
    with (
        EngineProcess(model, Role.PREFILL, config, logs / "prefill.log", devices[0]) as prefill,
        EngineProcess(model, Role.DECODE, config, logs / "decode.log", devices[1]) as decode,
    ):
        prefill.ready()
        decode.ready()
        found: list[Record] = []
        backwards = list(requests[::-1])
        moved = 0
        for start in range(0, len(backwards), wave):
            part = backwards[start : start + wave]
            firsts = prefill.run(Job(part, hand_off=True)).records
            run = decode.run(Job(part, resume=firsts))
            moved = run.load_after.kv_pulled_bytes
            found += [first.joined(later) for first, later in zip(firsts, run.records, strict=True)]
        return differences("p/d", reference, found[::-1]), moved
