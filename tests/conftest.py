"""Settings of the whole test suite: hypothesis has no deadline and minds no slow machine, and the same sources get the same examples.

GATEHOUSE_TEST_CHANCE=1 draws new examples in each run, to look for what the usual ones miss.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("chance", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chance" if os.environ.get("GATEHOUSE_TEST_CHANCE") == "1" else "same")
