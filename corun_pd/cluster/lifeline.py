"""What a supervised role does when its supervisor is gone: it takes its process group down."""

import os
import signal
import sys
import threading

__all__ = ["hold"]


def hold() -> None:
    """Watches standard input from a thread of its own; its end kills this process's group.

    Only for a process that leads its own session and whose standard input nobody writes to.
    """
    threading.Thread(target=_watch, args=(sys.stdin.fileno(),), name="lifeline", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
