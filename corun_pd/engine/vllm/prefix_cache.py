"""Whole chunks of earlier prompts, kept for prompts that begin with the same tokens.

A hit may change nothing but time. vLLM keeps and finds single blocks, whoever computed them; here both end
where the scheme cuts prompts. A chunk that was computed as one step of C (or T) tokens has the bits that the
same chunk has in every prompt that begins alike, and a prompt that starts behind it is cut where it would
have been cut anyway. What a shorter last chunk or a decode step wrote is never found.
"""

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request

from corun_pd.config import Ablation
from corun_pd.errors import SetupError

if TYPE_CHECKING:
    from corun_pd.engine.vllm.scheduler import CoRunScheduler

__all__ = ["PrefixCache"]


class PrefixCache:
    """What a scheduler's waiting prompts find. A step looks them up, and those that it takes are pinned.

    Raises SetupError where chunks are not made of whole blocks or a layer does not keep all of its tokens.
    """

    def __init__(self, scheduler: "CoRunScheduler") -> None:
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._policy, self._chunk = scheduler.prefill, scheduler.settings.chunk_tokens
        self._is_exact = scheduler.settings.has(Ablation.PREFIX_CACHE_BORDERS)
        self._found: dict[str, tuple[KVCacheBlocks, int]] = {}
        groups = scheduler.kv_cache_config.kv_cache_groups
        block = scheduler.block_size
        if self._chunk % block:
            raise SetupError(
                f"engine.prefix_cache: engine.prefill.chunk_tokens, {self._chunk}, is no multiple of "
                f"engine.block_tokens, {block}"
            )
        if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
            raise SetupError(
                "engine.prefix_cache: this model has layers that forget tokens (a sliding window or a state)"
            )
        if self._is_exact:
            self._keep_whole_chunks()

    def _keep_whole_chunks(self) -> None:
        coordinator = self._manager.coordinator
        original = coordinator.cache_blocks

        def cache_blocks(request: Request, computed: int) -> None:
            original(request, min(computed, self._policy.whole_chunks(request.num_prompt_tokens)))

        coordinator.cache_blocks = cache_blocks

    def forget(self) -> None:
        """Begins a step: blocks that were found may be others' by now."""
        self._found.clear()

    def find(self, request: Request) -> int:
        """How many of a waiting prompt's first tokens need not be computed."""
        blocks, hit, _ = self._manager.get_computed_blocks(request)
        if self._is_exact:
            whole = hit - hit % self._chunk
            hit = min(whole, self._policy.whole_chunks(request.num_prompt_tokens))
            blocks = self._manager.truncate_computed_blocks(blocks, hit)
        self._found[request.request_id] = blocks, hit
        return int(hit)

    def found(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """What `find` gave in this step."""
        return self._found[request.request_id]

    @contextlib.contextmanager
    def pinned(self, keys: Collection[str]) -> Iterator[None]:
        """Holds what those found, so that none of them takes blocks that another was promised."""
        pool: Any = self._manager.block_pool
        found = [self._found[key] for key in keys if key in self._found]
        held = [block for blocks, _ in found for group in blocks.blocks for block in group]
        self._scheduler.reused_tokens += sum(hit for _, hit in found)
        pool.touch(held)
        try:
            yield
        finally:
            pool.free_blocks(reversed(held))
