"""For all tests: a law has no time limit. How fast something is belongs into `bench/`, and machines are noisy."""

from hypothesis import settings

settings.register_profile("nodewise", deadline=None)
settings.load_profile("nodewise")
