"""A request on its way through the simulated cluster."""

from corun_pd.core import InstanceInfo
from corun_pd.engine.policy import Candidate
from corun_pd.router.policy import Demand

__all__ = ["Job"]


class Job:
    """`output` is how many tokens it gives, `demand.max_tokens` how many it may give and reserves room for.

    `siblings` are further samples of its prompt, which is computed once for all that are placed with it.
    `replays` is how often it has run again. `candidate` is what the engine's policy sees of it on the
    instance that computes its prompt, and `blocks` what it holds there once it has started. Times are in
    seconds of the simulation.
    """

    __slots__ = (
        "blocks",
        "candidate",
        "demand",
        "first_s",
        "index",
        "output",
        "queued_s",
        "replays",
        "siblings",
    )

    def __init__(self, index: int, queued_s: float, prompt: int, output: int, max_tokens: int) -> None:
        self.index = index
        self.queued_s = queued_s
        self.first_s: float | None = None
        self.siblings: list[Job] = []
        self.replays = 0
        self.output = output
        self.demand = Demand(prompt, max(output, max_tokens))
        self.blocks = 0
        self.candidate = Candidate("", 0, 0, 0)

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return self.demand.prompt_tokens

    def become_candidate(self, info: InstanceInfo, output: int) -> None:
        """Waits at an engine, which takes it in when its prompt and `output` tokens fit.

        The last token is never computed, so it takes no room.
        """
        self.blocks = info.blocks_for(self.prompt + output - 1)
        self.candidate = Candidate(str(self.index), self.prompt, 0, self.blocks)
