"""The policies of `engine.policy` bound to vLLM 0.32.0's scheduler (the paper's Algorithm 2).

For each step the wrapper shows the original scheduler only the requests that the step may hold, lets
it schedule, and puts the hidden ones back. The original code allocates blocks and talks to the KV
connector as ever. A step holds prompts or decode rows, never both.
"""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats
from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, create_request_queue
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.kv_cache_interface import SlidingWindowSpec
from vllm.v1.request import Request, RequestStatus

from corun_pd.config import Ablation
from corun_pd.engine.policy import PATIENCE, Candidate, admit_in_order
from corun_pd.engine.vllm.prefix_cache import PrefixCache
from corun_pd.engine.vllm.settings import Settings
from corun_pd.engine.vllm.siblings import drawn_of, finish
from corun_pd.engine.vllm.structured import reason_of
from corun_pd.errors import CorunError, EngineFailed, InvalidRequest, SetupError

__all__ = ["CoRunScheduler", "CountingScheduler"]


class CountingScheduler(AsyncScheduler):  # type: ignore[misc]
    """The original scheduler, with counts of what it scheduled: the control."""

    running: list[Request]
    waiting: RequestQueue
    kv_holding_waiting: RequestQueue
    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = Settings.from_vllm(self.vllm_config)
        self.steps = 0
        self.rows = 0
        self.padding_rows = 0
        self.prefilled_tokens = 0
        self.reused_tokens = 0
        self.kv_moved_bytes = 0
        self.refusals: dict[str, CorunError] = {}  # why a request ended with an error, where that is known
        self.siblings: dict[str, list[EngineCoreOutput]] = {}  # what those of a request gave, to be fetched

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One step, as the original schedules it."""
        output = super().schedule(throttle_prefills)
        prefilled = 0
        for key, tokens in output.num_scheduled_tokens.items():
            request = self.requests[key]
            left = request.num_prompt_tokens - (request.num_computed_tokens - tokens)
            prefilled += min(max(left, 0), tokens)
        self._count(output.total_num_scheduled_tokens, output.total_num_scheduled_tokens, prefilled)
        return output

    def _count(self, tokens: int, rows: int, prefilled: int) -> None:
        if tokens:
            self.steps += 1
            self.rows += rows
            self.padding_rows += rows - tokens
            self.prefilled_tokens += prefilled

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        """Takes a step's outputs in, those of siblings first: they share blocks that requests still hold."""
        for key, drawn in drawn_of(model_runner_output).items():
            request = self.requests.get(key)
            if request is not None and not request.is_finished():
                self.siblings[key] = finish(self, request, drawn)
        return super().update_from_output(scheduler_output, model_runner_output)

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """Adds up what the KV connector moved; called once a step with what the workers report."""
        moved = next((a for a in [*args, *kwargs.values()] if isinstance(a, NixlKVConnectorStats)), None)
        if moved is not None:
            self.kv_moved_bytes += sum(moved.data["bytes_transferred"])
        return super().make_stats(*args, **kwargs)

    def blocks_to_end(self, request: Request) -> int:
        """KV blocks that the request needs beyond those it holds, over all KV cache groups.

        The last token is output and never computed, so it takes none: a prompt that is handed off needs what
        its own tokens fill, which is what the router counts.
        """
        tokens = min(request.num_prompt_tokens + request.max_tokens - 1, self.max_model_len)
        need = 0
        for manager in self.kv_cache_manager.coordinator.single_type_managers:
            size, spec = manager.block_size, manager.kv_cache_spec
            held = sum(not b.is_null for b in manager.req_to_blocks.get(request.request_id, ()))
            span = tokens
            if isinstance(spec, SlidingWindowSpec):
                # Blocks behind the window go back; a step's own tokens and a border come on top.
                span = min(tokens, spec.sliding_window + self.max_num_scheduled_tokens + size)
            need += max(cdiv(span, size) - held, 0)
        return need

    @property
    def free_blocks(self) -> int:
        """KV blocks in no request's hands."""
        return int(self.kv_cache_manager.block_pool.get_num_free_blocks())

    def release_handoff(self, request_id: str) -> None:
        """Ends the lease of a finished prefill whose blocks nobody will pull.

        A lease that is set again with an end in the past runs out in the worker's next step, which
        frees the blocks on the path that every expired lease takes.
        """
        request = self.requests.get(request_id)
        if request is not None and request.is_finished() and self.connector is not None:
            self.connector.connector_scheduler._reqs_need_send[request_id] = 0.0

    @property
    def open_handoffs(self) -> int:
        """Finished prefills whose blocks wait to be pulled."""
        return sum(request.is_finished() for request in self.requests.values())


class CoRunScheduler(CountingScheduler):
    """Prefill by policy, pure decode steps, admission by accounting, never a preemption."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prefill = self.settings.prefill_policy()
        self.step_tokens = self.max_num_scheduled_tokens
        self.put_off = 0
        self.compiling: dict[str, Request] = {}
        self.prefix_cache = PrefixCache(self) if self.cache_config.enable_prefix_caching else None
        self._accept_tokens = self.structured_output_manager.accept_tokens
        self.structured_output_manager.accept_tokens = self._accept
        chunk, longest = self.settings.chunk_tokens, self.max_model_len
        if not self.scheduler_config.enable_chunked_prefill and chunk < longest:
            raise SetupError(
                f"engine.prefill.chunk_tokens: {chunk} is below the longest sequence, {longest}, and this "
                "model's attention on this device takes whole prompts only"
            )

    def add_request(self, request: Request) -> None:
        """Queues a request. One with a grammar may run once that is compiled."""
        super().add_request(request)
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            self.compiling[request.request_id] = request

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One step: prompts chosen by the policy, or every decode row."""
        if self.compiling:
            self._take_compiled()
        if self.prefix_cache is not None:
            self.prefix_cache.forget()
        running, waiting, holding = self.running, self.waiting, self.kv_holding_waiting
        slots = self.max_num_active_reqs - len(running) - len(holding)
        blocks = self._free_blocks_beyond_reservations()
        partial = next((r for r in running if _is_partial(r)), None)
        shares = self.prefill.next_step(
            self._candidate(partial) if partial is not None else None,
            self._local_prompts(waiting),
            slots,
            blocks,
            patience=PATIENCE - self.put_off if any(not _is_partial(r) for r in running) else 0,
        )
        self.put_off = self.put_off + 1 if waiting and not shares else 0
        if shares:
            return self._prefill_step({share.key for share in shares}, sum(s.tokens for s in shares))
        return self._decode_step(slots, blocks)

    def _prefill_step(self, keys: set[str], tokens: int) -> SchedulerOutput:
        running, waiting, holding = self.running, self.waiting, self.kv_holding_waiting
        self.running = [r for r in running if r.request_id in keys]
        rest = [r for r in running if r.request_id not in keys]
        chosen = _take(waiting, keys - {r.request_id for r in self.running})
        self.waiting, self.kv_holding_waiting = self._queue(chosen), self._queue(())
        self.max_num_scheduled_tokens = tokens
        cache = self.prefix_cache
        pinned = nullcontext() if cache is None else cache.pinned({r.request_id for r in chosen})
        try:
            with pinned:
                output = AsyncScheduler.schedule(self)
        finally:
            _put_back(waiting, self.waiting)
            self.max_num_scheduled_tokens = self.step_tokens
            self.running = rest + self.running
            self.waiting, self.kv_holding_waiting = waiting, holding
        taken = output.total_num_scheduled_tokens
        if taken != tokens:
            raise RuntimeError(f"a prefill step of {tokens} tokens was scheduled with {taken}")
        padded = self.settings.prefill_mode == "packed"
        self._count(taken, self.settings.chunk_tokens if padded else taken, taken)
        return output

    def _decode_step(self, slots: int, blocks: int) -> SchedulerOutput:
        """Every row decodes; handed-over requests start to load or, once loaded, join as rows."""
        waiting = self.waiting
        keys: set[str] = set()
        if self.connector is not None:
            remote = (self._candidate(r) for r in waiting if _is_remote(r) and self._may_run(r))
            keys = {candidate.key for candidate in admit_in_order(remote, slots, blocks)}
        self.waiting = self._queue(_take(waiting, keys))
        try:
            output = AsyncScheduler.schedule(self)
        finally:
            _put_back(waiting, self.waiting)
            self.waiting = waiting
        tokens = output.num_scheduled_tokens
        if any(count != 1 for count in tokens.values()):
            raise RuntimeError(f"a decode step holds more than a token a row: {tokens}")
        padded = self.settings.has(Ablation.FIXED_SHAPE_DECODE)
        self._count(len(tokens), self.settings.slots if padded else len(tokens), 0)
        return output

    def _take_compiled(self) -> None:
        """Lets requests run whose grammars are compiled, and refuses those whose grammars cannot be.

        vLLM does this where it schedules a request, and requests are hidden from it here. A request that
        came with its first token has its grammar take that in, once.
        """
        for key, request in list(self.compiling.items()):
            constraint = request.structured_output_request
            if not request.is_finished() and not constraint.is_grammar_ready:
                continue
            del self.compiling[key]
            if request.is_finished():
                continue
            grammar, given = constraint.grammar, list(request.output_token_ids)
            if isinstance(grammar, Exception):
                self.refusals[key] = InvalidRequest("sampling.structured_output", reason_of(grammar))
            elif not self._accept_tokens(request, given):
                self.refusals[key] = EngineFailed(f"the grammar does not allow the first token, {given}")
            else:
                request.status = RequestStatus.WAITING
                self.deferred_waiting.discard(request)
                continue
            self.grammar_compile_error_reqs.add(key)

    def _accept(self, request: Request, tokens: list[int]) -> bool:
        """Has a grammar take tokens in. It refuses one where nothing that it allows was left to draw."""
        taken = bool(self._accept_tokens(request, tokens))
        if not taken:
            problem = "leaves no token that the request's other constraints allow"
            self.refusals[request.request_id] = InvalidRequest("sampling.structured_output", problem)
        return taken

    def _may_run(self, request: Request) -> bool:
        return not self._is_blocked_waiting_status(request.status)

    def _local_prompts(self, waiting: Iterable[Request]) -> Iterator[Candidate]:
        for request in waiting:
            if not _is_remote(request) and self._may_run(request):
                yield self._candidate(request)

    def _get_local_prefix_cache_hit(self, request: Request) -> tuple[KVCacheBlocks, int, int, bool]:
        """What the policy reckoned with when it chose the request."""
        if self.prefix_cache is None:
            return super()._get_local_prefix_cache_hit(request)  # type: ignore[no-any-return]
        blocks, hit = self.prefix_cache.found(request)
        return blocks, hit, 0, False

    def _candidate(self, request: Request) -> Candidate:
        computed = request.num_computed_tokens
        if self.prefix_cache is not None and request.status == RequestStatus.WAITING:
            computed = self.prefix_cache.find(request)
        return Candidate(
            key=request.request_id,
            prompt=request.num_prompt_tokens,
            computed=computed,
            blocks=self.blocks_to_end(request),
        )

    def _free_blocks_beyond_reservations(self) -> int:
        """Free blocks that no started request will need before its end."""
        started = [*self.running, *self.kv_holding_waiting]
        reserved = sum(self.blocks_to_end(request) for request in started)
        return self.free_blocks - reserved

    def _queue(self, requests: Iterable[Request]) -> RequestQueue:
        queue = create_request_queue(self.policy)
        for request in requests:
            queue.add_request(request)
        return queue

    def _connector_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        """Only a prompt that goes on elsewhere keeps its blocks; one that ended with y0 does not."""
        if request.status == RequestStatus.FINISHED_STOPPED:
            request.status = RequestStatus.FINISHED_ABORTED
            try:
                return super()._connector_finished(request)  # type: ignore[no-any-return]
            finally:
                request.status = RequestStatus.FINISHED_STOPPED
        return super()._connector_finished(request)  # type: ignore[no-any-return]

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """A preempted request is recomputed in another shape; admission rules it out."""
        raise RuntimeError(f"request {request.request_id} would be preempted; admission let in too much")

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Resetting running requests preempts them, and is refused."""
        if reset_running_requests:
            raise RuntimeError("running requests are never reset: that would recompute them")
        return bool(super().reset_prefix_cache(False, reset_connector))


def _is_partial(request: Request) -> bool:
    return bool(request.num_computed_tokens < request.num_prompt_tokens)


def _is_remote(request: Request) -> bool:
    params = request.kv_transfer_params
    return bool(params and params.get("do_remote_prefill"))


def _take(queue: RequestQueue, keys: set[str]) -> list[Request]:
    """Takes those requests out, in order. They are near the head, so long queues are not walked."""
    taken: list[Request] = []
    passed: list[Request] = []
    while len(taken) < len(keys):
        request = queue.pop_request()
        (taken if request.request_id in keys else passed).append(request)
    _put_back(queue, passed)
    return taken


def _put_back(queue: RequestQueue, requests: Iterable[Request]) -> None:
    """Puts requests back at the head, in their order."""
    for request in reversed(list(requests)):
        queue.prepend_request(request)
