"""The router's process: built (tokenizer loaded, port bound) apart from being served."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from corun_pd.config import RouterConfig
from corun_pd.router.admission import Admission
from corun_pd.router.fleet import Fleet, Member
from corun_pd.router.service import FleetService, RouterService
from corun_pd.router.text import TextModel
from corun_pd.v1 import router_pb2_grpc
from corun_pd.wire.server import Server, Service, build_server

__all__ = ["Router", "build_router", "running_router", "serve_router"]

#: How often a draining router looks whether its last generation is over, in seconds.
_DRAIN_POLL_S = 0.02

#: What calls get to end by themselves once the router has drained, in seconds.
_STOP_GRACE_S = 0.5


class Router:
    """A router with its port bound. `start` it, `stop` it; `running_router` does both."""

    def __init__(self, server: Server, service: RouterService, fleet: Fleet) -> None:
        self.server = server
        self.service = service
        self.fleet = fleet

    @property
    def address(self) -> str:
        """host:port."""
        return self.server.address

    async def start(self) -> None:
        """Takes calls and says so to the health check. Instances may join from now on."""
        await self.server.start()
        await self.server.set_serving()

    async def stop(self, drain_timeout_s: float) -> None:
        """Refuses new generations, lets running ones finish for `drain_timeout_s`, then ends everything."""
        await self.server.set_serving(False)
        self.service.is_draining = True
        deadline = asyncio.get_running_loop().time() + drain_timeout_s
        while self.service.running and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_S)
        await self.fleet.close()
        await self.server.stop(_STOP_GRACE_S)


def build_router(text: TextModel, config: RouterConfig) -> Router:
    """A router on the configured port. Raises SetupError when the port is taken."""
    admission: Admission[Member] = Admission(config)
    fleet = Fleet(admission)
    service = RouterService(config, text, fleet, admission)
    server, _ = build_server(
        config.host,
        config.port,
        [
            Service(
                "corun_pd.v1.RouterService", service, router_pb2_grpc.add_RouterServiceServicer_to_server
            ),
            Service(
                "corun_pd.v1.FleetService",
                FleetService(fleet),
                router_pb2_grpc.add_FleetServiceServicer_to_server,
            ),
        ],
    )
    return Router(server, service, fleet)


@asynccontextmanager
async def running_router(
    text: TextModel, config: RouterConfig, drain_timeout_s: float = 10.0
) -> AsyncIterator[Router]:
    """A router that serves while the context lasts."""
    router = build_router(text, config)
    await router.start()
    try:
        yield router
    finally:
        await router.stop(drain_timeout_s)


async def serve_router(
    model: Path,
    config: RouterConfig,
    *,
    drain_timeout_s: float = 10.0,
    serving: Callable[[Router], None] = lambda _: None,
) -> None:
    """Serves until cancelled, and then drains. `serving` is called once the router takes calls.

    Raises SetupError when the model's folder has no usable tokenizer or the port is taken.
    """
    async with running_router(TextModel.load(model), config, drain_timeout_s) as router:
        _tame_collector()
        serving(router)
        await asyncio.Event().wait()


def _tame_collector() -> None:
    """Keeps the garbage collector off what lives as long as the process, such as a tokenizer's library.

    A pass over it takes 100 ms and more, in which no request moves. Requests leave few cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
