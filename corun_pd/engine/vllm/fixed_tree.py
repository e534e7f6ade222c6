"""The sum over tensor-parallel ranks, in an order that nothing can change (the paper's Table I).

Five ranks: ((0 + 1) + (2 + 3)) + 4, where each + rounds to the tensor's type, as a library's sums do.

Every rank gets the terms of all ranks and adds them up by itself. What crosses the wire is copied, never
added, so no choice of a library's (ring or tree, channels, chunks, all by size) can reach a bit; and the
additions are by element, so neither a row's place nor the number of rows can.
"""

import torch

__all__ = ["tree_sum"]


def tree_sum(terms: torch.Tensor) -> torch.Tensor:
    """The sum over the first dimension. terms: [ranks, ...], in the order of the ranks."""
    while (count := terms.shape[0]) > 1:
        sums = terms[0 : count - 1 : 2] + terms[1:count:2]
        terms = torch.cat([sums, terms[-1:]]) if count % 2 else sums
    return terms[0]
