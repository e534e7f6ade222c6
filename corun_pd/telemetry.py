"""What happened, by the names of a sample's life (`core.Edge`): counted, and logged one line each."""

import logging
from collections import Counter

from corun_pd.core import Edge

__all__ = ["Telemetry"]

logger = logging.getLogger("corun_pd.lifecycle")


class Telemetry:
    """Counts edges. At debug level each one is a log line of key=value facts."""

    def __init__(self) -> None:
        self.counts: Counter[Edge] = Counter()

    def edge(self, edge: Edge, generation_id: str, sample: int, **facts: object) -> None:
        """A sample passed an edge."""
        self.counts[edge] += 1
        if logger.isEnabledFor(logging.DEBUG):
            rest = "".join(f" {name}={value}" for name, value in facts.items())
            logger.debug("edge=%s generation_id=%s sample=%d%s", edge, generation_id, sample, rest)
