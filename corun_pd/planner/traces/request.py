"""One request of a trace."""

from typing import NamedTuple

__all__ = ["TraceRequest"]


class TraceRequest(NamedTuple):
    """What a plan needs to know of a request. A tuple, since there are millions.

    `arrival_s` counts from the trace's first request; None where the trace has no times. `prefix` names the
    prompt's blocks, of the trace's own block size, so that equal leading names are equal leading tokens;
    None where the trace does not tell. Requests in a row with the same `group` are samples of one prompt, as
    a client asks for with n; None is a request of one sample.
    """

    arrival_s: float | None
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] | None = None
    group: int | None = None
