"""Which shapes a prefill mode runs, and which property its contract needs there."""

from dataclasses import dataclass

import torch
from vllm.platforms import current_platform

from corun_pd.engine.operators import ModelDims, Need

__all__ = ["Scene", "has_batch_invariant_kernels"]


def has_batch_invariant_kernels() -> bool:
    """Whether vLLM 0.32.0 has batch-invariant kernels for this device: they are Triton's, on CUDA."""
    return bool(current_platform.is_cuda())


@dataclass(frozen=True, slots=True)
class Scene:
    """A model on a device under a contract: `slots` is N, `chunk_tokens` is C or T.

    `kv_tokens` bounds the KV lengths of attention's rows, `block_tokens` is a KV block.
    """

    dims: ModelDims
    mode: str
    slots: int
    chunk_tokens: int
    block_tokens: int
    kv_tokens: int
    tensor_parallel_size: int
    device: torch.device
    dtype: torch.dtype

    @property
    def token_shapes(self) -> tuple[int, ...]:
        """Row counts that the layers of this mode run at, and that tell rows of other requests apart."""
        return (self.slots, self.chunk_tokens) if self.mode == "packed" else (self.slots,)

    @property
    def most_tokens(self) -> int:
        """Rows of the widest step."""
        return max(self.slots, self.chunk_tokens)

    @property
    def prefill_need(self) -> Need:
        """What prefill needs of the kernels that it alone runs: prompts of one step are its rows."""
        return {"packed": Need.POSITION, "hybrid": Need.BATCH}.get(self.mode, Need.NOTHING)

    @property
    def batch_invariant_need(self) -> Need:
        """What the contract needs of the batch-invariant kernels: only hybrid prefill runs them."""
        return Need.BATCH if self.mode == "hybrid" else Need.NOTHING

    def normal(self, *shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
        """Values of a normal distribution on the device, the same in every run."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        values = torch.empty(shape, dtype=self.dtype, device=self.device)
        return values.normal_(0.0, scale, generator=generator)

    def bank(self, rows: int, width: int, seed: int, scale: float = 1.0) -> torch.Tensor:
        """2 `rows` rows of values and one of zeros, which is what padding holds."""
        values = self.normal(2 * rows + 1, width, seed=seed, scale=scale)
        values[-1] = 0
        return values

    def indices(self, rows: torch.Tensor) -> torch.Tensor:
        """Row numbers on the device."""
        return rows.to(self.device)
