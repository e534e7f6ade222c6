"""The CPU worker, V1 runner."""

from vllm.v1.worker import cpu_worker

from corun_pd.engine.vllm.cpu_runner import CoRunCPUModelRunner

__all__ = ["CoRunCPUWorker"]


class CoRunCPUWorker(cpu_worker.CPUWorker):  # type: ignore[misc]
    """Makes this package's runner. vLLM takes it by name (`worker_cls`)."""

    def init_device(self) -> None:
        """Makes the runner. vLLM 0.32.0 names the class in the module, so it is swapped there."""
        stock = cpu_worker.CPUModelRunner
        cpu_worker.CPUModelRunner = CoRunCPUModelRunner
        try:
            super().init_device()
        finally:
            cpu_worker.CPUModelRunner = stock
        if not isinstance(self.model_runner, CoRunCPUModelRunner):
            raise RuntimeError(f"the CPU worker made a {type(self.model_runner).__name__}")
