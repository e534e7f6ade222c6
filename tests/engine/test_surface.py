"""Whatever is asked for, the answer is one: alone, in a crowd, apart, streamed, by file.

`make test` draws 100 requests, the same each time; `make test-exhaustive` 2,000 others.
"""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from corun_pd.client import AsyncClient, GenerationResult, Options
from tests.engine.surface import OPTIONS, Drawn, Outcome, one_answer, request_sets
from tests.engine.workload import until_idle

#: Requests that run at once: more than the engines have rows.
SIZE = 20

#: Hypothesis begins with two sets that are the same whatever its seed.
FIXED_SETS = 2

#: What is no part of how tokens are drawn and written.
NOT_DRAWN = {"generation_id", "messages", "route", "tokens_only"}


def draw_sets(number: int, count: int, skip: int = 0) -> list[list[Drawn]]:
    """`count` sets of requests, after `skip` that are left out: the same for the same number."""
    found: list[list[Drawn]] = []

    @seed(number)
    @settings(
        max_examples=skip + count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=request_sets(SIZE))
    def collect(drawn: list[Drawn]) -> None:
        found.append(drawn)

    collect()
    return found[skip:]


async def hold(client: AsyncClient, model: str, folder: Path, sets: list[list[Drawn]]) -> list[Outcome]:
    """Fails when a request has two answers, or leaves anything behind. Returns the outcomes.

    Nothing is shrunk: a difference names its request, and a smaller crowd costs as much time again.
    """
    outcomes: list[Outcome] = []
    for drawn in sets:
        found, differences = await one_answer(client, drawn, model, folder)
        assert not differences, "\n".join(differences)
        outcomes += found
        await until_idle(client)
    return outcomes


def test_the_draws_hold_every_option() -> None:
    """Each of the client's options often, with and without a seed; 2,100 requests, no two of them alike."""
    sets = draw_sets(0, 5) + [one for n in range(1, 11) for one in draw_sets(n, 10, FIXED_SETS)]
    drawn = [one for requests in sets for one in requests]
    assert len({repr(one) for one in drawn}) == len(drawn) == 2100
    assert set(OPTIONS) | {"seed"} == (set(Options.__annotations__) - NOT_DRAWN) | {"eos_bias"}
    for some in (drawn[:100], drawn):
        counts = Counter(name for one in some for name in one.options)
        assert all(counts[name] > len(some) // 10 for name in set(OPTIONS) - {"eos_bias"}), counts
        assert len(some) // 20 < len(some) - counts["seed"] < len(some) // 4


@pytest.mark.asyncio(loop_scope="session")
async def test_drawn_requests_have_one_answer(client: AsyncClient, model: Path, tmp_path: Path) -> None:
    """100 requests, of six options as a rule."""
    outcomes = await hold(client, model.name, tmp_path, draw_sets(0, 5))
    assert len(outcomes) == 5 * SIZE


@pytest.mark.exhaustive
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("number", range(1, 11))
async def test_many_drawn_requests_have_one_answer(
    client: AsyncClient, model: Path, tmp_path: Path, number: int
) -> None:
    """200 requests each; nearly all of them are answered, at every kind of end."""
    outcomes = await hold(client, model.name, tmp_path, draw_sets(number, 10, FIXED_SETS))
    answers = [outcome for outcome in outcomes if isinstance(outcome, GenerationResult)]
    ends = Counter(
        (choice.finish_reason.value, type(choice.stop_reason).__name__)
        for answer in answers
        for choice in answer.choices
    )
    refusals = Counter(str(outcome) for outcome in outcomes if not isinstance(outcome, GenerationResult))
    print(f"draw {number}: {len(outcomes)} requests, {len(answers)} answered, {dict(ends)}, {dict(refusals)}")
    assert len(outcomes) == 10 * SIZE
    assert len(answers) > 0.9 * len(outcomes)
    assert len(ends) == 4
