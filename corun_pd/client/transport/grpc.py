"""The router over gRPC."""

from collections.abc import AsyncGenerator

import grpc

from corun_pd.client.request import GenerationRequest
from corun_pd.client.results import Fleet, GenerationResult, StreamEvent
from corun_pd.client.transport import messages
from corun_pd.client.transport.base import Transport
from corun_pd.client.transport.shared import SharedCallTransport
from corun_pd.v1 import router_pb2, router_pb2_grpc
from corun_pd.wire.server import open_channel
from corun_pd.wire.status import error_from_rpc

__all__ = ["GrpcTransport"]


class GrpcTransport:
    """One channel to a router at `address`, host:port; opened by the first call, in that call's loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel: grpc.aio.Channel | None = None
        self._stub: router_pb2_grpc.RouterServiceStub | None = None

    async def generate(self, request: GenerationRequest, timeout_s: float | None) -> GenerationResult:
        """The whole answer, of one Generate call."""
        message = router_pb2.GenerateRequest(generation=messages.request_to_pb(request))
        try:
            answer = await self._router().Generate(message, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return messages.result_from_pb(answer)

    async def stream(
        self, request: GenerationRequest, timeout_s: float | None
    ) -> AsyncGenerator[StreamEvent, None]:
        """The events of one StreamGenerate call; closing the generator cancels it."""
        message = router_pb2.StreamGenerateRequest(generation=messages.request_to_pb(request))
        call = self._router().StreamGenerate(message, timeout=timeout_s)
        try:
            async for answer in call:
                for event in messages.events_from_pb(answer):
                    yield event
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            call.cancel()

    def shared(self) -> Transport:
        """All generations over one GenerateMany call."""
        return SharedCallTransport(self, self._router())

    async def describe(self, timeout_s: float | None) -> Fleet:
        """The fleet, of one DescribeFleet call."""
        try:
            answer = await self._router().DescribeFleet(router_pb2.DescribeFleetRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return messages.fleet_from_pb(answer)

    async def close(self) -> None:
        """Cancels the calls and closes the channel."""
        if self._channel is not None:
            await self._channel.close()

    def _router(self) -> router_pb2_grpc.RouterServiceStub:
        if self._stub is None:
            self._channel = open_channel(self.address)
            self._stub = router_pb2_grpc.RouterServiceStub(self._channel)
        return self._stub
