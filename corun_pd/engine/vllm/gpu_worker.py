"""The CUDA worker, V2 runner."""

from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.worker_base import CompilationTimes

from corun_pd.engine.vllm.gpu_runner import CoRunGPUModelRunner

__all__ = ["CoRunGPUWorker"]


class CoRunGPUWorker(Worker):  # type: ignore[misc]
    """Makes this package's runner. vLLM takes it by name (`worker_cls`)."""

    def _make_model_runner(self) -> CoRunGPUModelRunner:
        if not self.use_v2_model_runner:
            raise RuntimeError("CUDA engines run vLLM's V2 model runner; this model got V1")
        return CoRunGPUModelRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Warms up and captures as vLLM does, then puts the scheme in force."""
        times = super().compile_or_warm_up_model()
        self.model_runner.enforce()
        return times
