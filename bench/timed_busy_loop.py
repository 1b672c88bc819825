"""Repeats a fixed piece of work and measures each iteration. Prints the durations in microseconds as JSON.

It uses only the standard library, so that it runs under the installed `cmk isolate` with a bare Python.
"""

import gc
import json
import sys
import time

STEPS = 2000
"""Steps of one iteration: about 50 microseconds."""


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
