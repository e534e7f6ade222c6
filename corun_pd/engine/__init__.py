"""Engines: the seam, the fake one, the vLLM one, and the bridge from an engine to its calls."""
