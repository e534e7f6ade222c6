"""What keeps an engine from starting is said, and soon (C28)."""

import socket
import subprocess
import sys

from tests.engine.conftest import model_of

SCRIPT = """
import asyncio, os, sys
from pathlib import Path
from corun_pd.config import EngineConfig, PrefillConfig
from corun_pd.core import Role
from corun_pd.engine.vllm import environment
from corun_pd.engine.vllm.engine import VllmEngine
from corun_pd.errors import SetupError

environment.claim_port = lambda host: int(sys.argv[2])
config = EngineConfig(prefill=PrefillConfig(chunk_tokens=64), max_model_tokens=256, kv_cache_bytes=1 << 26)
try:
    asyncio.run(VllmEngine(Path(sys.argv[1]), Role.PREFILL, config, "127.0.0.1").start())
except SetupError as error:
    print(error, flush=True)
    os._exit(2)
"""


def test_side_channel_on_a_busy_port_fails_the_start() -> None:
    """vLLM waits for good on a KV side channel that cannot listen; the engine names the port instead."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        command = [sys.executable, "-c", SCRIPT, str(model_of("qwen3")), str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 2, done.stderr[-2000:]
    assert f"cannot listen on port {port}" in done.stdout.splitlines()[-1]


ROUTER_SCRIPT = """
import sys
from pathlib import Path
from corun_pd.router.text import TextModel
text = TextModel.load(Path(sys.argv[1]))
assert "torch" not in sys.modules
from transformers import AutoTokenizer
reference = AutoTokenizer.from_pretrained(sys.argv[1]).backend_tokenizer
assert text._backend.to_str() == reference.to_str()
"""


def test_a_router_reads_a_tokenizer_without_torch() -> None:
    """Where the folder names the generic class; and it is the tokenizer that AutoTokenizer gives."""
    command = [sys.executable, "-c", ROUTER_SCRIPT, str(model_of("qwen3"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
