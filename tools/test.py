"""Runs every tier of tests that this machine can run, and closes with a list of what was not run and why.

Called by `make test`. With `--require all` a test that cannot run is a failure. The real programs are built or fetched
(once, into a cache outside the tree) while the quick tiers run; see `tests/cluster/programs.py`. Tiers of a pair run
side by side: the one waits for containers and machines where the other computes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple

PYTEST = [sys.executable, "-m", "pytest"]


class Tier(NamedTuple):
    """Folders of tests that run together, and further arguments for pytest."""

    name: str
    folders: tuple[str, ...]
    arguments: tuple[str, ...] = ()


QUICK = Tier("unit and laws", ("tests/unit", "tests/laws"), ("-n", "2"))
PAIR = (
    Tier("conformance", ("tests/conformance", "tests/hostile"), ("-n", "2")),
    Tier("node", ("tests/node",)),
)
LAST = Tier("cluster", ("tests/cluster",))
"""Alone: it has faults in it whose end it waits for."""


class Outcome(NamedTuple):
    """What came of a tier."""

    tier: str
    code: int
    seconds: float
    passed: int
    failed: int
    not_run: list[str]


def run(tier: Tier, environment: dict[str, str], output: IO[bytes] | None = None) -> Outcome:
    """Run one tier; its output goes to the terminal as it comes, unless there is a place for it."""
    if output is None:
        print(f"\n== {tier.name}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [*PYTEST, *tier.folders, *tier.arguments, f"--junitxml={report}"]
        code = subprocess.run(
            command, env=environment, stdout=output, stderr=output and subprocess.STDOUT, check=False
        ).returncode
        passed, failed, not_run = read(report)
    return Outcome(tier.name, code, time.monotonic() - began, passed, failed, not_run)


def run_pair(first: Tier, second: Tier, environment: dict[str, str]) -> list[Outcome]:
    """Run two tiers side by side; the second one's output comes when both are done."""
    with tempfile.TemporaryFile() as output, ThreadPoolExecutor(1) as other:
        beside = other.submit(run, second, environment, output)
        outcomes = [run(first, environment), beside.result()]
        output.seek(0)
        print(f"\n== {second.name}, run beside {first.name}")
        print(output.read().decode(errors="replace"), end="", flush=True)
    return outcomes


def read(report: Path) -> tuple[int, int, list[str]]:
    """Tests passed and failed, and the reasons of those that were skipped, each once."""
    if not report.exists():
        return 0, 1, []
    cases = list(ET.parse(report).iter("testcase"))
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = [case.find("skipped") for case in cases if case.find("skipped") is not None]
    reasons = [skip.get("message", "") for skip in skipped if skip is not None]
    return len(cases) - failed - len(skipped), failed, sorted(set(reasons))


def close(outcomes: list[Outcome]) -> int:
    """The closing lines; the exit code."""
    print()
    for one in outcomes:
        verdict = "passed" if one.code == 0 else "FAILED"
        print(f"{one.tier}: {verdict}, {one.passed} tests in {one.seconds:.0f} s")
    not_run = sorted({reason for one in outcomes for reason in one.not_run})
    print("everything was run" if not not_run else "not run on this machine:")
    for reason in not_run:
        print(f"  - {reason.removeprefix('not run: ')}")
    print(f"\n{sum(o.passed for o in outcomes)} passed, {sum(o.failed for o in outcomes)} failed", flush=True)
    return 0 if all(one.code == 0 for one in outcomes) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--require", choices=["all"], default="", help="what cannot run is a failure")
    require = parser.parse_args().require
    environment = os.environ | ({"NODEWISE_REQUIRE": require} if require else {})
    with tempfile.TemporaryFile() as log:
        # a tier that needs the programs asks for them again and says then what is wrong, so nothing is lost here
        building = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.programs"], stdout=log, stderr=log, env=environment
        )
        outcomes = [run(QUICK, environment), *run_pair(*PAIR, environment)]
        if building.poll() is None:
            print("\n== waiting for the real programs to be built", flush=True)
        building.wait()
        outcomes.append(run(LAST, environment))
    return close(outcomes)


if __name__ == "__main__":
    sys.exit(main())
