"""The CUDA workers, V2 runner."""

from typing import Any

from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.worker_base import CompilationTimes

from corun_pd.engine.vllm import collectives, random_weights
from corun_pd.engine.vllm.gpu_runner import CoRunGPUModelRunner

__all__ = ["CoRunGPUWorker", "StandardGPUWorker"]


class StandardGPUWorker(Worker):  # type: ignore[misc]
    """vLLM's own worker, but for what random weights are."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Loads the model."""
        if self.load_config.load_format == "dummy":
            random_weights.install()
        super().load_model(*args, **kwargs)


class CoRunGPUWorker(StandardGPUWorker):
    """Makes this package's runner. vLLM takes it by name (`worker_cls`)."""

    def init_device(self) -> None:
        """Takes the device and joins the other ranks, with which it adds in a fixed order."""
        with collectives.fixed_tree():
            super().init_device()

    def _make_model_runner(self) -> CoRunGPUModelRunner:
        if not self.use_v2_model_runner:
            raise RuntimeError("CUDA engines run vLLM's V2 model runner; this model got V1")
        return CoRunGPUModelRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Warms up and captures as vLLM does, then puts the scheme in force."""
        times = super().compile_or_warm_up_model()
        self.model_runner.enforce()
        return times
