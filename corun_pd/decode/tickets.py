"""What a decode instance asks of a KV handoff before it lets an engine near it.

A real engine that pulls a stale ticket gets the blocks of somebody else's prompt without an error, so every
doubt is a refusal here.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from corun_pd.core import FirstToken, KvHandoff, SamplingParams, prompt_digest
from corun_pd.engine.base import EngineInfo
from corun_pd.errors import HandoffRejected

__all__ = ["LEASE_MARGIN_S", "Tickets"]

#: A pull must be over before the lease is; one with less left is not begun.
LEASE_MARGIN_S: Final = 1.0

#: How many used tickets are remembered. Older ones have run out of lease long since, or the instance has
#: taken that many more within one lease.
REMEMBERED: Final = 1 << 17


class Tickets:
    """The tickets that an instance has seen. One instance has one, over all calls."""

    def __init__(self, info: EngineInfo, lease_margin_s: float = LEASE_MARGIN_S) -> None:
        self._info = info
        self._lease_margin_s = lease_margin_s
        self._used: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __len__(self) -> int:
        """Used tickets that are remembered."""
        return len(self._used)

    def punch(
        self, handoff: KvHandoff, first: FirstToken, prompt: Sequence[int], sampling: SamplingParams
    ) -> None:
        """Uses a ticket up. Raises HandoffRejected when it is not good for `prompt`; it stays unused then."""
        problem = self._problem(handoff, first, prompt, sampling)
        if problem is not None:
            raise HandoffRejected(problem, handoff_id=handoff.handoff_id)
        now = time.monotonic()
        self._used[handoff.engine_id, handoff.handoff_id] = now + handoff.lease_s
        while len(self._used) > REMEMBERED or next(iter(self._used.values())) < now:
            self._used.popitem(last=False)

    def _problem(
        self, handoff: KvHandoff, first: FirstToken, prompt: Sequence[int], sampling: SamplingParams
    ) -> str | None:
        if not handoff.handoff_id or not handoff.engine_id:
            return "the handoff names no ticket or no engine"
        ranks = self._info.contract.settings.get("tensor_parallel_size", 1)
        if handoff.tensor_parallel_size != ranks:
            return (
                f"computed on {handoff.tensor_parallel_size} tensor-parallel ranks; this engine has {ranks}"
            )
        if handoff.fingerprint != self._info.contract.fingerprint:
            return f"computed under contract {handoff.fingerprint}, not {self._info.contract.fingerprint}"
        if handoff.token_count != len(prompt):
            return f"holds {handoff.token_count} tokens of a prompt of {len(prompt)}"
        if handoff.prompt_digest != prompt_digest(prompt):
            return "made for another prompt"
        if not any(handoff.block_groups):
            return "lists no blocks"
        if first.rng.scheme != self._info.rng_scheme:
            return f"random state of scheme {first.rng.scheme!r}; this engine runs {self._info.rng_scheme!r}"
        if first.rng.step != 1:
            return f"random state at step {first.rng.step}; decode goes on from step 1"
        if first.rng.seed != sampling.seed:
            return f"random state of seed {first.rng.seed}; the request has {sampling.seed}"
        if handoff.lease_s < self._lease_margin_s:
            return f"{handoff.lease_s:.3f} s of lease left; a pull needs {self._lease_margin_s} s"
        if (handoff.engine_id, handoff.handoff_id) in self._used:
            return "used before"
        return None
