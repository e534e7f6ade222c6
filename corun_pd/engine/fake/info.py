"""What a fake engine is: its sizes and its contract."""

from pathlib import Path

from corun_pd.config import EngineConfig
from corun_pd.contract import Contract
from corun_pd.core import Role
from corun_pd.engine.base import EngineInfo
from corun_pd.engine.fake.model import FakeModel
from corun_pd.engine.fake.tokens import RNG_SCHEME
from corun_pd.errors import SetupError

__all__ = ["describe"]

#: Bytes of KV cache that a token takes.
TOKEN_BYTES = 1024

#: Without `kv_cache_bytes` the pool holds so many sequences of full length per row.
SEQUENCES_PER_ROW = 2


def describe(folder: Path, role: Role, config: EngineConfig, model: FakeModel) -> EngineInfo:
    """Sizes the pool and draws up the contract. Raises SetupError when the pool holds nothing."""
    block_bytes = config.block_tokens * TOKEN_BYTES
    blocks = SEQUENCES_PER_ROW * config.slots * -(-model.max_tokens // config.block_tokens)
    if config.kv_cache_bytes is not None:
        blocks = config.kv_cache_bytes // block_bytes
    if blocks == 0:
        raise SetupError(
            f"engine.kv_cache_bytes: {config.kv_cache_bytes} holds no block of {block_bytes} bytes"
        )
    contract = Contract(
        {
            "engine": "fake",
            "schedule": "standard" if role is Role.STANDARD else "corun",
            "model_digest": model.digest,
            "vocabulary": model.vocabulary,
            "eos_token_ids": tuple(sorted(model.eos_token_ids)),
            "rng_scheme": RNG_SCHEME,
            "dtype": config.dtype,
            "slots": config.slots,
            "prefill_mode": config.prefill.mode,
            "prefill_chunk_tokens": config.prefill.chunk_tokens,
            "max_model_tokens": model.max_tokens,
            "block_tokens": config.block_tokens,
            "max_logprobs": config.max_logprobs,
            "tensor_parallel_size": config.tensor_parallel_size,
            "cpu_threads": config.cpu_threads,
            "compile": config.compile,
            "attention_backend": config.attention_backend,
            "ablate": tuple(sorted(config.ablate)),
        }
    )
    return EngineInfo(
        contract=contract,
        model=str(folder),
        slots=config.slots,
        blocks=blocks,
        block_tokens=config.block_tokens,
        max_model_tokens=model.max_tokens,
        prefill_tokens=config.prefill.chunk_tokens,
        block_bytes=block_bytes,
        max_logprobs=config.max_logprobs,
        vocabulary=model.vocabulary,
        rng_scheme=RNG_SCHEME,
    )
