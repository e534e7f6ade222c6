"""Prompt logprobs in pieces of N rows, for vLLM's V2 model runner.

vLLM 0.32.0 computes them over all tokens of a step, 1,024 rows at a time, and as many of the likeliest tokens
for each row as the step's greediest request asks for. LM head and top-k get other shapes then, and tokens of
equal logprob another order, by what else is in the step.
"""

import inspect
from typing import Any

import torch
from torch.nn.functional import pad
from vllm.v1.worker.gpu.sample import prompt_logprob
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores

from corun_pd.errors import SetupError

__all__ = ["install"]

_NAME = "compute_prompt_logprobs_with_chunking"
_PARAMETERS = (
    "prompt_token_ids",
    "prompt_hidden_states",
    "logits_fn",
    "num_prompt_logprobs",
    "logprobs_mode",
)


def install(rows: int, width: int) -> None:
    """Has this process's V2 runner compute `rows` rows at a time, `width` likeliest tokens for each.

    Raises SetupError when vLLM's function is not the one that this replaces.
    """
    stock = getattr(prompt_logprob, _NAME, None)
    if stock is None or tuple(inspect.signature(stock).parameters) != _PARAMETERS:
        raise SetupError(f"vLLM's {_NAME} is not that of 0.32.0; prompt logprobs cannot be made exact")

    def compute(
        prompt_token_ids: torch.Tensor, prompt_hidden_states: torch.Tensor, logits_fn: Any, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens: [T]; hidden: [T, hidden]. Returns ids and logprobs [T, 1 + width], and ranks [T]."""
        pieces = []
        for targets, hidden in zip(
            prompt_token_ids.to(torch.int64).split(rows), prompt_hidden_states.split(rows), strict=True
        ):
            used = targets.shape[0]
            logits = logits_fn(pad(hidden, (0, 0, 0, rows - used)))
            scores = compute_topk_scores(logits, width, pad(targets, (0, rows - used)))
            pieces.append(
                (
                    scores.logprob_token_ids[:used],
                    scores.logprobs[:used],
                    scores.selected_token_ranks[:used],
                )
            )
        ids, logprobs, ranks = (torch.cat(columns) for columns in zip(*pieces, strict=True))
        return ids, logprobs, ranks

    setattr(prompt_logprob, _NAME, compute)
