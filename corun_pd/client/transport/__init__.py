"""The seam between the client and the router: gRPC, or a mock for users' own tests."""

from corun_pd.client.transport.base import Transport
from corun_pd.client.transport.grpc import GrpcTransport
from corun_pd.client.transport.mock import MockTransport

__all__ = ["GrpcTransport", "MockTransport", "Transport"]
