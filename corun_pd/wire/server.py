"""Servers and channels with the limits that both ends share.

A server is built (its port bound) apart from being served, and says NOT_SERVING to the standard health
check until `set_serving`, and again before `stop` lets calls drain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from corun_pd.core import MAX_MESSAGE_BYTES
from corun_pd.errors import SetupError

__all__ = ["Server", "Service", "build_server", "open_channel"]

Servicer = TypeVar("Servicer")

#: Both ends. A dead peer is noticed within keepalive time + timeout, even while no bytes flow.
COMMON_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A refused contract names every field that differs, in the trailers.
    ("grpc.max_metadata_size", 64 << 10),
    ("grpc.absolute_max_metadata_size", 128 << 10),
)

SERVER_OPTIONS: Final = (
    *COMMON_OPTIONS,
    # Two processes on one port would share its connections at random.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # gRPC cancels calls at random when over a thousand wait to be taken from one burst, and those that
    # have waited for 30 seconds. Bounding what waits is the router's business, with a status that says so.
    ("grpc.server.max_pending_requests", 1 << 20),
    ("grpc.server.max_pending_requests_hard_limit", 1 << 20),
    ("grpc.server_max_unrequested_time_in_server", 3_600),
)

CHANNEL_OPTIONS: Final = (
    *COMMON_OPTIONS,
    # One connection per channel: a channel's end is its connection's end.
    ("grpc.use_local_subchannel_pool", 1),
    # Instances come back within seconds; the default backs off for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Addresses are the cluster's own, and are not to be looked for beyond a proxy.
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True)
class Service(Generic[Servicer]):
    """A servicer, its full name, and the generated function that adds it to a server."""

    name: str
    servicer: Servicer
    add: Callable[[Servicer, grpc.aio.Server], None]


@dataclass(frozen=True)
class Server:
    """A bound server. `port` is the real one when 0 was asked for."""

    server: grpc.aio.Server
    health: health.aio.HealthServicer
    names: tuple[str, ...]
    host: str
    port: int

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Takes calls. Health says NOT_SERVING until `set_serving`."""
        await self.set_serving(False)
        await self.server.start()

    async def set_serving(self, serving: bool = True) -> None:
        """Tells the standard health check, for every service and for the server as a whole."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else _NOT_SERVING
        for name in ("", *self.names):
            await self.health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Says NOT_SERVING, takes no new calls, waits for running ones, then cancels what is left."""
        await self.health.enter_graceful_shutdown()
        await self.server.stop(grace_s)


_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


def build_server(host: str, port: int, services: Sequence[Service[Any]]) -> tuple[Server, int]:
    """A bound server with health and reflection, and its port. Call from within the event loop.

    Raises SetupError that names the port when it is taken.
    """
    server = grpc.aio.server(options=SERVER_OPTIONS)
    for service in services:
        service.add(service.servicer, server)
    checker = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    names = tuple(service.name for service in services)
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise SetupError(f"port {port} of {host} cannot be bound: taken, or not this machine's") from error
    return Server(server, checker, names, host, bound), bound


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to host:port. Connects when it is first used."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
