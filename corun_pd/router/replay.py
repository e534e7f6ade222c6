"""Fault = replay: a sample whose instance failed runs again from its prompt, on whatever serves it then.

The output is a function of the request, so a replay gives every token again. Those that its reader has are
compared and dropped, and the reader sees no difference. One that differs is a broken contract, and fails
the sample: this is how silent data corruption is found.
"""

from collections.abc import Sequence
from dataclasses import replace

from corun_pd.core import InstanceInfo, Role, TokenLogprobs
from corun_pd.errors import ContractBroken, CorunError, EngineFailed, HandoffRejected, Unavailable
from corun_pd.router.legs import LegTokens

__all__ = ["Transcript", "is_fault"]


def is_fault(error: CorunError) -> bool:
    """Whether it is an instance's fault, so that a replay may end well. A request's own errors come again.

    A role that no instance has (`role` in the metadata) is not: there is nobody to replay on.
    """
    if isinstance(error, Unavailable):
        return "role" not in error.metadata
    return isinstance(error, EngineFailed | HandoffRejected)


class Transcript:
    """What a sample has given its reader, against which replays are checked."""

    __slots__ = ("_at", "_has_prompt_logprobs", "_logprobs", "_runs", "_token_ids", "can_repeat", "replays")

    def __init__(self) -> None:
        self.replays = 0
        #: Whether a replay would give the same again. A standard instance is outside the contract.
        self.can_repeat = True
        self._runs: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._has_prompt_logprobs = False
        self._at = 0

    def runs_on(self, prefill: InstanceInfo, decode: InstanceInfo | None) -> None:
        """Where it runs now, for whoever looks into a broken contract. A colocated instance comes alone."""
        names = [info.instance_id for info in (prefill, decode) if info is not None]
        self._runs.append(" and ".join(names))
        self.can_repeat = prefill.role is not Role.STANDARD

    def start_over(self) -> None:
        """The sample runs again from its prompt."""
        self.replays += 1
        self._at = 0

    def fresh(self, tokens: LegTokens) -> LegTokens:
        """The part that the reader does not have, perhaps none.

        Raises ContractBroken where a replay gives another token, other logprobs or an earlier end.
        """
        count = len(tokens.token_ids)
        again = min(count, len(self._token_ids) - self._at)
        if again > 0:
            self._compare(tokens.token_ids[:again], tokens.logprobs[:again])
            tokens = replace(tokens, token_ids=tokens.token_ids[again:], logprobs=tokens.logprobs[again:])
        self._at += count
        if tokens.finish is not None and self._at < len(self._token_ids):
            raise self._broken(f"it ended after {self._at} tokens of {len(self._token_ids)}")
        self._token_ids += tokens.token_ids
        self._logprobs += tokens.logprobs
        if tokens.prompt_logprobs is not None:
            if self._has_prompt_logprobs:
                tokens = replace(tokens, prompt_logprobs=None)
            self._has_prompt_logprobs = True
        return tokens

    def _compare(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        end = self._at + len(token_ids)
        given = self._token_ids[self._at : end]
        for at, (old, new) in enumerate(zip(given, token_ids, strict=True), self._at):
            if old != new:
                raise self._broken(f"token {at} is {new}, not {old}")
        for at, (was, now) in enumerate(zip(self._logprobs[self._at : end], logprobs, strict=True), self._at):
            if was != now:
                raise self._broken(f"the logprobs of token {at} are {now}, not {was}")

    def _broken(self, difference: str) -> ContractBroken:
        places = f"; it ran on {', then on '.join(self._runs)}" if self._runs else ""
        return ContractBroken(f"a replay differs from what was given: {difference}{places}")
