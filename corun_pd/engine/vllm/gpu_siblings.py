"""First tokens of siblings on vLLM's V2 runner (CUDA). See `siblings` for what they are.

Draws stay on the device until the step's own output is fetched, so a step is launched without waiting.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample.output import SamplerOutput

from corun_pd.engine.vllm.siblings import Drawn, attach

__all__ = ["OutputWithSiblings", "Turn", "draw_turns", "ending_prompts"]

#: One more draw of all rows: which of them are siblings', by row the request, and what was drawn.
Turn = tuple[Mapping[int, str], SamplerOutput]


def ending_prompts(
    batch: InputBatch, prefill_lengths: Any, seeds: Mapping[int, Sequence[int]]
) -> dict[int, Sequence[int]]:
    """By row, the seeds of siblings of the requests whose prompt ends in this step.

    `prefill_lengths` and `seeds` are by the request's index; the lengths are in host memory.
    """
    lengths = batch.seq_lens_cpu_upper_bound
    return {
        row: seeds[index]
        for row, index in enumerate(batch.idx_mapping_np[: batch.num_reqs].tolist())
        if index in seeds and int(lengths[row]) == int(prefill_lengths[index])
    }


def draw_turns(
    states: Any,
    batch: InputBatch,
    siblings: Mapping[int, Sequence[int]],
    draw: Callable[[], SamplerOutput],
) -> list[Turn]:
    """Draws every row again with siblings' seeds in their rows, as often as one row has siblings.

    `states` are the sampler's SamplingStates, whose seeds are replaced meanwhile.
    """
    own = states.seeds.gpu
    turns: list[Turn] = []
    try:
        for turn in range(max(map(len, siblings.values()))):
            now = {row: others[turn] for row, others in siblings.items() if turn < len(others)}
            seeds = own.clone()
            indices = torch.tensor([int(batch.idx_mapping_np[row]) for row in now], device=seeds.device)
            seeds[indices] = torch.tensor(list(now.values()), dtype=seeds.dtype, device=seeds.device)
            states.seeds.gpu = seeds
            turns.append(({row: batch.req_ids[row] for row in now}, draw()))
    finally:
        states.seeds.gpu = own
    return turns


class OutputWithSiblings(AsyncModelRunnerOutput):  # type: ignore[misc]
    """A step's output that takes its siblings' along when it is fetched."""

    def __init__(self, output: AsyncModelRunnerOutput, turns: Sequence[Turn]) -> None:
        self.output = output
        self.turns = turns
        self.drawn = torch.cuda.Event(blocking=True)
        self.drawn.record()

    def get_output(self) -> ModelRunnerOutput:
        """Waits for the step."""
        output = self.output.get_output()
        self.drawn.synchronize()
        attach(output, _drawn(self.turns))
        return output


def _drawn(turns: Sequence[Turn]) -> dict[str, list[Drawn]]:
    found: dict[str, list[Drawn]] = {}
    for requests, output in turns:
        tokens = output.sampled_token_ids[:, 0].tolist()
        columns = output.logprobs_tensors and output.logprobs_tensors.tolists()
        for row, request in requests.items():
            draw = Drawn(int(tokens[row]), columns and columns.slice_request(row, 1))
            found.setdefault(request, []).append(draw)
    return found
