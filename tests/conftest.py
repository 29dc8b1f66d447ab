"""Settings of the whole test suite: hypothesis has no deadline (the machine may be busy) and, in CI, no chance."""

import os

from hypothesis import settings

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
