"""Tensor-parallel ranks without an engine: processes that add terms by one all-reduce or another.

What `corun-pd verify --operators` examines. Over gloo on the CPU, over NCCL with a GPU for each rank. The
processes import torch and this package, and nothing of vLLM's, so that they start in seconds.
"""

import hashlib
import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import torch
from torch import distributed

from corun_pd.engine.vllm.fixed_tree import tree_sum

__all__ = ["RankGroup", "bank_of"]

#: How long ranks may take to find each other, and then to add. In seconds.
START_S, ANSWER_S = 120.0, 60.0

AllReduce = Callable[[torch.Tensor], torch.Tensor]


class RankGroup:
    """`size` ranks, each with a bank of `rows` + 1 rows of `width` normal values, the last of them zeros."""

    def __init__(self, size: int, rows: int, width: int, dtype: torch.dtype, kind: str) -> None:
        self.size, self.rows, self._dtype = size, rows, dtype
        self._folder = tempfile.TemporaryDirectory()
        place = f"file://{Path(self._folder.name, 'store')}"
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(size):
            pipe, theirs = context.Pipe()
            given = (theirs, place, rank, size, (rows, width), dtype, kind)
            process = context.Process(target=_serve, args=given, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(pipe)
            self._processes.append(process)
        try:
            self._answers(START_S)
        except RuntimeError as error:
            self.__exit__(type(error), error, None)
            raise

    def all_reduce(self, kernel: str, rows: torch.Tensor) -> torch.Tensor:
        """The sum of each rank's own terms in these rows of its bank. rows: [R]; returns [R, width].

        `kernel` is `fixed tree`, `library` or `ring`. Raises RuntimeError when a rank fails or ranks differ.
        """
        for pipe in self._pipes:
            pipe.send((kernel, rows.tolist()))
        digests, data = zip(*self._answers(ANSWER_S), strict=True)
        if len(set(digests)) > 1:
            raise RuntimeError(f"ranks have other sums than one another: {kernel}")
        values = torch.frombuffer(bytearray(data[0]), dtype=self._dtype)
        return values.reshape(len(rows), -1)

    def _answers(self, timeout_s: float) -> list[tuple[str, bytes]]:
        answers = []
        for rank, pipe in enumerate(self._pipes):
            try:
                if not pipe.poll(timeout_s):
                    raise RuntimeError(f"rank {rank} of {self.size} did not answer within {timeout_s:g} s")
                answer = pipe.recv()
            except EOFError:
                raise RuntimeError(f"rank {rank} of {self.size} ended") from None
            if isinstance(answer, str):
                raise RuntimeError(f"rank {rank} of {self.size}: {answer}")
            answers.append(answer)
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(0 if error else 10)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


def bank_of(rank: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """A rank's terms: `shape[0]` rows of normal values, and one of zeros."""
    bank = torch.randn((shape[0] + 1, shape[1]), generator=torch.Generator().manual_seed(41 + rank))
    bank[-1] = 0
    return bank.to(dtype)


def _serve(
    pipe: Connection,
    place: str,
    rank: int,
    size: int,
    shape: tuple[int, int],
    dtype: torch.dtype,
    kind: str,
) -> None:
    try:
        device = torch.device("cpu" if kind == "cpu" else f"{kind}:{rank}")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backend = "gloo" if kind == "cpu" else "nccl"
        distributed.init_process_group(backend, init_method=place, rank=rank, world_size=size)
        bank = bank_of(rank, shape, dtype).to(device)
        pipe.send(("", b""))
        while True:
            kernel, rows = pipe.recv()
            data = _KERNELS[kernel](bank[rows]).cpu().contiguous().view(torch.uint8).numpy().tobytes()
            pipe.send((hashlib.sha256(data).hexdigest(), data if rank == 0 else b""))
    except EOFError:
        distributed.destroy_process_group()
    except Exception as error:  # noqa: BLE001 - whatever a library raises here is the group's finding
        pipe.send((str(error).strip() or type(error).__name__).splitlines()[0])


def _fixed_tree(terms: torch.Tensor) -> torch.Tensor:
    everyone = terms.new_empty(distributed.get_world_size() * len(terms), terms.shape[1])
    distributed.all_gather_into_tensor(everyone, terms.contiguous())
    return tree_sum(everyone.view(-1, *terms.shape))


def _library(terms: torch.Tensor) -> torch.Tensor:
    total = terms.clone()
    distributed.all_reduce(total)
    return total


def _ring(terms: torch.Tensor) -> torch.Tensor:
    """The buffer in as many pieces as ranks; each goes around once to be added up, and once as the sum."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    pieces = list(terms.flatten().clone().tensor_split(size))

    def pass_on(gives: int, takes: int) -> torch.Tensor:
        taken = torch.empty_like(pieces[takes % size])
        moves = [
            distributed.P2POp(distributed.isend, pieces[gives % size], (rank + 1) % size),
            distributed.P2POp(distributed.irecv, taken, (rank - 1) % size),
        ]
        for move in distributed.batch_isend_irecv(moves):
            move.wait()
        return taken

    for step in range(size - 1):
        pieces[(rank - step - 1) % size] += pass_on(rank - step, rank - step - 1)
    for step in range(size - 1):
        pieces[(rank - step) % size] = pass_on(rank - step + 1, rank - step)
    return torch.cat(pieces).view(terms.shape)


_KERNELS: Final[dict[str, AllReduce]] = {"fixed tree": _fixed_tree, "library": _library, "ring": _ring}
