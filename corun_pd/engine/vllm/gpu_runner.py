"""Fixed-shape decode, packed prefill and shape-aligned sampling on vLLM's V2 model runner (CUDA).

Decode steps replay the one captured graph of N rows; prefill steps never do. Which of the two a step
is follows from the requests' state, not from its shape: vLLM 0.32.0 runs a one-token tail as decode
and a one-token prompt as prefill, and falls back to eager without a word when no graph fits.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler

from corun_pd.config import Ablation
from corun_pd.engine.vllm import gpu_prompt_logprobs
from corun_pd.engine.vllm.batch_invariance import BatchInvariance, require_batch_invariant_layers
from corun_pd.engine.vllm.gpu_siblings import OutputWithSiblings, Turn, draw_turns, ending_prompts
from corun_pd.engine.vllm.request import sibling_seeds_of
from corun_pd.engine.vllm.settings import Settings
from corun_pd.errors import SetupError

__all__ = ["CoRunGPUModelRunner"]


class CoRunGPUModelRunner(GPUModelRunner):  # type: ignore[misc]
    """Runs what the scheduler made of it: a step of prompts as it is or padded to T, or N rows.

    In `hybrid`, a step of prompts runs vLLM's batch-invariant kernels, as wide as it is.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.settings = Settings.from_vllm(vllm_config)
        self.fixed_shape = False
        self.prefill_width: int | None = None
        self.batch_invariance: BatchInvariance | None = None
        self.triton_builders: list[Any] = []

    def enforce(self) -> None:
        """Puts the scheme in force. Called once vLLM has warmed up, which it does in shapes of its own."""
        self.fixed_shape = self.settings.has(Ablation.FIXED_SHAPE_DECODE)
        if self.settings.has(Ablation.SAMPLER_PADDING):
            self._pad_sampling()
        self._find_triton_builders()
        if self.settings.prefill_mode == "packed":
            self._forbid_prefill_split_kv()
            self._dispatch_prefill_at_width()
        if self.settings.prefill_mode == "hybrid":
            self._make_prefill_batch_invariant()

    def _make_prefill_batch_invariant(self) -> None:
        """Has the kernels switched by step. Decode's graph was captured with the ordinary ones."""
        backends = {group.backend.get_name() for groups in self.attn_groups for group in groups}
        if backends != {"FLASH_ATTN"}:
            raise SetupError(
                f"engine.prefill.mode: hybrid: attention runs {', '.join(sorted(backends))}; its kernels are "
                "switched by step with FLASH_ATTN alone"
            )
        require_batch_invariant_layers(self.model)
        self._forbid_prefill_split_kv()
        self.batch_invariance = BatchInvariance()
        self.batch_invariance.take_routers(self.model)

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """The step's tokens, and those of siblings."""
        output = super().sample_tokens(*args, **kwargs)
        turns = getattr(self.sampler, "sibling_turns", ())
        if not turns:
            return output
        self.sampler.sibling_turns = []
        return OutputWithSiblings(output, turns)

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """A step up to its hidden states; the LM head and the sampler follow in `sample_tokens`."""
        try:
            return super().execute_model(*args, **kwargs)
        finally:
            if self.batch_invariance is not None:
                self.batch_invariance.off()

    def _pad_sampling(self) -> None:
        """Gives the LM head and the sampler N rows."""
        original, slots = self.model.compute_logits, self.settings.slots

        def compute_logits(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if hidden.shape[0] > slots:
                raise RuntimeError(f"{hidden.shape[0]} rows for an LM head of {slots}")
            return original(pad(hidden, (0, 0, 0, slots - hidden.shape[0])), *args, **kwargs)

        self.model.compute_logits = compute_logits
        self.sampler.__class__ = ShapeAlignedSampler
        self.sampler.width = self.settings.max_logprobs
        self.sampler.sibling_seeds = {}
        self.sampler.sibling_turns = []
        gpu_prompt_logprobs.install(slots, self.settings.max_logprobs)

    def _dispatch_prefill_at_width(self) -> None:
        """Has prefill steps of packed mode dispatched T wide."""
        manager = self.cudagraph_manager
        original = manager.dispatch

        def dispatch(*args: Any, **kwargs: Any) -> Any:
            shape = original(*args, **kwargs)
            if self.prefill_width is None:
                return shape
            return dataclasses.replace(shape, num_tokens=self.prefill_width)

        manager.dispatch = dispatch

    def _forbid_prefill_split_kv(self) -> None:
        """Lets FlashAttention's bound on splits, which is 1, hold for steps of every size."""
        for groups in self.attn_groups:
            for group in groups:
                for builder in group.metadata_builders:
                    if hasattr(builder, "max_cudagraph_size"):
                        builder.max_cudagraph_size = 1 << 30

    def _find_triton_builders(self) -> None:
        """Remembers from where Triton's attention has its bound on the sequences of a step with Split-KV.

        It cuts a sequence's KV cache into a fixed number of parts by that sequence's length alone, so decode
        keeps the parts. In a prefill step it would do so only if no prompt had two tokens there.
        """
        builders = [b for groups in self.attn_groups for group in groups for b in group.metadata_builders]
        self.triton_builders = [b for b in builders if hasattr(b, "seq_threshold_3D")]
        for builder in self.triton_builders:
            if self.fixed_shape and builder.seq_threshold_3D != self.settings.slots:
                raise SetupError(
                    f"engine.attention_backend: Triton's attention splits KV caches in steps of up to "
                    f"{builder.seq_threshold_3D} sequences, and decode has {self.settings.slots}"
                )

    def _allow_split_kv(self, allowed: bool) -> None:
        for builder in self.triton_builders:
            builder.seq_threshold_3D = self.settings.slots if allowed else 0

    def gather_batch_req_state(self, scheduler_output: Any, dummy_run: bool) -> Any:
        """Decides by state whether the step is decode, and says so to the graph dispatch."""
        state, uniform = super().gather_batch_req_state(scheduler_output, dummy_run)
        self.prefill_width = None
        if state is None or not self.fixed_shape:
            return state, uniform
        rows = state.idx_mapping_np
        computed = self.req_states.num_computed_tokens_np[rows]
        is_decode = bool(np.all(computed >= self.req_states.prompt_len.np[rows]))
        self._allow_split_kv(is_decode)
        if is_decode:
            return state._replace(decode_graph_eligible=True), 1
        if self.settings.prefill_mode == "packed":
            self.prefill_width = self.settings.chunk_tokens
        elif self.batch_invariance is not None:
            self.batch_invariance.on()
        elif len(rows) != 1:
            raise RuntimeError(f"an isolated prefill step holds {len(rows)} prompts")
        return state._replace(decode_graph_eligible=False), None

    def prepare_inputs(
        self, scheduler_output: Any, batch_req_state: Any, batch_desc: Any, num_active_loras: int
    ) -> InputBatch:
        """Checks the shape that was dispatched, and clears what the last step left in its padding."""
        if self.fixed_shape:
            decode = batch_req_state.decode_graph_eligible
            replays = batch_desc.cg_mode == CUDAGraphMode.FULL
            if decode != replays or (decode and batch_desc.num_tokens != self.settings.slots):
                kind = "decode" if decode else "prefill"
                raise RuntimeError(f"a {kind} step was dispatched as {batch_desc}")
        batch = super().prepare_inputs(scheduler_output, batch_req_state, batch_desc, num_active_loras)
        if batch.num_tokens_after_padding > batch.num_tokens:
            batch.input_ids[batch.num_tokens :].zero_()
            batch.positions[batch.num_tokens :].zero_()
        return batch


class ShapeAlignedSampler(Sampler):  # type: ignore[misc]
    """vLLM's V2 sampler on N rows.

    Padding rows repeat the first request's, so they need no state of their own; nothing that the
    sampler computes is written back before the rows are cut to those in use. Which top-k and top-p
    kernel runs depends on the number of rows and on which of the two is used; both are fixed here.
    """

    width: int
    sibling_seeds: dict[int, Sequence[int]]
    sibling_turns: list[Turn]

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> None:
        """Has every row take the float32 copy of its logits, as the first that needs one makes all do."""
        super().add_request(req_idx, sampling_params)
        self.needs_logits_processing[req_idx] = True
        self.sibling_seeds.pop(req_idx, None)
        if seeds := sibling_seeds_of(sampling_params):
            self.sibling_seeds[req_idx] = seeds

    def __call__(self, logits: torch.Tensor, input_batch: InputBatch) -> SamplerOutput:
        """Samples a token a row, and those of siblings. logits: [N, vocabulary]."""
        siblings: dict[int, Sequence[int]] = {}
        if self.sibling_seeds:
            lengths = self.req_states.prefill_len.np
            siblings = ending_prompts(input_batch, lengths, self.sibling_seeds)
        if not siblings:
            return self._draw(logits, input_batch)
        kept = logits.clone()  # A draw may change them in place.
        output = self._draw(logits, input_batch)
        self.sibling_turns = draw_turns(
            self.sampling_states, input_batch, siblings, lambda: self._draw(kept.clone(), input_batch)
        )
        return output

    def _draw(self, logits: torch.Tensor, input_batch: InputBatch) -> SamplerOutput:
        used, rows = input_batch.num_reqs, logits.shape[0]
        output = super().__call__(logits, _pad_batch(input_batch, rows))
        output.sampled_token_ids = output.sampled_token_ids[:used]
        output.num_sampled = output.num_sampled[:used]
        output.num_rejected = output.num_rejected[:used]
        if output.logprobs_tensors is not None:
            columns = output.logprobs_tensors
            output.logprobs_tensors = columns._replace(
                logprob_token_ids=columns.logprob_token_ids[:used],
                logprobs=columns.logprobs[:used],
                selected_token_ranks=columns.selected_token_ranks[:used],
            )
        return output

    def get_logprobs_dims(
        self, idx_mapping_np: np.ndarray, include_token_ids: bool = True
    ) -> tuple[int, int] | None:
        """One width for every batch in which anybody wants logprobs."""
        wanted = super().get_logprobs_dims(idx_mapping_np, include_token_ids)
        return None if wanted is None else (self.width, wanted[1])

    def sample(self, logits: torch.Tensor, mapping: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Gives the kernel both bounds when anybody uses one; a bound that keeps all changes nothing."""
        states, idx_mapping_np = self.sampling_states, args[1]
        top_k, top_p = states.get_top_k_top_p(mapping, idx_mapping_np)
        if (top_k is None) == (top_p is None):
            return super().sample(logits, mapping, *args, **kwargs)
        both = (states.top_k.gpu[mapping], states.top_p.gpu[mapping])
        states.get_top_k_top_p = lambda *ignored: both
        try:
            return super().sample(logits, mapping, *args, **kwargs)
        finally:
            del states.get_top_k_top_p


def _pad_batch(batch: InputBatch, rows: int) -> InputBatch:
    """The batch with its first request repeated up to `rows`."""
    used = batch.num_reqs
    if used == rows:
        return batch
    extra = rows - used

    def extend(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor[:used], tensor[:1].expand(extra)])

    counts = np.arange(rows + 1, dtype=np.int32)
    mapping_np = np.concatenate([batch.idx_mapping_np, np.repeat(batch.idx_mapping_np[:1], extra)])
    mapping = extend(batch.idx_mapping)
    return dataclasses.replace(
        batch,
        num_reqs=rows,
        idx_mapping=mapping,
        idx_mapping_np=mapping_np,
        expanded_idx_mapping=mapping,
        expanded_local_pos=extend(batch.expanded_local_pos),
        seq_lens=extend(batch.seq_lens),
        seq_lens_cpu_upper_bound=extend(batch.seq_lens_cpu_upper_bound),
        logits_indices=extend(batch.logits_indices),
        cu_num_logits=torch.arange(rows + 1, dtype=torch.int32, device=mapping.device),
        cu_num_logits_np=counts,
    )
