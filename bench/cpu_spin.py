"""Does a fixed piece of work over and over: how long each turn takes. Prints the microseconds as JSON.

Standard library only, so that it starts under the installed `cmk isolate` with a bare Python.
"""

import gc
import json
import sys
import time

STEPS = 2000
"""Of one turn: about 50 microseconds."""


def main(seconds: float) -> list[float]:
    gc.disable()
    clock = time.perf_counter_ns
    nanos: list[int] = []
    before = clock()
    end = before + int(seconds * 1e9)
    while before < end:
        for _ in range(STEPS):
            pass
        now = clock()
        nanos.append(now - before)
        before = now
    return [duration / 1000 for duration in nanos]


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]))))
