"""The bridge from an engine to its calls."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from corun_pd.core import FinishReason, FirstToken, InstanceLoad, KvHandoff, RngState, SamplingParams
from corun_pd.engine import legs as legs_module
from corun_pd.engine.base import EngineInfo, LegOutput, LegWork
from corun_pd.engine.legs import LegHost, LegSession, SessionOutput
from corun_pd.errors import EngineFailed, InvalidRequest, Unavailable

SAMPLING = SamplingParams(max_tokens=4, seed=0)
HANDOFF = KvHandoff("h", "e", "host", 1, ((0,),), 1, b"", "f", lease_s=60.0)


class ScriptedEngine:
    """Gives the steps that a test puts in; notes what it is told."""

    def __init__(self) -> None:
        self.script: asyncio.Queue[list[LegOutput] | EngineFailed | None] = asyncio.Queue()
        self.works: list[LegWork] = []
        self.cancelled: list[str] = []
        self.released: list[str] = []

    async def start(self) -> EngineInfo:
        return None  # type: ignore[return-value]  # LegHost only passes it on

    def submit(self, work: LegWork) -> None:
        self.works.append(work)

    def cancel(self, leg: str) -> None:
        self.cancelled.append(leg)

    def release(self, handoff_id: str) -> None:
        self.released.append(handoff_id)

    async def steps(self) -> AsyncIterator[Sequence[LegOutput]]:
        while (step := await self.script.get()) is not None:
            if isinstance(step, EngineFailed):
                raise step
            yield step

    async def load(self) -> InstanceLoad:
        return InstanceLoad()

    async def close(self) -> None:
        self.script.put_nowait(None)


@pytest.fixture
async def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
async def host(engine: ScriptedEngine) -> AsyncIterator[LegHost]:
    host = LegHost(engine)
    await host.start()
    pump = asyncio.create_task(host.run())
    yield host
    await engine.close()
    await asyncio.gather(pump, return_exceptions=True)


async def all_of(session: LegSession) -> list[SessionOutput]:
    session.finish()
    return [row async for batch in session.batches() for row in batch]


async def test_a_leg_that_does_not_stream_gathers_its_tokens(host: LegHost, engine: ScriptedEngine) -> None:
    """An engine that gives a token a step needs no second path."""
    session = host.open()
    session.start(1, (1,), SAMPLING, stream=False)
    name = engine.works[0].leg
    engine.script.put_nowait([LegOutput(name, (5,))])
    engine.script.put_nowait([LegOutput(name, (6,), finish_reason=FinishReason.LENGTH)])
    assert await all_of(session) == [(1, LegOutput(name, (5, 6), finish_reason=FinishReason.LENGTH))]


async def test_a_resumed_leg_that_does_not_stream_tells_of_its_pull_once(
    host: LegHost, engine: ScriptedEngine
) -> None:
    """The router gives the prefill side's blocks back when it hears of the pull."""
    session = host.open()
    first = FirstToken(9, RngState("s", 0, 1))
    session.start(1, (1,), SAMPLING, stream=False, resume=(first, HANDOFF))
    name = engine.works[0].leg
    for token in (5, 6):
        engine.script.put_nowait([LegOutput(name, (token,))])
    engine.script.put_nowait([LegOutput(name, (7,), finish_reason=FinishReason.LENGTH)])
    rows = await all_of(session)
    assert rows == [
        (1, LegOutput(name)),
        (1, LegOutput(name, (5, 6, 7), finish_reason=FinishReason.LENGTH)),
    ]


async def test_the_end_of_a_session_cancels_its_legs_and_no_others(
    host: LegHost, engine: ScriptedEngine
) -> None:
    """Two routers share an engine; one goes away."""
    gone, stays = host.open(), host.open()
    gone.start(1, (1,), SAMPLING, stream=True)
    stays.start(1, (2,), SAMPLING, stream=True)
    gone.close()
    assert engine.cancelled == [engine.works[0].leg]
    engine.script.put_nowait(
        [LegOutput(work.leg, (3,), finish_reason=FinishReason.STOP) for work in engine.works]
    )
    assert [leg_id for leg_id, _ in await all_of(stays)] == [1]
    assert host.leg_count == 0


async def test_the_end_of_a_session_releases_its_open_handoffs(host: LegHost, engine: ScriptedEngine) -> None:
    """Those that the call released itself are not released twice."""
    session = host.open()
    for leg_id in (1, 2):
        session.start(leg_id, (1,), SAMPLING, stream=False, hand_off=True)
        handoff = replace(HANDOFF, handoff_id=f"h{leg_id}")
        engine.script.put_nowait([LegOutput(engine.works[-1].leg, (5,), handoff=handoff)])
    assert len(await all_of(session)) == 2
    session.release("h1")
    session.release("of another call")
    session.close()
    assert engine.released == ["h1", "h2"]


async def test_a_handoff_that_comes_after_its_cancellation_is_released(
    host: LegHost, engine: ScriptedEngine
) -> None:
    """The step was running when the cancellation came; nobody else knows of this ticket."""
    session = host.open()
    session.start(1, (1,), SAMPLING, stream=False, hand_off=True)
    session.cancel(1)
    engine.script.put_nowait([LegOutput(engine.works[0].leg, (5,), handoff=HANDOFF)])
    assert await all_of(session) == []
    await asyncio.sleep(0)
    assert engine.released == ["h"]


async def test_a_call_that_does_not_read_is_ended_and_costs_nobody_else(
    host: LegHost, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pump never waits for a call, and a call's outbox has an end."""
    monkeypatch.setattr(legs_module, "OUTBOX_LIMIT", 100)
    slow, quick = host.open(), host.open()
    slow.start(1, (1,), SAMPLING, stream=True)
    quick.start(1, (1,), SAMPLING, stream=True)
    slow_leg, quick_leg = (work.leg for work in engine.works)
    for _ in range(80):
        engine.script.put_nowait([LegOutput(slow_leg, (5,))])
    engine.script.put_nowait([LegOutput(quick_leg, (5,), finish_reason=FinishReason.STOP)])
    assert len(await all_of(quick)) == 1
    with pytest.raises(Unavailable, match="too slowly"):
        await all_of(slow)


async def test_the_death_of_the_engine_fails_every_leg_and_ends_every_call(
    host: LegHost, engine: ScriptedEngine
) -> None:
    """Never a hang, never a quiet end; and a leg that comes later is refused with the same error."""
    session = host.open()
    session.start(1, (1,), SAMPLING, stream=True)
    engine.script.put_nowait(EngineFailed("died"))
    rows: list[SessionOutput] = []
    with pytest.raises(EngineFailed, match="died"):  # noqa: PT012 - what came before it counts
        async for batch in session.batches():
            rows += batch
    assert [(leg_id, str(output.error)) for leg_id, output in rows] == [(1, "died")]
    late = host.open()
    late.start(1, (1,), SAMPLING, stream=True)
    assert str((await all_of(late))[0][1].error) == "died"


async def test_a_leg_id_in_use_is_refused(host: LegHost) -> None:
    """Two legs of one id could not be told apart."""
    session = host.open()
    session.start(1, (1,), SAMPLING, stream=True)
    with pytest.raises(InvalidRequest, match="1 is in use"):
        session.start(1, (1,), SAMPLING, stream=True)


async def test_what_gathers_goes_out_in_one_batch(host: LegHost, engine: ScriptedEngine) -> None:
    """A call that looks late gets everything at once, in order."""
    session = host.open()
    session.start(1, (1,), SAMPLING, stream=True)
    for token in range(3):
        engine.script.put_nowait([LegOutput(engine.works[0].leg, (token,))])
    while not engine.script.empty():
        await asyncio.sleep(0)
    batch = await anext(session.batches())
    assert [output.token_ids for _, output in batch] == [(0,), (1,), (2,)]
