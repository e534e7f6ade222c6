"""The process environment of an engine: what vLLM, OpenMP and UCX read before they are imported.

Every variable that can change a bit is in `CONTRACT_VARIABLES` and part of the contract. All of them
are set here, whatever the shell had, so that two hosts with other profiles run alike.
"""

import errno
import fcntl
import os
import random
import socket
import sys
import tempfile
from pathlib import Path
from typing import IO, Final

from corun_pd.config import Ablation, EngineConfig
from corun_pd.errors import SetupError

__all__ = ["CONTRACT_VARIABLES", "claim_port", "prepare"]

#: Where side channels listen: below the ephemeral ports of Linux and the usual services.
PORTS: Final = range(22000, 24000)

_claims: list[IO[str]] = []

CONTRACT_VARIABLES = (
    "OMP_NUM_THREADS",
    "TORCHDYNAMO_DISABLE",
    "VLLM_BATCH_INVARIANT",
    "VLLM_CPU_ATTN_SPLIT_KV",
    "VLLM_USE_FLASHINFER_SAMPLER",
    "VLLM_USE_V2_MODEL_RUNNER",
)


def prepare(config: EngineConfig, host: str) -> None:
    """Sets the environment. Raises SetupError when vLLM is in the process already."""
    if "vllm" in sys.modules:
        raise SetupError("vllm was imported before the engine's environment was set")
    os.environ.update(
        OMP_NUM_THREADS=str(config.cpu_threads),
        VLLM_BATCH_INVARIANT="1" if config.prefill.mode == "batch-invariant" else "0",
        # The KV split budget looks at the whole batch; without it a row's reduction is its own.
        VLLM_CPU_ATTN_SPLIT_KV="1" if Ablation.NO_SPLIT_KV in config.ablate else "0",
        # FlashInfer's sampler is chosen by what the batch holds.
        VLLM_USE_FLASHINFER_SAMPLER="0",
        # Helpers of the sampler are compiled even in eager mode; that takes half a minute.
        TORCHDYNAMO_DISABLE="0" if config.compile else "1",
        # The engine core runs in this process, in a thread that this package owns.
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        # Tensor-parallel ranks are processes. This one has threads, which a fork would not survive.
        VLLM_WORKER_MULTIPROC_METHOD="spawn",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NIXL_SIDE_CHANNEL_HOST=host,
        VLLM_NIXL_SIDE_CHANNEL_PORT=str(claim_port(host)),
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
    )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def claim_port(host: str) -> int:
    """A TCP port of `host` for the KV side channel, claimed for the life of this process.

    vLLM binds it many seconds after it is chosen, so the port lies below those that the system hands out
    to whoever asks for any, and a lock file keeps other engines of this host off it. Raises SetupError
    when none is left.
    """
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        lock = Path(tempfile.gettempdir(), f"corun-pd-port-{port}.lock").open("w")  # noqa: SIM115 - held for good
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind((host, port))
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise SetupError(f"no port can be opened on {host}: {error.strerror}") from error
            continue
        _claims.append(lock)
        return port
    raise SetupError(f"every port from {PORTS.start} to {PORTS.stop - 1} of {host} is taken")
