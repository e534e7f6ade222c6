"""Property tests of the router: no deadline, since the machine may be busy with engines."""

from hypothesis import settings

settings.register_profile("router", deadline=None, max_examples=60)
settings.load_profile("router")
