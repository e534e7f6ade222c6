"""What the router costs: latency it adds, requests and streamed tokens that one core carries.

    python -m corun_pd.bench.router_load --json out.json --profile router.prof

The router has a core to itself; fake prefill and decode instances and the load generator share another.
Since they share a machine, the router's own CPU time per request is measured too, from /proc.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import uvloop
import yaml
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from corun_pd.bench.report import write_result
from corun_pd.core import SamplingParams, prompt_digest
from corun_pd.v1 import legs_pb2, legs_pb2_grpc, router_pb2, router_pb2_grpc, sampling_pb2
from corun_pd.wire.convert import sampling_to_pb
from corun_pd.wire.server import open_channel

__all__ = ["Load", "main"]

COMMAND = [sys.executable, "-m", "corun_pd.cli.main"]
VOCABULARY = 4096
EOS = "<eos>"
SLOTS = 2048

#: Time of a decode step. Streams get a slower one: the fake instance works for every row that streams.
STEP_S = 0.002
STREAM_STEP_S = 0.005
PROMPT = "The router renders, tokenizes, admits and relays; the engines compute. How much does it cost?"


@dataclass(frozen=True)
class Load:
    """One measurement. Times in milliseconds; `router_cpu_ms` is per request."""

    name: str
    requests: int
    seconds: float
    requests_per_s: float
    tokens_per_s: float
    p50_ms: float
    p99_ms: float
    router_cpu_ms: float
    router_cpu_share: float
    messages_per_request: float = 1.0


def write_model(folder: Path) -> None:
    """A tokenizer with words in it, trained on this package's own source, and sizes; no weights."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [file.read_text() for file in sorted(Path(__file__).parent.parent.rglob("*.py"))]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(EOS, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS).save_pretrained(folder)
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(sizes))


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int, process: "subprocess.Popen[bytes]") -> None:
    """Returns when something listens. Raises RuntimeError when the process that should has ended."""
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"the router ended with exit code {process.returncode}")


class Machine:
    """The processes: the router on the first core, everything else on the last."""

    def __init__(self, folder: Path, profile: Path | None, step_s: float) -> None:
        write_model(folder)
        self.port = free_port()
        self.folder = folder
        self._cores = os.sched_getaffinity(0)
        self.router_core, self.other_core = min(self._cores), max(self._cores)
        self._config = folder / "cluster.yaml"
        fake = {"decode_step_s": step_s}
        engine = {"kind": "fake", "slots": SLOTS, "fake": fake, "max_model_tokens": 2048}
        instances = [{"role": "prefill"}, {"role": "decode"}]
        settings = {"model": str(folder), "engine": engine, "instances": instances}
        self._config.write_text(yaml.safe_dump({**settings, "router": {"port": self.port}}))
        wrap = [sys.executable, "-m", "cProfile", "-o", str(profile)] if profile else [sys.executable]
        self.router = self._spawn([*wrap, "-m", "corun_pd.cli.main", "router"], self.router_core)
        address = f"127.0.0.1:{self.port}"
        wait_for_port(self.port, self.router)
        self.others = [
            self._spawn([*COMMAND, role, "--router", address], self.other_core)
            for role in ("prefill", "decode")
        ]
        os.sched_setaffinity(0, {self.other_core})

    def _spawn(self, command: Sequence[str], core: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*command, "--config", str(self._config)],
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            stdout=subprocess.DEVNULL,
        )

    def router_cpu_s(self) -> float:
        """CPU time of the router process so far."""
        times = psutil.Process(self.router.pid).cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        """Ends the processes, the instances first, and gives this one its cores back."""
        os.sched_setaffinity(0, self._cores)
        for process in (*self.others, self.router):
            process.terminate()
            process.wait(timeout=30)


def generation(index: int, max_tokens: int) -> router_pb2.Generation:
    """A request of its own; `index` makes prompt and seed differ."""
    sampling = sampling_pb2.SamplingParams(max_tokens=max_tokens, seed=index, ignore_eos=True)
    return router_pb2.Generation(text=f"{PROMPT} {index}", sampling=sampling)


class Generator:
    """Sends requests as bytes made beforehand, so that the generator's own cost stays small."""

    def __init__(self, machine: Machine, channel: grpc.aio.Channel) -> None:
        self.machine = machine
        self.channel = channel
        self._whole: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/corun_pd.v1.RouterService/Generate"
        )
        self._stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            "/corun_pd.v1.RouterService/StreamGenerate"
        )

    async def whole(self, body: bytes) -> tuple[int, int]:
        """One unstreamed request; (tokens, messages)."""
        answer = router_pb2.GenerateResponse.FromString(await self._whole(body))
        return answer.usage.completion_token_count, 1

    async def stream(self, body: bytes) -> tuple[int, int]:
        """One streamed request; (tokens, messages)."""
        messages = [message async for message in self._stream(body)]
        end = router_pb2.StreamGenerateResponse.FromString(messages[-1]).end
        return end.usage.completion_token_count, len(messages)

    async def measure(
        self,
        name: str,
        send: Callable[[bytes], Awaitable[tuple[int, int]]],
        bodies: Sequence[bytes],
        concurrency: int,
        max_tokens: int,
    ) -> Load:
        """All `bodies`, `concurrency` at a time. Fails when an answer is not of `max_tokens` tokens."""
        latencies: list[float] = []
        messages = 0
        pending = iter(bodies)

        async def work() -> None:
            nonlocal messages
            for body in pending:
                began = time.perf_counter()
                tokens, count = await send(body)
                latencies.append(time.perf_counter() - began)
                messages += count
                if tokens != max_tokens:
                    raise RuntimeError(f"{name}: an answer of {tokens} tokens, not {max_tokens}")

        cpu, began = self.machine.router_cpu_s(), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
        seconds = time.perf_counter() - began
        cpu = self.machine.router_cpu_s() - cpu
        return Load(
            name=name,
            requests=len(bodies),
            seconds=seconds,
            requests_per_s=len(bodies) / seconds,
            tokens_per_s=len(bodies) * max_tokens / seconds,
            p50_ms=1e3 * statistics.median(latencies),
            p99_ms=1e3 * statistics.quantiles(latencies, n=100)[98],
            router_cpu_ms=1e3 * cpu / len(bodies),
            router_cpu_share=cpu / seconds,
            messages_per_request=messages / len(bodies),
        )


class Direct:
    """The same legs without a router: what a request takes in the instances and on the way to them."""

    def __init__(self, prefill: grpc.aio.Channel, decode: grpc.aio.Channel) -> None:
        self._prefills = legs_pb2_grpc.PrefillServiceStub(prefill).RunPrefills()
        self._decodes = legs_pb2_grpc.DecodeServiceStub(decode).RunDecodes()
        self._last_id = 0

    async def whole(self, body: bytes) -> tuple[int, int]:
        """One request's two legs, one after the other; (tokens, messages)."""
        request = router_pb2.GenerateRequest.FromString(body).generation
        self._last_id += 1
        sampling = SamplingParams(request.sampling.max_tokens, request.sampling.seed, ignore_eos=True)
        leg = legs_pb2.Leg(
            leg_id=self._last_id,
            prompt=sampling_pb2.TokenIds(ids=[self._last_id % 256] * 24),
            sampling=sampling_to_pb(sampling),
        )
        start = legs_pb2.RunPrefillsRequest.Start(leg=leg, hand_off=True)
        await self._prefills.write(legs_pb2.RunPrefillsRequest(starts=[start]))
        first = (await self._prefills.read()).finishes[0]
        if first.handoff.prompt_digest != prompt_digest(leg.prompt.ids):
            raise RuntimeError("the handoff is for another prompt")
        resume = legs_pb2.RunDecodesRequest.Start(
            leg=leg, first_token=first.first_token, handoff=first.handoff
        )
        await self._decodes.write(legs_pb2.RunDecodesRequest(starts=[resume]))
        while not (answer := await self._decodes.read()).finishes:
            pass
        return 1 + len(answer.finishes[0].token_ids), 1


@asynccontextmanager
async def connected(machine: Machine) -> AsyncIterator[tuple[Generator, Direct]]:
    """Waits for both instances to join."""
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(open_channel(f"127.0.0.1:{machine.port}"))
        stub = router_pb2_grpc.RouterServiceStub(channel)
        members: dict[int, Any] = {}
        async with asyncio.timeout(120):
            while len(members) < 2:
                request = router_pb2.DescribeFleetRequest()
                fleet = await stub.DescribeFleet(request, wait_for_ready=True)
                members = {member.instance.role: member.instance for member in fleet.members}
                await asyncio.sleep(0.1)
        channels = [
            await stack.enter_async_context(open_channel(members[role].address)) for role in sorted(members)
        ]
        yield Generator(machine, channel), Direct(*channels)


Measure = Callable[["Bench"], Awaitable[list[Load]]]


@dataclass
class Bench:
    """What a measurement needs."""

    generator: Generator
    direct: Direct
    scale: float
    sent: int = 0

    def bodies(self, count: int, max_tokens: int) -> list[bytes]:
        """Requests of their own, `scale` times `count` of them."""
        first = self.sent
        self.sent += max(2, int(count * self.scale))
        return [
            router_pb2.GenerateRequest(generation=generation(index, max_tokens)).SerializeToString()
            for index in range(first, self.sent)
        ]

    async def wholes(self) -> list[Load]:
        """Latency of one request at a time, with and without a router; then unstreamed requests."""
        measure, whole, direct = self.generator.measure, self.generator.whole, self.direct.whole
        await measure("warm-up", whole, self.bodies(1000, 16), 64, 16)
        return [
            await measure("latency, no router", direct, self.bodies(500, 2), 1, 2),
            await measure("latency, router", whole, self.bodies(500, 2), 1, 2),
            await measure("whole, 16 tokens", whole, self.bodies(8000, 16), 256, 16),
            await measure("whole, 512 tokens", whole, self.bodies(8000, 512), 1536, 512),
        ]

    async def streams(self) -> list[Load]:
        """Streamed tokens over many concurrent streams."""
        measure, stream = self.generator.measure, self.generator.stream
        await measure("warm-up", stream, self.bodies(200, 16), 64, 16)
        return [await measure("streams, 512 tokens", stream, self.bodies(2000, 512), 512, 512)]


async def run(machine: Machine, scale: float, measure: Measure) -> list[Load]:
    """One measurement on a machine."""
    async with connected(machine) as (generator, direct):
        return await measure(Bench(generator, direct, scale))


def measure_all(scale: float, profile: Path | None) -> list[Load]:
    """Every measurement, each kind on processes of its own; `profile` gets the last kind's."""
    loads = []
    kinds: Sequence[tuple[Measure, float]] = ((Bench.streams, STREAM_STEP_S), (Bench.wholes, STEP_S))
    for measure, step_s in kinds:
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(Path(folder), profile, step_s)
            try:
                loads += uvloop.run(run(machine, scale, measure))
            finally:
                machine.stop()
    return loads


def table(loads: Sequence[Load]) -> str:
    """The loads, one a line."""
    head = f"{'load':<22}{'req/s':>9}{'tokens/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'cpu ms/req':>12}"
    rows = [head + f"{'cpu share':>11}{'msgs/req':>10}"]
    rows += [
        f"{load.name:<22}{load.requests_per_s:>9.0f}{load.tokens_per_s:>11.0f}{load.p50_ms:>9.2f}"
        f"{load.p99_ms:>9.2f}{load.router_cpu_ms:>12.3f}{load.router_cpu_share:>11.2f}"
        f"{load.messages_per_request:>10.1f}"
        for load in loads
    ]
    return "\n".join(rows)


def main() -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Measures the router under load.")
    parser.add_argument("--json", type=Path, help="write the measurements here")
    parser.add_argument("--profile", type=Path, help="profile the router with cProfile and write it here")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of requests")
    options = parser.parse_args()
    loads = measure_all(options.scale, options.profile)
    print(table(loads))
    if options.json is not None:
        settings = {"slots": SLOTS, "scale": options.scale, "router_cores": 1}
        rows = [asdict(load) for load in loads]
        write_result(options.json, "router", settings, rows, "python -m corun_pd.bench.router_load")


if __name__ == "__main__":
    main()
