"""What a supervisor asks a router: does it serve, and who has joined?"""

from collections import Counter
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2

from corun_pd.client import AsyncClient, RetryPolicy
from corun_pd.core import Role
from corun_pd.errors import CorunError
from corun_pd.wire.server import open_channel

__all__ = ["Watcher"]

CALL_TIMEOUT_S = 2.0


class Watcher:
    """Watches the router at host:port, which need not be there yet."""

    def __init__(self, router: str) -> None:
        self._channel = open_channel(router)
        self._check = self._channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        self._client = AsyncClient(router, retry=RetryPolicy(max_attempts=1))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()
        await self._channel.close()

    async def is_serving(self) -> bool:
        """What the standard health check says of the router as a whole."""
        try:
            answer = await self._check(health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def member_roles(self) -> Counter[Role] | None:
        """How many instances of each role have joined; None when the router does not say."""
        try:
            fleet = await self._client.describe(timeout_s=CALL_TIMEOUT_S)
        except CorunError:
            return None
        return Counter(member.instance.role for member in fleet.members)
