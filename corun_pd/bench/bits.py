"""Whether an engine keeps the contract: the same requests in other company, bit for bit (paper V-B).

alone       one at a time (a share of the requests, since it is slow)
batch       all at once; the reference
reversed    all at once, in reverse order
crowd       all at once, in random order, between as many others
restart     all at once, in a new process
p/d         through a prefill and a decode engine, in reverse order
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from corun_pd.bench.process import EngineProcess, Job, Record, Run
from corun_pd.bench.workloads import EngineRequest
from corun_pd.config import EngineConfig
from corun_pd.core import Role

__all__ = ["Agreement", "check_company", "check_handover", "differences"]

#: A request alone takes about this many times what it takes among others: an estimate for `has_room`.
ALONE = 10


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many of `requests` requests equal the reference, in tokens and in all bits; how long they took."""

    run: str
    requests: int
    same_tokens: int
    same_bits: int
    seconds: float = 0.0


def differences(
    run: str, expected: Sequence[Record], found: Sequence[Record], seconds: float = 0.0
) -> Agreement:
    """Compares records pairwise."""
    pairs = list(zip(expected, found, strict=True))
    return Agreement(
        run=run,
        requests=len(pairs),
        same_tokens=sum(a.token_ids == b.token_ids for a, b in pairs),
        same_bits=sum(a.bits() == b.bits() for a, b in pairs),
        seconds=seconds,
    )


def check_company(
    engine: EngineProcess,
    requests: Sequence[EngineRequest],
    others: Sequence[EngineRequest],
    alone: int,
    add: Callable[[Agreement], None] = lambda agreement: None,
    has_room: Callable[[str, float], bool] = lambda run, needed_s: True,
) -> tuple[list[Agreement], Run]:
    """Runs them in other company on one engine; `add` is told of each run as it ends.

    `has_room` is asked, with the seconds that the reference took for as many requests, whether a run is to
    be made. Returns what agreed, and the reference.
    """
    batch = engine.run(Job(requests))
    reference, a_request_s = batch.records, batch.wall_s / len(requests)
    found: list[Agreement] = []

    def note(run: str, expected: Sequence[Record], records: Sequence[Record], seconds: float) -> None:
        found.append(differences(run, expected, records, seconds))
        add(found[-1])

    step = max(1, len(requests) // alone) if alone else len(requests) + 1
    few = list(range(0, len(requests), step))[:alone]
    if few and has_room("alone", ALONE * a_request_s * len(few)):
        solo = engine.run(Job([requests[i] for i in few], concurrency=1))
        note("alone", [reference[i] for i in few], solo.records, solo.wall_s)
    if has_room("reversed", batch.wall_s):
        backwards = engine.run(Job(requests[::-1]))
        note("reversed", reference, backwards.records[::-1], backwards.wall_s)
    mixed = [*requests, *others]
    if has_room("crowd", a_request_s * len(mixed)):
        order = list(range(len(mixed)))
        random.Random(3).shuffle(order)
        crowd = engine.run(Job([mixed[i] for i in order]))
        placed = dict(zip(order, crowd.records, strict=True))
        note("crowd", reference, [placed[i] for i in range(len(requests))], crowd.wall_s)
    return found, batch


def check_handover(
    model: Path,
    config: EngineConfig,
    requests: Sequence[EngineRequest],
    reference: Sequence[Record],
    logs: Path,
    devices: tuple[dict[str, str], dict[str, str]] = ({}, {}),
) -> tuple[Agreement, int]:
    """Runs them through a prefill and a decode engine, in reverse order.

    Handoffs go in waves that take at most a third of the smaller KV pool; one wave is computed while the
    wave before it decodes. `devices` are environment variables of the two processes. Returns what agreed
    and the bytes moved.
    """
    with (
        EngineProcess(model, Role.PREFILL, config, logs / "prefill.log", devices[0]) as prefill,
        EngineProcess(model, Role.DECODE, config, logs / "decode.log", devices[1]) as decode,
    ):
        info, other = prefill.ready(), decode.ready()
        waves = _waves(requests[::-1], min(info.blocks, other.blocks) // 3, info.block_tokens, info.slots)
        began_s = time.monotonic()
        prefill.begin(Job(waves[0], hand_off=True))
        found: list[Record] = []
        moved = 0
        for wave, later in zip(waves, [*waves[1:], None], strict=True):
            firsts = prefill.end().records
            if later is not None:
                prefill.begin(Job(later, hand_off=True))
            run = decode.run(Job(wave, resume=firsts))
            moved = run.load_after.kv_pulled_bytes
            found += [first.joined(rest) for first, rest in zip(firsts, run.records, strict=True)]
        return differences("p/d", reference, found[::-1], time.monotonic() - began_s), moved


def _waves(
    requests: Sequence[EngineRequest], blocks: int, block_tokens: int, most: int
) -> list[list[EngineRequest]]:
    """The requests in order, in waves of at most `most` whose prompts fill at most `blocks` KV blocks."""
    waves: list[list[EngineRequest]] = []
    used = blocks + 1
    for request in requests:
        need = -(-len(request.prompt) // block_tokens)
        if used + need > blocks or len(waves[-1]) >= most:
            waves.append([])
            used = 0
        waves[-1].append(request)
        used += need
    return waves
