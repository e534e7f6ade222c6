"""An engine in a process of its own, driven without any service: what the engine experiments run on.

The parent sends jobs over a pipe and gets records back. A process holds one engine for its life, so
that configurations are compared from equal starts and a restart is a restart.
"""

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

from corun_pd.bench.records import Job, Record, Run
from corun_pd.config import EngineConfig
from corun_pd.core import Role
from corun_pd.engine.base import EngineInfo
from corun_pd.errors import EngineFailed

__all__ = ["EngineProcess", "Job", "Record", "Run"]


class EngineProcess:
    """Starts the engine; `run` takes jobs one after the other. Its output goes to `log`."""

    def __init__(
        self,
        model: Path,
        role: Role,
        config: EngineConfig,
        log: Path,
        environment: dict[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, model, role, config, log, environment or {})
        self._process = context.Process(target=_serve, args=arguments, daemon=False)
        self._process.start()
        theirs.close()
        self._is_lost = False
        self.log = log

    def ready(self, timeout_s: float = 300.0) -> EngineInfo:
        """Waits for the engine. Raises EngineFailed, naming the log, when it does not come up."""
        info = self._receive(timeout_s)
        assert isinstance(info, EngineInfo)
        return info

    def run(self, job: Job, timeout_s: float = 600.0) -> Run:
        """Runs a job. Raises EngineFailed when a request fails or the process dies."""
        self.begin(job)
        return self.end(timeout_s)

    def begin(self, job: Job) -> None:
        """Starts a job; `end` waits for it. One at a time."""
        try:
            self._pipe.send(job)
        except OSError as error:
            raise EngineFailed(f"the engine process ended; see {self.log}") from error

    def end(self, timeout_s: float = 600.0) -> Run:
        """Waits for the job that `begin` started. Raises as `run` does."""
        run = self._receive(timeout_s)
        assert isinstance(run, Run)
        return run

    @property
    def is_lost(self) -> bool:
        """Whether the process ended or did not answer in time: it takes no more jobs."""
        return self._is_lost

    def _receive(self, timeout_s: float) -> object:
        try:
            if not self._pipe.poll(timeout_s):
                self._is_lost = True
                raise EngineFailed(f"no answer within {timeout_s:.0f} s; see {self.log}")
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._is_lost = True
            raise EngineFailed(f"the engine process ended; see {self.log}") from error
        if isinstance(answer, str):
            raise EngineFailed(f"{answer}; see {self.log}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(0 if self._is_lost else 30)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(
    pipe: Connection, model: Path, role: Role, config: EngineConfig, log: Path, environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from corun_pd.bench.driver import serve  # imported here: the engine's environment is set first

    serve(pipe, model, role, config)
