"""Signals end a server, which gets to clean up."""

import asyncio
import os
import signal

import pytest

from corun_pd.cli.run import serve


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_server_after_it_has_cleaned_up(number: signal.Signals) -> None:
    """It returns: being told to end is no failure."""
    done: list[str] = []

    async def server() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            done.append("drained")

    serve(server())
    assert done == ["drained"]


def test_second_signal_ends_the_draining() -> None:
    """A drain that takes long is cut short."""
    done: list[str] = []

    async def server() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                done.append("cut short")
                raise

    serve(server())
    assert done == ["cut short"]


def test_failure_of_a_server_is_raised() -> None:
    """Only signals are expected ends."""

    async def server() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        serve(server())


def test_signals_work_as_before_afterwards() -> None:
    """A loop's handlers would swallow every later Ctrl-C."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    serve(asyncio.sleep(0))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
