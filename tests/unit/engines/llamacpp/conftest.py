"""Property tests of this folder run beside busy engines: no deadline a example."""

from hypothesis import settings

settings.register_profile("engines", deadline=None)
settings.load_profile("engines")
