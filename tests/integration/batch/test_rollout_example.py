"""examples/rollout.py, as it is, on fake engines."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from corun_pd.client import AsyncClient
from corun_pd.core import Role
from tests.integration.conftest import MakeCluster


def load_example() -> ModuleType:
    """The example as a module."""
    path = Path(__file__).parents[3] / "examples" / "rollout.py"
    spec = importlib.util.spec_from_file_location("rollout_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def test_rollouts_come_in_groups_prefill_once_and_are_the_same_on_another_cluster(
    make_cluster: MakeCluster,
) -> None:
    """Six samples a prompt, with a logprob for each token; another seed gives others."""
    example = load_example()
    found = []
    for prefill, decode, colocated, seed in ((1, 1, 0, 3), (2, 2, 0, 3), (0, 0, 1, 3), (1, 1, 0, 4)):
        async with (
            make_cluster(prefill=prefill, decode=decode, colocated=colocated, slots=8) as cluster,
            AsyncClient(cluster.address) as client,
        ):
            groups = [group async for group in example.rollouts(client, example.PROMPTS, size=6, seed=seed)]
            found.append({group.prompt: group.samples for group in groups})
            if prefill:
                loads = [await n.engine.load() for n in cluster.nodes if n.info.role is Role.PREFILL]
                assert sum(load.prefilled_tokens for load in loads) == sum(map(len, example.PROMPTS))
        assert set(found[-1]) == set(example.PROMPTS)
        for group in groups:
            assert len(group.samples) == 6
            assert all(len(one.logprobs or ()) == len(one.token_ids) > 0 for one in group.samples)
            assert sum(group.advantages) == pytest.approx(0, abs=1e-9)
            assert len({one.token_ids for one in group.samples}) > 1
    assert found[0] == found[1] == found[2]
    assert found[0] != found[3]
