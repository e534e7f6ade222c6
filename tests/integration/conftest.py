"""A whole cluster in this process: real gRPC on free ports, fake engines."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from corun_pd.cluster.instance import serve_instance
from corun_pd.config import EngineConfig, FakeConfig, RouterConfig
from corun_pd.core import InstanceInfo, InstanceLoad, Role
from corun_pd.engine.fake import FakeEngine
from corun_pd.router.server import Router, running_router
from corun_pd.router.text import TextModel
from corun_pd.v1 import router_pb2, router_pb2_grpc
from corun_pd.wire.server import open_channel

EOS = 256
CHAT_TEMPLATE = "{% for m in messages %}<|bos|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that characters and stop strings straddle tokens; then EOS and BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|eos|>", special=True), AddedToken("<|bos|>", special=True)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|eos|>", bos_token="<|bos|>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


@dataclass
class Node:
    """A running instance, and its engine to look into."""

    info: InstanceInfo
    engine: FakeEngine
    task: "asyncio.Task[None]"


@dataclass
class Cluster:
    """A router and its instances."""

    router: Router
    nodes: list[Node]
    channel: grpc.aio.Channel
    launch: Callable[..., Any]

    @property
    def address(self) -> str:
        return self.router.address

    @property
    def stub(self) -> router_pb2_grpc.RouterServiceStub:
        return router_pb2_grpc.RouterServiceStub(self.channel)

    def node(self, role: Role) -> Node:
        return next(node for node in self.nodes if node.info.role is role)

    async def generate(self, timeout: float | None = 10.0, **fields: Any) -> router_pb2.GenerateResponse:
        """An unstreamed generation: `sampling` and the other fields are those of the wire."""
        generation = router_pb2.Generation(**fields)
        return await self.stub.Generate(router_pb2.GenerateRequest(generation=generation), timeout=timeout)

    async def stream(self, **fields: Any) -> list[router_pb2.StreamGenerateResponse]:
        """A streamed generation's messages."""
        request = router_pb2.StreamGenerateRequest(generation=router_pb2.Generation(**fields))
        return [message async for message in self.stub.StreamGenerate(request, timeout=10.0)]

    async def loads(self) -> list[InstanceLoad]:
        return [await node.engine.load() for node in self.nodes]

    async def until(self, holds: Callable[[], Any]) -> None:
        """Waits until it is so; a test that waits in vain fails."""
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.002)

    async def until_idle(self, within_s: float = 5.0) -> None:
        """Waits until every block on every instance, and every reservation at the router, is back."""
        async with asyncio.timeout(within_s):
            while True:
                loads = await self.loads()
                ledgers = self.router.fleet.members
                back = all(
                    load.free_blocks == n.info.blocks for load, n in zip(loads, self.nodes, strict=True)
                )
                if back and not any(m.legs or m.blocks or m.prompt_tokens for m in ledgers):
                    break
                await asyncio.sleep(0.005)
        assert not any(load.running or load.waiting or load.open_handoffs for load in loads)


MakeCluster = Callable[..., AbstractAsyncContextManager[Cluster]]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a router and fake engines need of a model: tokenizer, chat template, sizes, EOS."""
    folder = tmp_path_factory.mktemp("byte-model")
    byte_tokenizer().save_pretrained(folder)
    sizes = {"vocab_size": 258, "eos_token_id": EOS, "max_position_embeddings": 1 << 24}
    (folder / "config.json").write_text(json.dumps(sizes))
    return folder


@pytest.fixture
def make_cluster(model_folder: Path) -> MakeCluster:
    """`async with make_cluster(prefill=1, decode=2, slots=4, decode_step_s=0.01) as cluster:`.

    Other keywords are EngineConfig's and FakeConfig's; `router` holds RouterConfig's; `model` is a folder.
    """

    @asynccontextmanager
    async def make(
        *,
        prefill: int = 1,
        decode: int = 1,
        colocated: int = 0,
        standard: int = 0,
        router: dict[str, Any] | None = None,
        model: Path = model_folder,
        **settings: Any,
    ) -> AsyncIterator[Cluster]:
        fake = {name: settings.pop(name) for name in FakeConfig.model_fields if name in settings}
        options = {"slots": 4, "max_model_tokens": 2048, "block_tokens": 16, **settings}
        config = EngineConfig(kind="fake", fake=FakeConfig(**fake), **options)
        async with AsyncExitStack() as stack:
            running = running_router(TextModel.load(model), RouterConfig(port=0, **(router or {})), 0.0)
            serving = await stack.enter_async_context(running)

            async def launch(role: Role, config: EngineConfig = config) -> Node:
                node = await _launch(role, model, config, serving.address, stack)
                name = node.info.instance_id
                await cluster.until(
                    lambda: node.task.done() or any(m.info.instance_id == name for m in serving.fleet.members)
                )
                if node.task.done():
                    node.task.result()
                cluster.nodes.append(node)
                return node

            channel = await stack.enter_async_context(open_channel(serving.address))
            cluster = Cluster(serving, [], channel, launch)
            counts = {
                Role.PREFILL: prefill,
                Role.DECODE: decode,
                Role.COLOCATED: colocated,
                Role.STANDARD: standard,
            }
            for role, count in counts.items():
                for _ in range(count):
                    await launch(role)
            yield cluster

    return make


async def _launch(role: Role, model: Path, config: EngineConfig, router: str, stack: AsyncExitStack) -> Node:
    engine = FakeEngine(model, role, config, "127.0.0.1")
    ready: asyncio.Future[InstanceInfo] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve_instance(
            role, model, config, router=router, engine=engine, on_ready=ready.set_result, drain_timeout_s=0.0
        )
    )

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    return Node(ready.result(), engine, task)
