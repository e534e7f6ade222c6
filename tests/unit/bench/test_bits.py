"""Comparing runs of one engine: an engine whose answers depend on company must be found out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from corun_pd.bench.bits import Agreement, _waves, check_company, differences
from corun_pd.bench.records import Job, Record, Run
from corun_pd.bench.workloads import EngineRequest, mixed_requests
from corun_pd.core import InstanceLoad

REQUESTS = mixed_requests(20, chunk=64, block=16, vocabulary=50, longest=100, output=4)
OTHERS = mixed_requests(6, chunk=64, block=16, vocabulary=50, longest=100, output=4, seed=11)


def answer(request: EngineRequest, company: int) -> Record:
    tokens = (sum(request.prompt) % 50, request.sampling.seed or 0, company)
    return Record(tokens, ((-0.5,),), "length", 0.0, 1.0, 2.0)


@dataclass
class MockEngine:
    """Answers by `of` from a request, its place and how many requests are in the job."""

    of: Callable[[EngineRequest, int, Job], Record]
    jobs: list[Job]

    def run(self, job: Job) -> Run:
        self.jobs.append(job)
        records = tuple(self.of(request, at, job) for at, request in enumerate(job.requests))
        return Run(records, 10.0, InstanceLoad(), InstanceLoad(), ())


def check(
    of: Callable[[EngineRequest, int, Job], Record], **more: object
) -> tuple[dict[str, Agreement], MockEngine]:
    engine = MockEngine(of, [])
    found, _ = check_company(engine, REQUESTS, OTHERS, 5, **more)  # type: ignore[arg-type]
    return {one.run: one for one in found}, engine


def test_an_engine_that_looks_at_the_request_alone_agrees_everywhere() -> None:
    """Answers come back to their requests from every order."""
    found, engine = check(lambda request, at, job: answer(request, 0))
    assert {run: (one.same_bits, one.requests) for run, one in found.items()} == {
        "alone": (5, 5),
        "reversed": (20, 20),
        "crowd": (20, 20),
    }
    assert [(len(job.requests), job.concurrency) for job in engine.jobs] == [
        (20, None),
        (5, 1),
        (20, None),
        (26, None),
    ]


def test_an_engine_that_looks_at_places_is_found_out_by_the_reversed_run() -> None:
    """Only what keeps its place agrees; of 20 requests reversed none does."""
    found, _ = check(lambda request, at, job: answer(request, at))
    assert found["reversed"].same_bits == found["reversed"].same_tokens == 0


def test_an_engine_that_looks_at_the_batch_is_found_out_by_the_crowd_and_alone() -> None:
    """The reversed run has as many requests as the reference, and agrees."""
    found, _ = check(lambda request, at, job: answer(request, len(job.requests)))
    assert (found["alone"].same_bits, found["reversed"].same_bits, found["crowd"].same_bits) == (0, 20, 0)


def test_runs_without_room_are_left_out_and_their_estimates_grow_with_the_requests() -> None:
    """A batch of 20 took 10 s."""
    asked: dict[str, float] = {}

    def has_room(run: str, needed_s: float) -> bool:
        asked[run] = needed_s
        return run == "alone"

    found, engine = check(lambda request, at, job: answer(request, 0), has_room=has_room)
    assert list(found) == ["alone"]
    assert asked == {"alone": 25.0, "reversed": 10.0, "crowd": 13.0}
    assert len(engine.jobs) == 2


def test_each_run_is_told_as_it_ends() -> None:
    """What comes later may not come at all."""
    told: list[tuple[str, int]] = []
    engine = MockEngine(lambda request, at, job: answer(request, 0), [])
    check_company(
        engine,
        REQUESTS,
        OTHERS,
        5,
        lambda agreement: told.append((agreement.run, len(engine.jobs))),  # type: ignore[arg-type]
    )
    assert told == [("alone", 2), ("reversed", 3), ("crowd", 4)]


def test_bits_are_more_than_tokens() -> None:
    """Equal tokens with another logprob, and with another finish reason."""
    record = answer(REQUESTS[0], 0)
    others = [record, replace(record, logprobs=((-0.25,),)), replace(record, finish="stop")]
    found = differences("x", [record] * 3, others, 1.5)
    assert found == Agreement("x", 3, same_tokens=3, same_bits=1, seconds=1.5)


def lengths(waves: Sequence[Sequence[EngineRequest]]) -> list[list[int]]:
    return [[len(request.prompt) for request in wave] for wave in waves]


def make_requests(*prompts: int) -> list[EngineRequest]:
    return [replace(REQUESTS[0], prompt=(1,) * prompt) for prompt in prompts]


def test_waves_keep_the_order_and_fill_no_more_than_their_blocks() -> None:
    """16 tokens a block, 4 blocks a wave; a prompt of 17 tokens takes two."""
    assert lengths(_waves(make_requests(17, 32, 1, 64, 16, 16), 4, 16, 99)) == [[17, 32], [1], [64], [16, 16]]


def test_waves_hold_no_more_requests_than_slots() -> None:
    """Each request of a wave takes a row."""
    assert lengths(_waves(make_requests(1, 1, 1, 1, 1), 100, 16, 2)) == [[1, 1], [1, 1], [1]]


def test_a_prompt_above_a_waves_share_is_a_wave_of_its_own() -> None:
    """It still fits the pool, of which a wave's share is a third."""
    assert lengths(_waves(make_requests(1, 500, 1), 4, 16, 99)) == [[1], [500], [1]]
