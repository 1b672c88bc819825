"""The calculation of the figures about `isolate`."""

import time

from bench import isolate_startup_and_jitter, timed_busy_loop
from bench.results import ISOLATED, PLAIN


def test_the_overhead_is_the_difference_of_rounds_that_belong_together() -> None:
    starts = {
        ISOLATED: [{"p50_ms": 60.0}, {"p50_ms": 90.0}, {"p50_ms": 61.0}],
        PLAIN: [{"p50_ms": 1.0}, {"p50_ms": 30.0}, {"p50_ms": 1.5}],
    }
    assert isolate_startup_and_jitter.overhead(starts) == {"isolate_overhead_ms": 59.5}


def test_a_tail_is_the_excess_of_the_slowest_turn_in_a_thousand() -> None:
    summary = isolate_startup_and_jitter.iteration_summary([50.0] * 1998 + [80.0, 900.0])
    assert summary == {"p50_us": 50.0, "p999_us": 50.0, "max_us": 900.0, "turns": 2000}
    summary = isolate_startup_and_jitter.iteration_summary([50.0] * 1997 + [80.0, 90.0, 900.0])
    tails = isolate_startup_and_jitter.tails(
        {isolate_startup_and_jitter.PINNED: [summary, summary | {"p999_us": 85.0}, summary]}
    )
    assert tails == {"jitter_exclusive_p999_us": 30.0}


def test_turns_are_all_of_the_time() -> None:
    began = time.perf_counter()
    micros = timed_busy_loop.main(0.05)
    assert 0.05e6 <= sum(micros) <= 1e6 * (time.perf_counter() - began)
