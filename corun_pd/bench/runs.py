"""Running one set of requests in different company and order."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from corun_pd.bench.prompts import Request
from corun_pd.client import AsyncClient, GenerationResult, Options, Route

__all__ = ["MODES", "Results", "Runner"]

Results = list[GenerationResult]


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs requests on one route and calls `advance` for each that is done. Results are in request order."""

    client: AsyncClient
    route: Route
    advance: Callable[[], None]

    async def alone(self, requests: Sequence[Request], crowd: Sequence[Request]) -> Results:
        """One after the other: nothing runs beside a request."""
        return [await self._run(request) for request in requests]

    async def batched(self, requests: Sequence[Request], crowd: Sequence[Request]) -> Results:
        """All at once."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run(request)) for request in requests]
        return [task.result() for task in tasks]

    async def reversed(self, requests: Sequence[Request], crowd: Sequence[Request]) -> Results:
        """All at once, in the opposite order."""
        return (await self.batched(requests[::-1], crowd))[::-1]

    async def crowded(self, requests: Sequence[Request], crowd: Sequence[Request]) -> Results:
        """All at once, among other requests, a third of which come first."""
        first = len(crowd) // 3
        async with asyncio.TaskGroup() as group:
            for other in crowd[:first]:
                group.create_task(self._send(other))
            tasks = []
            for request, other in zip_longest(requests, crowd[first:]):
                if request is not None:
                    tasks.append(group.create_task(self._run(request)))
                if other is not None:
                    group.create_task(self._send(other))
        return [task.result() for task in tasks]

    async def _run(self, request: Request) -> GenerationResult:
        result = await self._send(request)
        self.advance()
        return result

    async def _send(self, request: Request) -> GenerationResult:
        options: Options = {**request.options, "route": self.route}
        return await self.client.generate(request.prompt, **options)


#: The runs of the contract check, by name.
MODES = {
    "alone": Runner.alone,
    "batched": Runner.batched,
    "reversed": Runner.reversed,
    "crowded": Runner.crowded,
}
