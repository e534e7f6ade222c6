"""The kernels of a model's step, run on the machine at hand: are they batch- and position-invariant?"""

from corun_pd.engine.vllm.operators.check import examine_operators, require_operators

__all__ = ["examine_operators", "require_operators"]
