"""The CPU worker, V1 runner."""

import contextlib
from typing import Any

from vllm.v1.worker import cpu_worker

from corun_pd.core import Role
from corun_pd.engine.vllm import collectives, random_weights
from corun_pd.engine.vllm.cpu_runner import CoRunCPUModelRunner
from corun_pd.engine.vllm.settings import Settings

__all__ = ["CoRunCPUWorker"]


class CoRunCPUWorker(cpu_worker.CPUWorker):  # type: ignore[misc]
    """Makes this package's runner. vLLM takes it by name (`worker_cls`)."""

    def init_device(self) -> None:
        """Makes the runner. vLLM 0.32.0 names the class in the module, so it is swapped there."""
        if self.vllm_config.kv_transfer_config is not None:
            from corun_pd.engine.vllm import nixl_progress

            nixl_progress.install()
        is_standard = Settings.from_vllm(self.vllm_config).role is Role.STANDARD
        stock = cpu_worker.CPUModelRunner
        cpu_worker.CPUModelRunner = CoRunCPUModelRunner
        try:
            with contextlib.nullcontext() if is_standard else collectives.fixed_tree():
                super().init_device()
        finally:
            cpu_worker.CPUModelRunner = stock
        if not isinstance(self.model_runner, CoRunCPUModelRunner):
            raise RuntimeError(f"the CPU worker made a {type(self.model_runner).__name__}")

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Loads the model."""
        if self.load_config.load_format == "dummy":
            random_weights.install()
        super().load_model(*args, **kwargs)
