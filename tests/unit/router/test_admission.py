"""Who goes next, and what is held meanwhile."""

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corun_pd.config import RouterConfig
from corun_pd.core import InstanceInfo, Role
from corun_pd.errors import InvalidRequest, Overloaded, Unavailable
from corun_pd.router.admission import Admission, Reservation
from corun_pd.router.policy import Demand, Ledger, Route

INFO = InstanceInfo("i", Role.DECODE, "a:1", "f", {}, "m", 2, 100, 16, 4096, 2048, 1, 20, 512)
NAMES = itertools.count()
SMALL = Demand(16, 16)
APART = Route.DISAGGREGATED


def make(
    *roles: Role, router: dict[str, Any] | None = None, **fields: Any
) -> tuple[Admission[Ledger], list[Ledger]]:
    admission: Admission[Ledger] = Admission(RouterConfig(**{"decode_lookahead": 0, **(router or {})}))
    ledgers = [Ledger(replace(INFO, role=role, instance_id=f"i{next(NAMES)}", **fields)) for role in roles]
    for ledger in ledgers:
        admission.join(ledger)
    return admission, ledgers


def pair(**fields: Any) -> tuple[Admission[Ledger], list[Ledger]]:
    return make(Role.PREFILL, Role.DECODE, **fields)


def held(ledgers: list[Ledger]) -> list[tuple[int, int, int]]:
    return [(ledger.legs, ledger.blocks, ledger.prompt_tokens) for ledger in ledgers]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_room_is_reserved_on_both_sides_before_prefill() -> None:
    """Prompt on the prefill instance; slot, prompt and answer on the decode instance."""
    admission, ledgers = pair()
    with await admission.admit(APART, Demand(17, 16)) as room:
        assert held(ledgers) == [(1, 2, 17), (1, 3, 0)]
        room.prompt_computed()
        assert held(ledgers) == [(0, 2, 0), (1, 3, 0)]
        room.prompt_pulled()
        assert held(ledgers) == [(0, 0, 0), (1, 3, 0)]
    assert held(ledgers) == [(0, 0, 0), (0, 0, 0)]


async def test_single_token_takes_no_decode_room() -> None:
    """It ends at the prefill instance, however full decode is."""
    admission, ledgers = pair()
    rooms = [await admission.admit(APART, SMALL) for _ in range(2)]
    with await admission.admit(APART, Demand(16, 1)) as room:
        assert room.decode is None
        assert ledgers[1].legs == 2
    for room in rooms:
        room.close()
    assert held(ledgers) == [(0, 0, 0), (0, 0, 0)]


async def test_waiters_are_served_in_the_order_of_arrival() -> None:
    """A small one does not overtake a large one that waits at the head."""
    admission, ledgers = pair(blocks=8)
    first = await admission.admit(APART, Demand(16, 80))  # 6 of 8 blocks
    order: list[str] = []

    async def wait(name: str, demand: Demand) -> Reservation[Ledger]:
        room = await admission.admit(APART, demand)
        order.append(name)
        return room

    large = asyncio.create_task(wait("large", Demand(16, 64)))
    small = asyncio.create_task(wait("small", Demand(1, 2)))
    await settle()
    assert order == []
    assert admission.waiting == 2
    first.close()
    await settle()
    assert order == ["large", "small"]
    (await large).close()
    (await small).close()
    assert held(ledgers) == [(0, 0, 0), (0, 0, 0)]


async def test_joining_instance_wakes_waiters() -> None:
    """They need not wait for anything to end."""
    admission, _ = pair(slots=1)
    first = await admission.admit(APART, SMALL)
    waiter = asyncio.create_task(admission.admit(APART, SMALL))
    await settle()
    newcomer = Ledger(replace(INFO, instance_id="new"))
    admission.join(newcomer)
    assert (await waiter).decode is newcomer
    first.close()


async def test_cancelled_waiter_leaves_nothing_behind() -> None:
    """Nor does it hold up those behind it."""
    admission, ledgers = pair(blocks=8)
    first = await admission.admit(APART, Demand(16, 80))
    large = asyncio.create_task(admission.admit(APART, Demand(16, 100)))
    small = asyncio.create_task(admission.admit(APART, Demand(1, 2)))
    await settle()
    large.cancel()
    await settle()
    assert small.done()
    (await small).close()
    first.close()
    assert held(ledgers) == [(0, 0, 0), (0, 0, 0)]
    assert admission.waiting == 0


async def test_cancellation_that_crosses_the_turn_gives_the_room_back() -> None:
    """The room was reserved for a task that will never see it."""
    admission, ledgers = pair(slots=1)
    first = await admission.admit(APART, SMALL)
    waiter = asyncio.create_task(admission.admit(APART, SMALL))
    await settle()
    first.close()  # reserves for the waiter, which has not run yet
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert held(ledgers) == [(0, 0, 0), (0, 0, 0)]


@pytest.mark.parametrize(("present", "missing"), [(Role.PREFILL, "decode"), (Role.DECODE, "prefill")])
async def test_missing_role_is_unavailable_at_once(present: Role, missing: str) -> None:
    """Not a hang, and not 'overloaded'."""
    admission, _ = make(present)
    with pytest.raises(Unavailable, match=f"no {missing} instance has joined"):
        await admission.admit(APART, SMALL)


async def test_waiters_fail_when_their_last_instance_leaves() -> None:
    """Those that another instance can still serve go on waiting."""
    admission, ledgers = pair(slots=1)
    await admission.admit(APART, SMALL)
    waiter = asyncio.create_task(admission.admit(APART, SMALL))
    await settle()
    admission.leave(ledgers[1])
    with pytest.raises(Unavailable, match="no decode instance"):
        await waiter
    assert admission.waiting == 0


async def test_sample_that_fits_no_pool_is_refused_at_once() -> None:
    """It says what it takes and what there is."""
    admission, _ = pair(blocks=4)
    with pytest.raises(
        InvalidRequest, match="takes 65 tokens of KV cache on a decode instance; the largest has 64"
    ):
        await admission.admit(APART, Demand(16, 49))


async def test_prompt_that_fills_the_prefill_pool_is_let_in_and_one_token_more_is_named() -> None:
    """A prompt that is handed off takes the blocks of its own tokens; y0 is computed where it goes."""
    admission, ledgers = make(Role.PREFILL, Role.DECODE, blocks=4)
    ledgers[1].info = replace(ledgers[1].info, blocks=1000)
    with await admission.admit(APART, Demand(64, 9)):
        assert ledgers[0].free_blocks == 0
    with pytest.raises(InvalidRequest, match="takes 65 tokens of KV cache on a prefill") as error:
        await admission.admit(APART, Demand(65, 9))
    assert error.value.field == "prompt"


async def test_full_queue_says_when_to_come_back() -> None:
    """From the rate at which samples ended lately."""
    admission, _ = pair(slots=1, router={"max_waiting": 1})
    for _ in range(4):
        (await admission.admit(APART, SMALL)).close()
        await asyncio.sleep(0.01)
    first = await admission.admit(APART, SMALL)
    waiter = asyncio.create_task(admission.admit(APART, SMALL))
    await settle()
    with pytest.raises(Overloaded) as refusal:
        await admission.admit(APART, SMALL)
    assert 0.1 <= refusal.value.retry_delay_s < 1.0
    first.close()
    (await waiter).close()


async def test_unpulled_handoffs_hold_prompts_back() -> None:
    """A prefill pool full of finished prompts takes no more until one is pulled."""
    admission, ledgers = make(Role.PREFILL, Role.DECODE, slots=8, blocks=16)
    rooms = [await admission.admit(APART, Demand(64, 2)) for _ in range(3)]
    ledgers[0].info = replace(ledgers[0].info, blocks=12)
    for room in rooms:
        room.prompt_computed()
    waiter = asyncio.create_task(admission.admit(APART, Demand(1, 2)))
    await settle()
    assert not waiter.done()
    rooms[0].prompt_pulled()
    (await waiter).close()
    for room in rooms:
        room.close()
    assert held(ledgers) == [(0, 0, 0), (0, 0, 0)]


async def test_siblings_share_the_room_of_their_prompt() -> None:
    """It is counted once, and free with the last that has pulled it; each has its own at decode."""
    admission, ledgers = pair(slots=4)
    rooms = await admission.admit_siblings(APART, Demand(17, 16), 3)
    assert held(ledgers) == [(1, 2, 17), (3, 9, 0)]
    rooms[0].prompt_computed()
    assert held(ledgers)[0] == (0, 2, 0)
    for room in rooms[:2]:
        room.prompt_pulled()
        room.prompt_pulled()
    assert held(ledgers)[0] == (0, 2, 0)
    for room in rooms:
        room.close()
    assert held(ledgers) == [(0, 0, 0), (0, 0, 0)]


async def test_siblings_stand_in_line_behind_one_that_finds_a_slot() -> None:
    """So that no row is padding because a whole group of free slots is waited for."""
    admission, ledgers = pair(slots=4)
    first = await admission.admit_siblings(APART, SMALL, 3)
    second = await admission.admit_siblings(APART, SMALL, 3)
    assert ledgers[1].legs == 6
    third = asyncio.create_task(admission.admit_siblings(APART, SMALL, 3))
    await settle()
    assert not third.done()
    assert admission.waiting == 3
    for room in first:
        room.close()
    rooms = [*second, *await third]
    assert admission.waiting == 0
    for room in rooms:
        room.close()
    assert held(ledgers) == [(0, 0, 0), (0, 0, 0)]


async def test_siblings_wait_for_the_kv_of_all() -> None:
    """KV never waits for room at decode: six blocks do not hold three samples of three."""
    admission, ledgers = make(Role.PREFILL, Role.DECODE, slots=4, blocks=9)
    first = await admission.admit(APART, Demand(17, 16))
    waiter = asyncio.create_task(admission.admit_siblings(APART, Demand(17, 16), 3))
    await settle()
    assert not waiter.done()
    first.close()
    rooms = await waiter
    assert ledgers[1].free_blocks == 0
    for room in rooms:
        room.close()


@pytest.mark.parametrize(("slots", "blocks", "most"), [(2, 100, 2), (8, 9, 3)])
async def test_siblings_come_in_parts_where_the_fleet_holds_no_more(
    slots: int, blocks: int, most: int
) -> None:
    """As many as slots and KV of an idle fleet allow."""
    admission, _ = pair(slots=slots, blocks=blocks)
    rooms = await admission.admit_siblings(APART, Demand(17, 16), 20)
    assert len(rooms) == most
    for room in rooms:
        room.close()


async def test_cancelled_siblings_leave_nothing_behind() -> None:
    """In the queue, and in the moment of their turn."""
    admission, ledgers = pair(slots=2)
    for turns in (False, True):
        first = await admission.admit_siblings(APART, SMALL, 2)
        waiter = asyncio.create_task(admission.admit_siblings(APART, SMALL, 2))
        await settle()
        if turns:
            for room in first:
                room.close()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        for room in first:
            room.close()
        assert held(ledgers) == [(0, 0, 0), (0, 0, 0)]
        assert admission.waiting == 0


async def test_routes_do_not_hold_each_other_up() -> None:
    """They wait for different instances."""
    admission, _ = make(Role.PREFILL, Role.DECODE, Role.COLOCATED, slots=1)
    rooms = [await admission.admit(APART, SMALL)]
    waiter = asyncio.create_task(admission.admit(APART, SMALL))
    await settle()
    rooms.append(await admission.admit(Route.COLOCATED, SMALL))
    for room in rooms:
        room.close()
    (await waiter).close()


@pytest.mark.parametrize(
    ("roles", "route"),
    [
        ([Role.PREFILL, Role.DECODE, Role.COLOCATED], Route.DISAGGREGATED),
        ([Role.PREFILL, Role.COLOCATED], Route.COLOCATED),
        ([Role.STANDARD], Route.COLOCATED),
        ([], Route.DISAGGREGATED),
    ],
)
def test_unspecified_route_is_apart_when_the_fleet_can(roles: list[Role], route: Route) -> None:
    """Else colocated."""
    assert make(*roles)[0].route(None) is route


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200), st.integers(0, 3)), max_size=40))
def test_everything_comes_back(work: list[tuple[int, int, int]]) -> None:
    """Whatever is admitted, cancelled or finished, in whatever order: ledgers are empty at the end."""

    async def run() -> None:
        admission, ledgers = make(Role.PREFILL, Role.DECODE, Role.DECODE, blocks=32)

        async def sample(prompt: int, answer: int, turns: int) -> None:
            with await admission.admit(APART, Demand(prompt, answer)) as room:
                for _ in range(turns):
                    await asyncio.sleep(0)
                room.prompt_computed()
                await asyncio.sleep(0)
                if turns % 2:
                    room.prompt_pulled()
                assert all(ledger.free_blocks >= 0 for ledger in ledgers)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(sample(*item)) for item in work]
        await asyncio.sleep(0)
        for task, (_, _, turns) in zip(tasks, work, strict=True):
            if turns == 3:
                task.cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert held(ledgers) == [(0, 0, 0)] * 3
        assert admission.waiting == 0

    asyncio.run(run())
