"""32 prompts through prefill and decode apart, twice, and through one engine: are the bits the same?

Starts the cluster of examples/demo.yaml, sends examples/prompts.jsonl (lines of OpenAI's batch format)
by three ways, prints what came out, and exits with 1 when any answer differs in any bit.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from corun_pd.batch.body import body_to_request
from corun_pd.batch.line import Endpoint
from corun_pd.bench.compare import Comparison, compare
from corun_pd.client import AsyncClient, GenerationRequest, GenerationResult, Route
from corun_pd.cluster.local import LocalCluster
from corun_pd.config import load_cluster
from corun_pd.errors import CorunError

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    """One way through the cluster: the results in the order of the file, and how long they took."""

    name: str
    results: list[GenerationResult]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(result.usage.completion_tokens for result in self.results)

    @property
    def kv_bytes(self) -> int:
        return sum(choice.placement.kv_moved_bytes for result in self.results for choice in result.choices)


def read_requests(path: Path) -> list[GenerationRequest]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [body_to_request(Endpoint(row["url"]), row["body"]) for row in rows]


async def send(
    client: AsyncClient,
    name: str,
    requests: Sequence[GenerationRequest],
    route: Route,
    order: int,
    at_once: int,
) -> Run:
    """Sends them in the order of the file (`order` 1) or against it (-1), `at_once` at a time."""
    gate = asyncio.Semaphore(at_once)

    async def one(request: GenerationRequest) -> GenerationResult:
        async with gate:
            return await client.run(replace(request, route=route))

    started = time.perf_counter()
    results = await asyncio.gather(*(one(request) for request in requests[::order]))
    return Run(name, results[::order], time.perf_counter() - started)


async def demo(console: Console) -> bool:
    config = load_cluster(HERE / "demo.yaml")
    requests = read_requests(HERE / "prompts.jsonl")
    console.print(f"starting router, prefill, decode and colocated instances; logs are in {config.log_dir}")
    async with LocalCluster(config) as cluster, AsyncClient(cluster.router_address) as client:
        ways = (
            ("colocated, one after the other", Route.COLOCATED, 1, 1),
            ("prefill and decode apart, all at once", Route.DISAGGREGATED, 1, len(requests)),
            ("prefill and decode apart, reversed, 5 at once", Route.DISAGGREGATED, -1, 5),
        )
        runs = []
        for name, route, order, at_once in ways:
            with console.status(name):
                runs.append(await send(client, name, requests, route, order, at_once))
    reference, *others = runs
    comparisons = [compare(run.name, reference.results, run.results) for run in others]
    console.print(answers(requests, reference))
    console.print(timings(runs))
    return verdict(console, reference, comparisons)


def answers(requests: Sequence[GenerationRequest], run: Run) -> Table:
    table = Table("prompt", "tokens", "samples", "first sample", "ended by", title="answers")
    for request, result in zip(requests, run.results, strict=True):
        choice = result.choices[0]
        tokens = f"{result.usage.prompt_tokens} + {result.usage.completion_tokens}"
        cells = (shown(request), tokens, str(len(result.choices)), repr(choice.text)[1:-1][:44])
        # Generated text may look like markup.
        table.add_row(*map(escape, cells), choice.finish_reason)
    return table


def shown(request: GenerationRequest) -> str:
    if request.messages is not None:
        return f"[{len(request.messages)} messages] {request.messages[-1].content}"[:44]
    return str(request.prompt).replace("\n", "\\n")[:44]


def timings(runs: Sequence[Run]) -> Table:
    table = Table("run", "tokens", "seconds", "tokens/s", "KV moved", title="runs")
    for run in runs:
        rate = f"{run.tokens / run.seconds:.1f}"
        table.add_row(run.name, str(run.tokens), f"{run.seconds:.1f}", rate, f"{run.kv_bytes:,} bytes")
    return table


def verdict(console: Console, reference: Run, comparisons: Sequence[Comparison]) -> bool:
    for comparison in comparisons:
        for difference in comparison.differences:
            console.print(f"{comparison.name}: {difference}", markup=False)
    total = len(reference.results)
    differing = {difference.request for one in comparisons for difference in one.differences}
    console.print(f"fingerprint: {reference.results[0].system_fingerprint}", markup=False)
    console.print(f"identical: {total - len(differing)}/{total}", markup=False)
    return not differing


if __name__ == "__main__":
    try:
        sys.exit(0 if asyncio.run(demo(Console())) else 1)
    except CorunError as error:
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(2)
