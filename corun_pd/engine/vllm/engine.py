"""A vLLM engine in this process: one thread owns the engine core and steps it.

Commands go in through a queue and are carried out between steps; what a step gave comes out on the
event loop, all rows of a step at once. There is no other process to lose, and the scheduler is at
hand: free blocks, reservations and leases are read where they are kept.
"""

import asyncio
import contextlib
import logging
import os
import queue
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from corun_pd.config import EngineConfig
from corun_pd.core import FinishReason, InstanceLoad, Role, TokenLogprobs
from corun_pd.engine.base import EngineInfo, LegOutput, LegWork
from corun_pd.engine.vllm import environment
from corun_pd.errors import CorunError, EngineFailed, InvalidRequest, SetupError
from corun_pd.kv_transfer.nixl import connector_config, handoff_from_params

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput

    from corun_pd.engine.vllm.scheduler import CountingScheduler

__all__ = ["VllmEngine"]

logger = logging.getLogger(__name__)

_IDLE_POLL_S = 0.001
"""How often an engine without rows looks for finished transfers and expired leases."""

_Command = Callable[[], None]


class VllmEngine:
    """See `engine.base` for who calls what."""

    def __init__(self, model: Path, role: Role, config: EngineConfig, host: str) -> None:
        self.model, self.role, self.config, self.host = model, role, config, host
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._outputs: asyncio.Queue[list[LegOutput] | None] = asyncio.Queue()
        self._legs: dict[str, LegWork] = {}
        self._closing = False
        self._error: EngineFailed | None = None
        self._sampled = 0

    async def start(self) -> EngineInfo:
        """Loads the model in the engine's thread."""
        environment.prepare(self.config, self.host)
        self._loop = asyncio.get_running_loop()
        started: asyncio.Future[EngineInfo] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="engine", daemon=True)
        with _side_channel_faults(self._loop, started):
            self._thread.start()
            self._info = await started
        return self._info

    def submit(self, work: LegWork) -> None:
        """Queues a leg."""
        self._commands.put(lambda: self._add(work))

    def cancel(self, leg: str) -> None:
        """Ends a leg without output."""
        self._commands.put(lambda: self._cancel(leg))

    def release(self, handoff_id: str) -> None:
        """Frees a handoff that nobody will pull."""
        self._commands.put(lambda: self._scheduler.release_handoff(handoff_id))

    async def steps(self) -> AsyncIterator[Sequence[LegOutput]]:
        """What each step gave."""
        while (outputs := await self._outputs.get()) is not None:
            yield outputs
        if self._error is not None:
            raise self._error

    async def load(self) -> InstanceLoad:
        """Read between two steps, so that the figures belong together."""
        answer: asyncio.Future[InstanceLoad] = self._loop.create_future()

        def read() -> None:
            load = self._read_load()
            self._loop.call_soon_threadsafe(_resolve, answer, load)

        self._commands.put(read)
        if self._error is not None:
            raise self._error
        return await answer

    async def close(self) -> None:
        """Ends the thread between two steps."""

        def stop() -> None:
            self._closing = True

        self._commands.put(stop)
        await asyncio.to_thread(self._thread.join)

    # ---- The engine's thread -------------------------------------------------------------------

    def _run(self, started: "asyncio.Future[EngineInfo]") -> None:
        try:
            info = self._build()
        except Exception as error:  # noqa: BLE001 - whatever vLLM raises at start is a set-up fault
            fault = error if isinstance(error, CorunError) else SetupError(_first_line(error))
            fault.__cause__ = None if fault is error else error
            self._loop.call_soon_threadsafe(started.set_exception, fault)
            return
        self._loop.call_soon_threadsafe(started.set_result, info)
        try:
            self._step_until_closed()
        except Exception as error:
            logger.exception("a step failed, which ends the engine")
            lost = getattr(self._core.model_executor, "is_failed", False)
            reason = "a tensor-parallel rank's process ended" if lost else _first_line(error)
            self._error = EngineFailed(f"the engine died: {reason}")
            self._error.__cause__ = error
        finally:
            with contextlib.suppress(Exception):
                self._core.shutdown()
            self._loop.call_soon_threadsafe(self._outputs.put_nowait, None)

    def _step_until_closed(self) -> None:
        idle = False
        while not self._closing:
            if not self._core.scheduler.has_requests() and not self._core.batch_queue:
                self._commands.get()()
            elif idle:
                with contextlib.suppress(queue.Empty):
                    self._commands.get(timeout=_IDLE_POLL_S)()
            while not self._commands.empty():
                self._commands.get_nowait()()
            outputs, executed = self._core.step_fn()
            self._core.post_step(executed)
            rows = [self._output(row) for row in outputs[0].outputs] if outputs and 0 in outputs else []
            if rows:
                self._loop.call_soon_threadsafe(self._outputs.put_nowait, rows)
            idle = not executed and not rows

    def _build(self) -> EngineInfo:
        # vLLM reads the environment when it is imported, and it was set just now.
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor import Executor

        from corun_pd.engine.vllm import arguments, collectives, contract

        self.engine_id = f"{self.role}-{uuid.uuid4().hex}"
        transfer = None
        if self.role in (Role.PREFILL, Role.DECODE):
            transfer = connector_config(
                producer=self.role is Role.PREFILL,
                engine_id=self.engine_id,
                device=arguments.device_type(),
                lease_s=self.config.lease_s,
            )
        args = arguments.engine_arguments(self.model, self.role, self.config)
        vllm_config = EngineArgs(**args, kv_transfer_config=transfer).create_engine_config()
        contract.require_sound(self.role, vllm_config)
        if self.config.prefill.mode == "hybrid" and self.role is not Role.STANDARD:
            from corun_pd.engine.vllm import batch_invariance

            batch_invariance.require_batch_invariance(vllm_config)
        if self.config.check_operators and self.role is not Role.STANDARD:
            from corun_pd.engine.vllm import operators

            operators.require_operators(self.model, self.config)
        self._core = EngineCore(vllm_config, Executor.get_class(vllm_config), log_stats=False)
        self._core.model_executor.register_failure_callback(lambda: self._commands.put(_lose_rank))
        if self.role is not Role.STANDARD and any(faults := self._core.collective_rpc(collectives.unfixed)):
            raise SetupError(next(filter(None, faults)))
        self._scheduler: CountingScheduler = self._core.scheduler
        self._eos = contract.eos_token_ids(vllm_config)
        self._engine_seeds = vllm_config.use_v2_model_runner
        has_prefix_cache = vllm_config.cache_config.enable_prefix_caching
        self._block_hasher = self._core.request_block_hasher if has_prefix_cache else None
        self._has_tokenizer = not vllm_config.model_config.skip_tokenizer_init
        kv = self._scheduler.kv_cache_config
        ranks = self.config.tensor_parallel_size  # A spec is of one rank's share.
        self._group_bytes = [
            ranks * g.kv_cache_spec.page_size_bytes * len(g.layer_names) for g in kv.kv_cache_groups
        ]
        return EngineInfo(
            contract=contract.build(
                self.model,
                self.role,
                self.config,
                vllm_config,
                self._core.collective_rpc(contract.rank_facts),
            ),
            model=str(self.model),
            slots=self.config.slots,
            blocks=self._scheduler.free_blocks,
            block_tokens=self._scheduler.block_size,
            max_model_tokens=vllm_config.model_config.max_model_len,
            prefill_tokens=self.config.prefill.chunk_tokens,
            block_bytes=max(self._group_bytes),
            max_logprobs=self.config.max_logprobs,
            vocabulary=vllm_config.model_config.get_vocab_size(),
            rng_scheme=contract.rng_scheme(vllm_config),
        )

    def _add(self, work: LegWork) -> None:
        from corun_pd.engine.vllm import structured
        from corun_pd.engine.vllm.request import make_request

        try:
            request = make_request(work, self._eos, self._engine_seeds, self._block_hasher)
            need = self._scheduler.blocks_to_end(request)
            if need > self._info.blocks:
                raise InvalidRequest(
                    "sampling.max_tokens", f"the sequence needs {need} KV blocks of {self._info.blocks}"
                )
            if work.sampling.structured_output is not None:
                structured.check(
                    work.sampling.structured_output, request.sampling_params, self._has_tokenizer
                )
                self._core.structured_output_manager.grammar_init(request)
            self._legs[work.leg] = work
            self._core.add_request(request)
        except Exception as error:  # noqa: BLE001 - vLLM refuses a request with whatever it likes
            fault = error if isinstance(error, CorunError) else EngineFailed(_first_line(error))
            self._legs.pop(work.leg, None)
            rows = [LegOutput(work.leg, error=fault)]
            self._loop.call_soon_threadsafe(self._outputs.put_nowait, rows)

    def _cancel(self, leg: str) -> None:
        if self._legs.pop(leg, None) is not None:
            self._core.abort_requests([leg])

    def _output(self, row: "EngineCoreOutput") -> LegOutput:
        work = self._legs[row.request_id]
        if row.finish_reason is not None:
            del self._legs[work.leg]
        output = self._output_of(work, row)
        rows = self._scheduler.siblings.pop(work.leg, ())
        siblings = tuple(
            self._output_of(replace(work, sampling=work.sampling.for_sibling(seed)), sibling)
            for seed, sibling in zip(work.sibling_seeds, rows, strict=bool(rows))
        )
        if output.error is None:
            return replace(output, siblings=siblings) if siblings else output
        for handoff in LegOutput(work.leg, siblings=siblings).handoffs:
            self._scheduler.release_handoff(handoff.handoff_id)
        return output

    def _output_of(self, work: LegWork, row: "EngineCoreOutput") -> LegOutput:
        """A leg's output, or that of one of its siblings."""
        tokens = tuple(row.new_token_ids)
        self._sampled += len(tokens)
        reason = None if row.finish_reason is None else str(row.finish_reason)
        prompt_logprobs = _prompt_logprobs(row, work)
        if reason is None:
            return LegOutput(work.leg, tokens, _logprobs(row, work), prompt_logprobs=prompt_logprobs)
        if reason not in ("stop", "length"):
            unknown = EngineFailed(f"the engine ended the request with {reason!r}")
            return LegOutput(work.leg, error=self._scheduler.refusals.pop(row.request_id, unknown))
        pulled = 0
        if work.resume is not None:
            groups = zip(work.resume[1].block_groups, self._group_bytes, strict=True)
            pulled = sum(len(blocks) * size for blocks, size in groups)
        stop = row.stop_reason if row.stop_reason in work.sampling.stop_token_ids else None
        ended = LegOutput(
            leg=work.leg,
            token_ids=tokens,
            logprobs=_logprobs(row, work),
            finish_reason=FinishReason(reason),
            stop_token_id=int(stop) if stop is not None else None,
            kv_pulled_bytes=pulled,
            prompt_logprobs=prompt_logprobs,
        )
        return self._with_handoff(work, ended, row) if work.hand_off else ended

    def _with_handoff(self, work: LegWork, ended: LegOutput, row: "EngineCoreOutput") -> LegOutput:
        """A prefill leg of more than a token that came to its limit of one goes on elsewhere."""
        if ended.finish_reason is FinishReason.STOP:
            return ended
        try:
            handoff = handoff_from_params(
                row.kv_transfer_params or {},
                work.prompt,
                self._info.contract.fingerprint,
                self.config.lease_s,
            )
        except EngineFailed as error:
            return LegOutput(work.leg, error=error)
        return replace(ended, finish_reason=None, handoff=handoff)

    def _read_load(self) -> InstanceLoad:
        scheduler: Any = self._scheduler
        return InstanceLoad(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(scheduler.kv_holding_waiting),
            free_blocks=scheduler.free_blocks,
            open_handoffs=scheduler.open_handoffs,
            prefilled_tokens=scheduler.prefilled_tokens,
            sampled_tokens=self._sampled,
            kv_pulled_bytes=scheduler.kv_moved_bytes,
            steps=scheduler.steps,
            padding_rows=scheduler.padding_rows,
            rows=scheduler.rows,
            reused_tokens=scheduler.reused_tokens,
        )


def _logprobs(row: "EngineCoreOutput", work: LegWork) -> tuple[TokenLogprobs, ...]:
    """Column 0 holds the sampled token, the others the likeliest, in the fixed width of all rows."""
    wanted, columns = work.sampling.logprobs, row.new_logprobs
    if wanted is None or columns is None:
        return ()
    return _entries(wanted, columns.logprob_token_ids, columns.logprobs, columns.sampled_token_ranks)


def _prompt_logprobs(row: "EngineCoreOutput", work: LegWork) -> tuple[TokenLogprobs, ...] | None:
    """They come with the first token. A prompt of one token has none, of which vLLM may say nothing."""
    wanted, columns = work.sampling.prompt_logprobs, row.new_prompt_logprobs_tensors
    if wanted is None or work.resume is not None:
        return None
    if columns is None:
        return () if len(work.prompt) == 1 else None
    return _entries(
        wanted,
        columns.logprob_token_ids.tolist(),
        columns.logprobs.tolist(),
        columns.selected_token_ranks.tolist(),
    )


def _entries(
    wanted: int, token_ids: Sequence[Any], logprobs: Sequence[Any], ranks: Sequence[Any]
) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(
            sampled=float(values[0]),
            rank=int(rank),
            top=tuple(
                (int(i), float(v)) for i, v in zip(ids[1 : wanted + 1], values[1 : wanted + 1], strict=True)
            ),
        )
        for ids, values, rank in zip(token_ids, logprobs, ranks, strict=True)
    )


@contextlib.contextmanager
def _side_channel_faults(
    loop: asyncio.AbstractEventLoop, started: "asyncio.Future[EngineInfo]"
) -> Iterator[None]:
    """Within it, a side channel that cannot listen fails the start; vLLM would wait for it for good."""
    stock = threading.excepthook

    def hook(fault: threading.ExceptHookArgs) -> None:
        if fault.thread is not None and fault.thread.name == "nixl_handshake_listener":
            port = os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"]
            error = SetupError(f"the KV side channel cannot listen on port {port}: {fault.exc_value}")
            loop.call_soon_threadsafe(lambda: None if started.done() else started.set_exception(error))
        else:
            stock(fault)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = stock


def _resolve(answer: "asyncio.Future[InstanceLoad]", load: InstanceLoad) -> None:
    if not answer.done():  # The one who asked may have gone.
        answer.set_result(load)


def _lose_rank() -> None:
    raise EngineFailed("it lost a rank")


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):  # vLLM's configuration; the first line only counts faults.
        return "; ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
