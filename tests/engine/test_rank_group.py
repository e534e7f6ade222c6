"""Sums over ranks in processes of their own: the tree is in the order that it says, the ring is a sum too."""

from collections.abc import Iterator

import pytest
import torch

from corun_pd.engine.vllm.fixed_tree import tree_sum
from corun_pd.engine.vllm.rank_group import RankGroup, bank_of

RANKS, ROWS, WIDTH, DTYPE = 4, 32, 64, torch.bfloat16


@pytest.fixture(scope="module")
def group() -> Iterator[RankGroup]:
    with RankGroup(RANKS, ROWS, WIDTH, DTYPE, "cpu") as group:
        yield group


def terms(rows: torch.Tensor) -> list[torch.Tensor]:
    """What each rank adds."""
    return [bank_of(rank, (ROWS, WIDTH), DTYPE)[rows] for rank in range(RANKS)]


def test_tree_adds_pairs_of_neighbours_and_rounds_each_time() -> None:
    """An odd one waits for the next level; one term is its own sum."""
    a, b, c, d, e = torch.randn((5, 64), generator=torch.Generator().manual_seed(1)).to(DTYPE)
    expected = ((a + b) + (c + d)) + e
    assert torch.equal(tree_sum(torch.stack([a, b, c, d, e])), expected)
    assert not torch.equal(expected, (((a + b) + c) + d) + e)  # The order shows in the bits.
    assert torch.equal(tree_sum(a[None]), a)


def test_ranks_add_in_the_order_of_the_tree_wherever_a_row_is(group: RankGroup) -> None:
    """Alone, among all, and backwards."""
    rows = torch.arange(ROWS)
    a, b, c, d = terms(rows)
    expected = (a + b) + (c + d)
    assert torch.equal(group.all_reduce("fixed tree", rows), expected)
    assert torch.equal(group.all_reduce("fixed tree", rows.flip(0)), expected.flip(0))
    for row in (0, 17):
        assert torch.equal(group.all_reduce("fixed tree", torch.tensor([row]))[0], expected[row])


def test_ring_gives_the_sum_in_an_order_that_the_place_decides(group: RankGroup) -> None:
    """Right but for rounding, which is another one elsewhere in the buffer."""
    rows = torch.arange(ROWS)
    exact = torch.stack(terms(rows)).double().sum(dim=0)
    found, backwards = group.all_reduce("ring", rows), group.all_reduce("ring", rows.flip(0)).flip(0)
    assert torch.allclose(found.double(), exact, atol=0.1)
    assert torch.allclose(backwards.double(), exact, atol=0.1)
    assert not torch.equal(found, backwards)


def test_rank_that_fails_is_named(group: RankGroup) -> None:
    """With what it said. The last test of the group: its ranks have ended then."""
    with pytest.raises(RuntimeError, match=r"rank 0 of 4: .*out of bounds"):
        group.all_reduce("fixed tree", torch.tensor([1000]))
