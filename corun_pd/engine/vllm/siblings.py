"""Further samples of a prompt that is computed once: their first tokens, and the blocks that they share.

    step that ends the prompt ─► the sampler, once for the request and once more for each sibling's seed
                              ─► `attach` ─► the scheduler ─► `finish`: a request each, on the same blocks

A sibling's draw is the request's own with another seed: the same logits in the same row of the same shape,
so it has the bits that a request of its own would have had. Its request exists from then on only to hold
the blocks, by vLLM's counts of references, until its handoff is pulled, released or expired like any other.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.request import Request, RequestStatus

from corun_pd.engine.vllm.request import sibling_of
from corun_pd.errors import InvalidRequest

if TYPE_CHECKING:
    from corun_pd.engine.vllm.scheduler import CountingScheduler

__all__ = ["Drawn", "attach", "drawn_of", "finish"]

_ATTRIBUTE = "corun_pd_siblings"


class Drawn(NamedTuple):
    """A sibling's first token and, when anybody in the step wants any, its logprobs (LogprobsLists)."""

    token_id: int
    logprobs: Any


def attach(output: Any, drawn: Mapping[str, Sequence[Drawn]]) -> None:
    """Has a runner's output carry, by request, what was drawn for its siblings."""
    if drawn:
        setattr(output, _ATTRIBUTE, drawn)


def drawn_of(output: Any) -> Mapping[str, Sequence[Drawn]]:
    """What `attach` was given."""
    return getattr(output, _ATTRIBUTE, {})


def finish(
    scheduler: "CountingScheduler", request: Request, drawn: Sequence[Drawn]
) -> list[EngineCoreOutput]:
    """The outputs of a request's siblings, before the scheduler has taken in the request's own."""
    return [_finish(scheduler, request, number, *draw) for number, draw in enumerate(drawn, 1)]


def _finish(
    scheduler: "CountingScheduler", request: Request, number: int, token_id: int, logprobs: Any
) -> EngineCoreOutput:
    sibling = sibling_of(request, number)
    _share_blocks(scheduler, request, sibling)
    sibling.append_output_token_ids(token_id)
    if not check_stop(sibling, scheduler.max_model_len):
        raise RuntimeError(f"sibling {sibling.request_id} goes on after its first token")
    if not _grammar_takes(request, token_id):
        sibling.status = RequestStatus.FINISHED_ERROR
        problem = "leaves no token that the request's other constraints allow"
        scheduler.refusals[sibling.request_id] = InvalidRequest("sampling.structured_output", problem)
    handoff, _ = scheduler._free_request(sibling)
    return EngineCoreOutput(
        request_id=sibling.request_id,
        new_token_ids=[token_id],
        new_logprobs=logprobs if sibling.sampling_params.num_logprobs is not None else None,
        finish_reason=sibling.get_finished_reason(),
        stop_reason=sibling.stop_reason,
        kv_transfer_params=handoff,
    )


def _share_blocks(scheduler: "CountingScheduler", request: Request, sibling: Request) -> None:
    """The sibling holds the request's blocks too, as if a prefix had been found in the cache."""
    scheduler.requests[sibling.request_id] = sibling
    manager = scheduler.kv_cache_manager
    for group in manager.coordinator.single_type_managers:
        blocks = list(group.req_to_blocks.get(request.request_id, ()))
        manager.block_pool.touch(blocks)
        group.req_to_blocks[sibling.request_id] = blocks
    if scheduler.connector is not None and sibling.kv_transfer_params:
        # The worker lets requests alone be pulled that it has been told to have been in a batch.
        scheduler.connector.connector_scheduler._reqs_in_batch.add(sibling.request_id)


def _grammar_takes(request: Request, token_id: int) -> bool:
    """Asked before the request's own token moves the grammar on."""
    if not request.use_structured_output:
        return True
    return bool(request.structured_output_request.grammar.validate_tokens([token_id]))
