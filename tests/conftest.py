"""For all tests: how laws are searched.

A law has no time limit: how fast something is belongs into `bench/`, and machines are noisy. `make test` tries the same
cases on every run, so that it never fails for what a change has not touched; `make laws` looks for new ones.
"""

import os

from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
