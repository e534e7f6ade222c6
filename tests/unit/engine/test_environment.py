"""The environment of an engine: ports of the KV side channel."""

import socket

import pytest

from corun_pd.engine.vllm import environment
from corun_pd.errors import SetupError


def test_two_engines_never_claim_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claimed port is not given again although nothing listens on it yet."""
    monkeypatch.setattr(environment, "PORTS", range(23990, 23993))
    ports = {environment.claim_port("127.0.0.1") for _ in range(2)}
    assert len(ports) == 2


def test_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that another program listens on is not chosen; when all are taken the error says so."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 23995))
        busy.listen()
        monkeypatch.setattr(environment, "PORTS", range(23995, 23996))
        with pytest.raises(SetupError, match="from 23995 to 23995"):
            environment.claim_port("127.0.0.1")


def test_host_that_is_not_this_machine_is_named() -> None:
    """An address of another machine cannot be bound, and the error names it."""
    with pytest.raises(SetupError, match=r"192\.0\.2\.1"):
        environment.claim_port("192.0.2.1")
