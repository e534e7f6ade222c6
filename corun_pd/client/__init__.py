"""The client SDK.

    with Client("127.0.0.1:50051") as client:
        print(client.generate("The river", max_tokens=8, temperature=0, seed=7).text)

`AsyncClient` is the same in async. Errors are the classes of `corun_pd.errors`.
"""

from corun_pd.client.aio import AsyncClient
from corun_pd.client.blocking import Client, Stream
from corun_pd.client.request import ChatMessage, GenerationRequest, Options, Prompt, Route, build_request
from corun_pd.client.results import (
    Choice,
    Delta,
    Fleet,
    FleetMember,
    GenerationResult,
    Placement,
    ScoredPrompt,
    StreamEnd,
    StreamEvent,
    StreamStart,
    Timings,
    Usage,
)
from corun_pd.client.retry import RetryPolicy
from corun_pd.client.stream import AsyncStream
from corun_pd.client.transport import GrpcTransport, MockTransport, Transport
from corun_pd.client.transport.mock import make_result
from corun_pd.core import FinishReason, TokenLogprobs

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "ChatMessage",
    "Choice",
    "Client",
    "Delta",
    "FinishReason",
    "Fleet",
    "FleetMember",
    "GenerationRequest",
    "GenerationResult",
    "GrpcTransport",
    "MockTransport",
    "Options",
    "Placement",
    "Prompt",
    "RetryPolicy",
    "Route",
    "ScoredPrompt",
    "Stream",
    "StreamEnd",
    "StreamEvent",
    "StreamStart",
    "Timings",
    "TokenLogprobs",
    "Transport",
    "Usage",
    "build_request",
    "make_result",
]
