"""Whatever is asked for, the answer is one: alone, in a crowd, apart, streamed, by file.

`make test` draws 100 requests, the same each time; `make test-exhaustive` 2,000 others.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from corun_pd.client import AsyncClient, GenerationResult
from tests.engine.surface import Drawn, Outcome, one_answer, request_sets
from tests.engine.workload import until_idle

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Requests that run at once: more than the engines have rows.
SIZE = 20


async def hold(client: AsyncClient, model: str, folder: Path, draw: int, sets: int) -> list[Outcome]:
    """Draws `sets` sets of requests and has each give one answer on every way. Returns the outcomes.

    Nothing is shrunk: a difference names its request, and a smaller crowd costs as much time again.
    """
    loop = asyncio.get_running_loop()
    outcomes: list[Outcome] = []

    async def check(drawn: list[Drawn]) -> None:
        found, differences = await one_answer(client, drawn, model, folder)
        assert not differences, "\n".join(differences)
        outcomes.extend(found)
        await until_idle(client)

    @seed(draw)
    @settings(
        max_examples=sets,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=request_sets(SIZE))
    def every_set_has_one_answer(drawn: list[Drawn]) -> None:
        asyncio.run_coroutine_threadsafe(check(drawn), loop).result()

    await asyncio.to_thread(every_set_has_one_answer)
    return outcomes


async def test_drawn_requests_have_one_answer(client: AsyncClient, model: Path, tmp_path: Path) -> None:
    """100 requests of up to six options each."""
    outcomes = await hold(client, model.name, tmp_path, draw=0, sets=5)
    assert len(outcomes) == 5 * SIZE


@pytest.mark.exhaustive
@pytest.mark.parametrize("draw", range(1, 11))
async def test_many_drawn_requests_have_one_answer(
    client: AsyncClient, model: Path, tmp_path: Path, draw: int
) -> None:
    """200 requests each; nearly all of them are answered, at every kind of end."""
    outcomes = await hold(client, model.name, tmp_path, draw, sets=10)
    answers = [outcome for outcome in outcomes if isinstance(outcome, GenerationResult)]
    ends = Counter(
        (choice.finish_reason.value, type(choice.stop_reason).__name__)
        for answer in answers
        for choice in answer.choices
    )
    refusals = Counter(str(outcome) for outcome in outcomes if not isinstance(outcome, GenerationResult))
    print(f"draw {draw}: {len(outcomes)} requests, {len(answers)} answered, {dict(ends)}, {dict(refusals)}")
    assert len(outcomes) == 10 * SIZE
    assert len(answers) > 0.9 * len(outcomes)
    assert len(ends) == 4
