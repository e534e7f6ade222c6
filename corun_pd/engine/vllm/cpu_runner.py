"""Fixed-shape decode and shape-aligned sampling on vLLM's V1 model runner (CPU engines).

What is overridden, each with its place in vLLM 0.32.0: the padding decision
(`_determine_batch_execution_and_padding`), the logits (`model.compute_logits`), the sampler, and the
batch row of a request that arrives with its first token (`InputBatch.add_request`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import BatchDescriptor
from vllm.v1.outputs import SamplerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from corun_pd.config import Ablation
from corun_pd.engine.vllm.request import first_tokens_of, seed_of, sibling_seeds_of
from corun_pd.engine.vllm.sampler import ShapeAlignedSampler
from corun_pd.engine.vllm.settings import Settings
from corun_pd.engine.vllm.siblings import Drawn, attach
from corun_pd.engine.vllm.variates import mix

__all__ = ["CoRunCPUModelRunner"]


class CoRunCPUModelRunner(CPUModelRunner):  # type: ignore[misc]
    """Runs what the scheduler made of it: a step of prompts as it is or padded to T, or N rows."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.settings = Settings.from_vllm(vllm_config)
        self.pad_logits = self.settings.has(Ablation.SAMPLER_PADDING)
        self.sampler = ShapeAlignedSampler(
            logprobs_mode=self.model_config.logprobs_mode,
            rows=self.settings.slots if self.pad_logits else 0,
            width=self.settings.max_logprobs,
        )
        self.sampling_step = 0

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Loads the model and pads the rows that reach its LM head to N."""
        super().load_model(*args, **kwargs)
        if not self.pad_logits:
            return
        original, slots = self.model.compute_logits, self.settings.slots

        def compute_logits(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            # Prompt logprobs come with more rows than N, and take as many turns.
            logits = [
                original(pad(piece, (0, 0, 0, slots - piece.shape[0])), *args, **kwargs)[: piece.shape[0]]
                for piece in hidden.split(slots)
            ]
            return logits[0] if len(logits) == 1 else torch.cat(logits)

        self.model.compute_logits = compute_logits

    def _update_states(self, scheduler_output: Any) -> Any:
        # The batch may be made anew when the KV cache is set up, so it is wrapped where it is used.
        batch = self.input_batch
        if "add_request" not in vars(batch):
            original = batch.add_request

            def add_request(request: Any) -> Any:
                # The V1 runner is told of the prompt alone; the first token is an output token.
                if not request.output_token_ids:
                    request.output_token_ids.extend(first_tokens_of(request.sampling_params))
                return original(request)

            batch.add_request = add_request
        return super()._update_states(scheduler_output)

    def _is_decode_step(self) -> bool:
        """By state, never by shape: a one-token prompt looks like decode and is none."""
        batch = self.input_batch
        rows = batch.num_reqs
        return rows > 0 and bool(
            np.all(batch.num_computed_tokens_cpu[:rows] >= batch.num_prompt_tokens[:rows])
        )

    def _determine_batch_execution_and_padding(
        self,
        num_tokens: int,
        num_reqs: int,
        num_scheduled_tokens_np: np.ndarray,
        max_num_scheduled_tokens: int,
        **kwargs: Any,
    ) -> Any:
        decision = super()._determine_batch_execution_and_padding(
            num_tokens, num_reqs, num_scheduled_tokens_np, max_num_scheduled_tokens, **kwargs
        )
        if not self.input_batch.req_ids or not self.settings.has(Ablation.FIXED_SHAPE_DECODE):
            return decision
        rows = self.settings.slots
        if self._is_decode_step():
            tokens = rows
        elif self.settings.prefill_mode == "packed":
            tokens = self.settings.chunk_tokens
        elif num_reqs == 1:
            return decision
        else:
            raise RuntimeError(f"an isolated prefill step holds {num_reqs} prompts")
        # On CPU no graph is replayed; FULL is vLLM's word for "pad the attention metadata too".
        # What the last step left behind the tokens in use is overwritten.
        self.input_ids.gpu[num_tokens:tokens] = 0
        self.positions[num_tokens:tokens] = 0
        shape = BatchDescriptor(num_tokens=tokens, num_reqs=rows, uniform=tokens == rows)
        return (CUDAGraphMode.FULL, shape, *decision[2:])

    def _sample(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> SamplerOutput:
        batch = self.input_batch
        self.sampling_step += 1
        seeds = []
        siblings: dict[int, Sequence[int]] = {}
        for row, request_id in enumerate(batch.req_ids):
            params = self.requests[request_id].sampling_params
            seed = seed_of(params)
            step = int(self.optimistic_seq_lens_cpu[row]) - int(batch.num_prompt_tokens[row])
            if not self.settings.has(Ablation.REQUEST_RNG) and self.settings.ablate:
                seed, step = row, self.sampling_step  # The control: variates belong to the slot.
            elif step == 0 and (others := sibling_seeds_of(params)):
                siblings[row] = others
            seeds.append(mix(seed, step))
        self.sampler.seeds = seeds
        if not siblings or logits is None:
            return super()._sample(logits, spec_decode_metadata)
        kept = logits.clone()  # A draw may change them in place.
        output = super()._sample(logits, spec_decode_metadata)
        self._draw_siblings(kept, seeds, siblings)
        return output

    def _draw_siblings(
        self, logits: torch.Tensor, seeds: Sequence[int], siblings: dict[int, Sequence[int]]
    ) -> None:
        """Draws every row again with siblings' seeds in their rows, as often as one row has siblings."""
        for turn in range(max(map(len, siblings.values()))):
            now = {row: others[turn] for row, others in siblings.items() if turn < len(others)}
            self.sampler.seeds = [mix(now[row], 0) if row in now else seed for row, seed in enumerate(seeds)]
            drawn = super()._sample(logits.clone(), None)
            columns = drawn.logprobs_tensors and drawn.logprobs_tensors.tolists()
            for row in now:
                draw = Drawn(int(drawn.sampled_token_ids[row, 0]), columns and columns.slice_request(row, 1))
                self.drawn.setdefault(self.input_batch.req_ids[row], []).append(draw)

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """The step's tokens, and those of siblings."""
        self.drawn: dict[str, list[Drawn]] = {}
        output = super().sample_tokens(*args, **kwargs)
        attach(output, self.drawn)
        return output
