"""A handoff as vLLM's NIXL connector parameters, both directions side by side.

    prefill engine                      wire                      decode engine
    prefill_params() ─► request
    handoff_from_params() ◄─ finished ─► KvHandoff ─► decode_params() ─► request

The prefill engine keeps the blocks under a lease from the moment the prompt is finished. The decode
engine reads them and then notifies, which frees them; its heartbeats extend the lease while the
request waits there. A handoff that nobody pulls is released by name, or runs out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from corun_pd.core import KvHandoff, prompt_digest
from corun_pd.errors import EngineFailed

__all__ = ["connector_config", "decode_params", "handoff_from_params", "prefill_params"]


def connector_config(*, producer: bool, engine_id: str, device: str, lease_s: float) -> dict[str, Any]:
    """vLLM's `kv_transfer_config`. A load that fails is an error, never a local re-prefill."""
    return {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer" if producer else "kv_consumer",
        "kv_buffer_device": device,
        "engine_id": engine_id,
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"kv_lease_duration": round(lease_s), "backends": ["UCX"]},
    }


def prefill_params() -> dict[str, Any]:
    """Asks the prefill engine to keep the blocks for a decode engine."""
    return {"do_remote_decode": True, "do_remote_prefill": False}


def handoff_from_params(
    params: Mapping[str, Any], prompt: Sequence[int], fingerprint: str, lease_s: float
) -> KvHandoff:
    """The ticket for what the prefill engine kept.

    Raises EngineFailed when the engine kept another number of tokens than the prompt has.
    """
    if params.get("remote_num_tokens") != len(prompt):
        raise EngineFailed(
            f"the prefill engine kept {params.get('remote_num_tokens')} tokens of a prompt of {len(prompt)}"
        )
    return KvHandoff(
        handoff_id=params["remote_request_id"],
        engine_id=params["remote_engine_id"],
        host=params["remote_host"],
        port=params["remote_port"],
        block_groups=tuple(tuple(group) for group in params["remote_block_ids"]),
        token_count=len(prompt),
        prompt_digest=prompt_digest(prompt),
        fingerprint=fingerprint,
        lease_s=lease_s,
        tensor_parallel_size=params["tp_size"],
    )


def decode_params(handoff: KvHandoff) -> dict[str, Any]:
    """Asks the decode engine to pull what the ticket names."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(group) for group in handoff.block_groups],
        "remote_engine_id": handoff.engine_id,
        "remote_request_id": handoff.handoff_id,
        "remote_host": handoff.host,
        "remote_port": handoff.port,
        "tp_size": handoff.tensor_parallel_size,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": handoff.token_count,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }
