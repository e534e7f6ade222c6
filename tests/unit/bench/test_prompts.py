"""The workload of the contract check."""

from dataclasses import replace

from corun_pd.bench.prompts import FleetShape, make_crowd, make_requests, prompt_lengths

SHAPE = FleetShape(32, 64, 1024, 20, 512, 8)


def test_block_and_chunk_borders_and_their_neighbours_are_covered() -> None:
    """A split that depends on company would show there."""
    assert {1, 31, 32, 33, 63, 64, 65, 127, 128, 129} <= set(prompt_lengths(SHAPE, 32, 16))


def test_no_prompt_exceeds_the_models_limit() -> None:
    """Chunks may be longer than the model allows."""
    shape = replace(SHAPE, prefill_tokens=2048, max_model_tokens=100)
    lengths = prompt_lengths(shape, 64, 16)
    assert len(lengths) == 64
    assert max(lengths) <= 84


def test_requests_are_the_same_every_time() -> None:
    """Two processes, and two runs on one, make the same workload."""
    assert make_requests(SHAPE, 40, 16) == make_requests(SHAPE, 40, 16)


def test_every_kind_of_sampling_meets_seeds_and_logprobs() -> None:
    """Greedy, truncated and many-sample requests all pin their seed and ask for logprobs."""
    requests = make_requests(SHAPE, 32, 16)
    assert {request.options.get("temperature") for request in requests} == {0.0, 0.8}
    assert any(request.options.get("n") == 2 for request in requests)
    assert len({request.options["seed"] for request in requests}) == 32
    assert all(request.options["logprobs"] == 5 for request in requests)


def test_crowd_shares_no_seed_with_the_requests() -> None:
    """The crowd is other requests, and more of them than slots."""
    seeds = {request.options["seed"] for request in make_requests(SHAPE, 32, 16)}
    crowd = make_crowd(SHAPE, 16)
    assert len(crowd) == 24
    assert not seeds & {request.options["seed"] for request in crowd}
