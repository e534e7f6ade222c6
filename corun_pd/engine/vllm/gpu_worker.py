"""The CUDA worker, V2 runner."""

from vllm.v1.worker.gpu_worker import Worker

from corun_pd.engine.vllm.gpu_runner import CoRunGPUModelRunner

__all__ = ["CoRunGPUWorker"]


class CoRunGPUWorker(Worker):  # type: ignore[misc]
    """Makes this package's runner. vLLM takes it by name (`worker_cls`)."""

    def _make_model_runner(self) -> CoRunGPUModelRunner:
        if not self.use_v2_model_runner:
            raise RuntimeError("CUDA engines run vLLM's V2 model runner; this model got V1")
        return CoRunGPUModelRunner(self.vllm_config, self.device)
