"""vLLM 0.32.0 under the determinism scheme: the only place that imports vllm and torch."""
