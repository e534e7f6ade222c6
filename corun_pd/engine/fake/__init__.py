"""The double of the engine: same contract, no model.

Tokens are a pure function of the request, so whatever is true of the services, the router and the
client with a real engine can be tested, and measured, without one.
"""

from corun_pd.engine.fake.engine import FakeEngine
from corun_pd.engine.fake.faults import FakeFaults

__all__ = ["FakeEngine", "FakeFaults"]
