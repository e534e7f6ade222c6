"""A leg as a vLLM request.

Seed and first token travel in `extra_args`: the V1 runner would make a stateful generator of a seed,
and it knows no way to be told of output tokens.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from vllm.sampling_params import SamplingParams as VllmSamplingParams
from vllm.v1.request import Request

from corun_pd.core import SamplingParams
from corun_pd.engine.base import LegWork
from corun_pd.engine.vllm.structured import structured_outputs
from corun_pd.kv_transfer.nixl import decode_params, prefill_params

__all__ = ["first_tokens_of", "make_request", "seed_of", "sibling_of", "sibling_seeds_of"]

SEED = "corun_pd_seed"
FIRST_TOKENS = "corun_pd_first_tokens"
SIBLING_SEEDS = "corun_pd_sibling_seeds"


def make_request(
    work: LegWork,
    eos_token_ids: Sequence[int],
    engine_seeds: bool,
    block_hasher: Callable[[Request], list[Any]] | None = None,
) -> Request:
    """The vLLM request of a leg. `engine_seeds`: the runner itself draws from (seed, position).

    `block_hasher` names blocks of tokens for the prefix cache; None where there is none.
    """
    # Prefill gave the prompt's logprobs. Here vLLM would leave the handed-over KV cache for them, even when
    # they are taken back later, and compute the prompt.
    sampling = work.sampling if work.resume is None else work.sampling.for_decode()
    extra: dict[str, Any] = {SEED: sampling.seed}
    if work.resume is not None:
        first, handoff = work.resume
        extra[FIRST_TOKENS] = [first.token_id]
        extra["kv_transfer_params"] = decode_params(handoff)
    elif work.hand_off:
        extra["kv_transfer_params"] = prefill_params()
    if work.sibling_seeds:
        extra[SIBLING_SEEDS] = list(work.sibling_seeds)
    params = _vllm_params(sampling, only_first=work.hand_off, extra=extra)
    if engine_seeds:
        params.seed = sampling.seed
    eos = list(eos_token_ids)
    params.update_from_generation_config({"eos_token_id": eos} if eos else {}, eos[0] if eos else None)
    request = Request(
        request_id=work.leg,
        prompt_token_ids=list(work.prompt),
        sampling_params=params,
        pooling_params=None,
        arrival_time=time.time(),
        block_hasher=block_hasher,
    )
    if work.resume is not None:
        # An output token to penalties, min_tokens, stop conditions and lengths; never a prompt token.
        request.append_output_token_ids(work.resume[0].token_id)
    return request


def sibling_of(request: Request, number: int) -> Request:
    """The request of sibling `number`, from 1, of a request whose prompt has been computed."""
    params = request.sampling_params.clone()
    extra = dict(params.extra_args)
    extra[SEED] = extra.pop(SIBLING_SEEDS)[number - 1]
    params.extra_args = extra
    sibling = Request(
        request_id=f"{request.request_id}.{number}",
        prompt_token_ids=request.prompt_token_ids,
        sampling_params=params,
        pooling_params=None,
        arrival_time=request.arrival_time,
    )
    sibling.num_computed_tokens = request.num_prompt_tokens
    return sibling


def _vllm_params(sampling: SamplingParams, only_first: bool, extra: dict[str, Any]) -> VllmSamplingParams:
    return VllmSamplingParams(
        max_tokens=1 if only_first else sampling.max_tokens,
        # vLLM refuses a minimum above the maximum; at the first token one is as good as more.
        min_tokens=min(sampling.min_tokens, 1) if only_first else sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias) or None,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        allowed_token_ids=list(sampling.allowed_token_ids) or None,
        _bad_words_token_ids=[list(word) for word in sampling.bad_words] or None,
        structured_outputs=structured_outputs(sampling.structured_output),
        detokenize=False,
        extra_args=extra,
    )


def seed_of(params: VllmSamplingParams) -> int:
    """The seed of a request; 0 for vLLM's own warm-up requests, which have none."""
    return int((params.extra_args or {}).get(SEED, 0))


def sibling_seeds_of(params: VllmSamplingParams | None) -> Sequence[int]:
    """The seeds of further samples whose first tokens are drawn where the request's is."""
    return (params.extra_args or {}).get(SIBLING_SEEDS, ()) if params is not None else ()


def first_tokens_of(params: VllmSamplingParams | None) -> Sequence[int]:
    """The output tokens that a request arrives with."""
    return (params.extra_args or {}).get(FIRST_TOKENS, ()) if params is not None else ()
