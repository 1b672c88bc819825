"""For all tests: how laws are searched, and that programs hear of signals.

A law has no time limit: how fast something is belongs into `bench/`, and machines are noisy. `make test` tries the same
cases on every run, so that it never fails for what a change has not touched; `make laws` looks for new ones.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# a shell that starts the tests in the background has them, and all that they start, ignore these
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)
