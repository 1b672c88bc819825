"""The longest steps of the event loop, from what the measured process writes."""

import asyncio
import json
import time

import pytest
from bench import stepping, steps
from bench.steps import Step


def test_only_steps_of_the_time_are_read(tmp_path):
    path = tmp_path / "steps"
    path.write_text("".join(json.dumps(Step(at, 1.0, 1.0, 0.0, 0, "x")._asdict()) + "\n" for at in (1, 2, 3)))
    assert [step.at_s for step in steps.read(path, 2, 3)] == [2]


def test_the_longest_is_by_processor_time():
    found = [Step(1, 9.0, 1.0, 0.0, 0, "waited"), Step(2, 3.0, 2.5, 0.1, 0, "worked")]
    assert steps.figures([found]) == {"loop_step_max_ms": 2.5, "loop_step_wall_max_ms": 9.0}


def test_of_the_rounds_the_middle_one_counts():
    rounds = [[Step(1, 1.0, longest, 0.0, 0, "x")] for longest in (1.5, 9.0, 1.7)]
    assert steps.figures(rounds)["loop_step_max_ms"] == 1.7


def test_a_round_in_which_nothing_was_measured_is_an_error():
    with pytest.raises(RuntimeError, match="no step"):
        steps.figures([[Step(1, 1.0, 1.0, 0.0, 0, "x")], []])


def test_steps_are_told_by_what_ran_the_worst_first():
    found = [Step(1, 1.0, 0.6, 0.0, 0, "a"), Step(2, 4.0, 3.0, 0.5, 70, "b"), Step(3, 2.5, 2.1, 0.0, 0, "b")]
    assert steps.longest(found) == [
        {"name": "b", "long": 2, "too_long": 2, "cpu_ms": 3.0, "wall_ms": 4.0, "gc_ms": 0.5, "pages": 70},
        {"name": "a", "long": 1, "too_long": 0, "cpu_ms": 0.6, "wall_ms": 1.0, "gc_ms": 0.0, "pages": 0},
    ]


def test_a_step_within_a_step_is_part_of_it():
    measured = stepping.Steps(lambda _: None)
    assert measured.run(lambda: measured.run(lambda: 7)) == 7
    assert measured.count == 2  # what the loop did before it, and the step


def test_a_step_that_works_long_is_kept_with_its_name():
    found: list[Step] = []
    measured = stepping.Steps(found.append)
    began = time.thread_time()

    def work() -> None:
        while time.thread_time() < began + 2 * steps.LEAST_MS / 1000:
            pass

    measured.run(work)
    assert found[-1].name.endswith("work")
    assert found[-1].cpu_ms >= steps.LEAST_MS


def test_every_step_of_the_loop_is_measured():
    async def ours() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)

    before = stepping.STEPS.count
    with asyncio.Runner(loop_factory=stepping.Loop) as runner:
        runner.run(ours())
    assert stepping.STEPS.count - before >= 6  # three steps of the task, each with what came before it
