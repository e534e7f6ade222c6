"""Shape-aligned sampling with request-bound variates, for vLLM's V1 sampler (Section IV-D).

The sampler's input is always N rows, and every branch that vLLM picks by what the batch holds is
pinned: greedy and random rows, top-k and top-p, and the width of logprobs take one path whoever else
runs. The variate of a row is a pure function of (seed, step), so nothing is drawn from a stream and
nothing has to be rolled back.
"""

import dataclasses
from collections.abc import Sequence

import torch
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.sampler import Sampler

__all__ = ["ShapeAlignedSampler"]


class ShapeAlignedSampler(Sampler):  # type: ignore[misc]
    """`rows` is N, or 0 to leave the batch as it is. `width` is the fixed number of top logprobs."""

    def __init__(self, logprobs_mode: str, rows: int, width: int) -> None:
        super().__init__(logprobs_mode=logprobs_mode)
        self.rows = rows
        self.width = width
        self.seeds: Sequence[int] = ()
        self.topk_topp_sampler.forward = self._draw

    def forward(
        self, logits: torch.Tensor, sampling_metadata: SamplingMetadata, *args: object, **kwargs: object
    ) -> SamplerOutput:
        """Samples a token a row. logits: [rows in use, vocabulary]."""
        used, vocabulary = logits.shape
        rows = max(self.rows, used)
        metadata = self._align(sampling_metadata, used, rows, vocabulary)
        with _MinPRows(metadata, rows):
            output = super().forward(_pad(logits, rows, 0.0), metadata, *args, **kwargs)
        output.sampled_token_ids = output.sampled_token_ids[:used]
        if output.logprobs_tensors is not None:
            columns = output.logprobs_tensors
            output.logprobs_tensors = columns._replace(
                logprob_token_ids=columns.logprob_token_ids[:used],
                logprobs=columns.logprobs[:used],
                selected_token_ranks=columns.selected_token_ranks[:used],
            )
        return output

    def _align(self, given: SamplingMetadata, used: int, rows: int, vocabulary: int) -> SamplingMetadata:
        """Metadata of N rows. A padding row is random at temperature 1 and keeps every token."""
        temperature = given.temperature
        if temperature is None:  # vLLM gives none when every row is greedy.
            temperature = torch.zeros(used)
        top_p = given.top_p if given.top_p is not None else torch.ones(used)
        top_k = given.top_k if given.top_k is not None else torch.full((used,), vocabulary, dtype=torch.int32)
        blank: list[list[int]] = [[] for _ in range(rows - used)]
        return dataclasses.replace(
            given,
            all_greedy=False,
            all_random=False,
            temperature=_pad(temperature, rows, 1.0),
            top_p=_pad(top_p, rows, 1.0),
            top_k=_pad(top_k, rows, vocabulary),
            max_num_logprobs=None if given.max_num_logprobs is None else self.width,
            prompt_token_ids=_pad(given.prompt_token_ids, rows, vocabulary),
            frequency_penalties=_pad(given.frequency_penalties, rows, 0.0),
            presence_penalties=_pad(given.presence_penalties, rows, 0.0),
            repetition_penalties=_pad(given.repetition_penalties, rows, 1.0),
            output_token_ids=[*given.output_token_ids, *blank] if given.output_token_ids else [],
            allowed_token_ids_mask=_pad(given.allowed_token_ids_mask, rows, False),
        )

    def _draw(
        self, logits: torch.Tensor, generators: object, k: torch.Tensor | None, p: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Gumbel-max over what top-k and top-p leave, with one seed a row."""
        seeds = torch.zeros(logits.shape[0], dtype=torch.long)
        seeds[: len(self.seeds)] = torch.tensor(self.seeds, dtype=torch.long)
        return torch.ops._C.fused_gumbel_argmax(apply_top_k_top_p(logits, k, p), seeds), None


class _MinPRows:
    """Min-p keeps a column of the rows in use; within the context it has all N, the rest zero."""

    def __init__(self, metadata: SamplingMetadata, rows: int) -> None:
        processors = metadata.logitsprocs.argmax_invariant
        self.active = [p for p in processors if isinstance(p, MinPLogitsProcessor) and p.min_p_count]
        self.rows = rows
        self.saved: list[torch.Tensor] = []

    def __enter__(self) -> None:
        self.saved = [processor.min_p for processor in self.active]
        for processor in self.active:
            processor.min_p = _pad(processor.min_p, self.rows, 0.0)

    def __exit__(self, *exception: object) -> None:
        for processor, column in zip(self.active, self.saved, strict=True):
            processor.min_p = column


def _pad(tensor: torch.Tensor | None, rows: int, value: float) -> torch.Tensor | None:
    if tensor is None or tensor.shape[0] >= rows:
        return tensor
    return torch.cat([tensor, tensor.new_full((rows - tensor.shape[0], *tensor.shape[1:]), value)])
