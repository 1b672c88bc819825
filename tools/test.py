"""Runs every tier of tests that this machine can run, and closes with a list of what was not run and why.

Called by `make test`. With `--require all` a test that cannot run is a failure. The quick tiers come first. The others
wait for servers and containers half of their time, so there are more lanes than cores, and each takes the next tier as
soon as it is done with one. A tier's output comes when it has ended. The real programs are built or fetched (once, into
a cache outside the tree) meanwhile; see `tests/cluster/programs.py`.

What fails beside other tiers is run once more when nothing else runs. If it passes then, it is named at the end as
unsteady, and what it said stands above: the test or the product has a race, to be found and mended. The quick tiers,
with all laws, have no second try.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

PYTEST = [sys.executable, "-m", "pytest"]
ROOT = Path(__file__).parents[1]
SLOWEST = 10
"""So many files are named at the end."""
LONGEST_S = 2400
"""Of one tier: three times what the longest takes on two cores."""
MOST_TRIED_AGAIN = 40
"""Where more failed, something is broken, and it is not worth the time."""


class Tier(NamedTuple):
    """Tests that run in one call of pytest: folders and files, and further arguments."""

    name: str
    paths: tuple[str, ...]
    arguments: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """What came of a tier."""

    tier: str
    code: int
    seconds: float
    passed: int
    failed: list[str]
    not_run: list[str]
    file_seconds: Mapping[str, float]
    output: bytes
    unsteady: tuple[str, ...] = ()
    """Failed beside other tiers, and passed alone."""


QUICK = Tier("unit and laws", ("tests/unit", "tests/laws"), ("-n", "2"))
PARTS = {
    "cluster: replicas and faults": ("tests/cluster", ("availability", "faults", "waking", "rotation*")),
    "conformance: configure": ("tests/conformance", ("configure/*",)),
    "node: pods": ("tests/node", ("*pod*", "learn", "image*", "migrate_*")),
    "cluster: set up": (
        "tests/cluster",
        ("certs", "chart", "configur*", "doctor*", "how_to*", "kubeadm*", "second_scheduler"),
    ),
    "cluster: cores": ("tests/cluster", ("cpu_*",)),
    "cluster: cards": ("tests/cluster", ("gpu_*", "gas_*")),
    "cluster": ("tests/cluster", ("**/*",)),
    "conformance: cores": ("tests/conformance", ("cmk/*",)),
    "node": ("tests/node", ("**/*",)),
    "hostile": ("tests/hostile", ("**/*",)),
    "conformance": ("tests/conformance", ("**/*",)),
}
"""In the order in which they begin; the last one of a folder has what is in no other. Each has a control plane of its
own, where it needs one."""


def tiers() -> list[Tier]:
    """Those that share the lanes; together with the quick ones they have every test."""
    left = set((ROOT / "tests").rglob("test_*.py"))
    left -= {path for folder in QUICK.paths for path in (ROOT / folder).rglob("test_*.py")}
    found = []
    for name, (folder, patterns) in PARTS.items():
        files = left.intersection(path for one in patterns for path in (ROOT / folder).glob(as_file(one)))
        left -= files
        found.append(Tier(name, tuple(sorted(str(path.relative_to(ROOT)) for path in files))))
    assert not left, f"in no part of tools/test.py: {', '.join(map(str, left))}"
    return found


def as_file(pattern: str) -> str:
    """`cmk/*` is `cmk/test_*.py`."""
    folder, _, name = pattern.rpartition("/")
    return str(Path(folder, f"test_{name}.py"))


def run(tier: Tier, environment: Mapping[str, str]) -> Outcome:
    """Run one tier, to its end."""
    print(f"== {tier.name}: begun", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [*PYTEST, *tier.paths, *tier.arguments, f"--junitxml={report}"]
        code, said = to_the_end(command, environment)
        return Outcome(tier.name, code, time.monotonic() - began, *read(report), said)


def to_the_end(command: list[str], environment: Mapping[str, str]) -> tuple[int, bytes]:
    """The exit code and all that is printed; what hangs is ended, and fails."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return 1, (late.stdout or b"") + f"\nended: not done after {LONGEST_S} s\n".encode()
    return done.returncode, done.stdout


def read(report: Path) -> tuple[int, list[str], list[str], Mapping[str, float]]:
    """How many passed, which failed, why some were skipped, each reason once, and the seconds of each file."""
    if not report.exists():
        return 0, ["all of it"], [], {}
    cases = list(ET.parse(report).iter("testcase"))
    failed = sorted({named(case) for case in cases if {"failure", "error"} & {one.tag for one in case}})
    skipped = [skip for case in cases if (skip := case.find("skipped")) is not None]
    seconds: Counter[str] = Counter()
    for case in cases:
        seconds[case.get("file", "?")] += float(case.get("time", 0))
    reasons = sorted({skip.get("message", "") for skip in skipped})
    return len(cases) - len(failed) - len(skipped), failed, reasons, seconds


def named(case: ET.Element) -> str:
    """What pytest calls a test on its command line."""
    file = case.get("file", "")
    classes = case.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
    return "::".join(part for part in (file, *classes.split("."), case.get("name", "")) if part)


def tried_again(outcomes: list[Outcome], environment: Mapping[str, str]) -> list[Outcome]:
    """The outcomes after a second try, alone, of what failed beside others."""
    beside = [one for one in outcomes if one.code and one.tier != QUICK.name]
    failed = [test for one in beside for test in one.failed]
    if len(failed) > MOST_TRIED_AGAIN or not all("::" in test for test in failed):
        return outcomes
    found = []
    for one in outcomes:
        if one in beside:
            again = run(
                Tier(f"{one.tier}, {len(one.failed)} tests once more", tuple(one.failed)), environment
            )
            show(again)
            if again.code == 0:
                unsteady = (*one.unsteady, *one.failed)
                passed = one.passed + again.passed
                found.append(one._replace(code=0, passed=passed, failed=[], unsteady=unsteady))
                continue
        found.append(one)
    return found


def show(one: Outcome) -> None:
    """What a tier said, in one write: other tiers begin meanwhile."""
    sys.stdout.buffer.write(f"\n== {one.tier}: ended\n".encode() + one.output + b"\n")
    sys.stdout.flush()


def close(outcomes: list[Outcome]) -> int:
    """The closing lines; the exit code."""
    print("slowest files, as they ran beside others:")
    seconds = Counter({file: spent for one in outcomes for file, spent in one.file_seconds.items()})
    for file, spent in seconds.most_common(SLOWEST):
        print(f"  {spent:4.0f} s  {file}")
    print()
    for one in outcomes:
        verdict = "passed" if one.code == 0 else "FAILED"
        print(f"{one.tier}: {verdict}, {one.passed} tests in {one.seconds:.0f} s")
    if unsteady := [test for one in outcomes for test in one.unsteady]:
        print("UNSTEADY, failed beside others and passed alone; to be mended:")
    for test in unsteady:
        print(f"  - {test}")
    not_run = sorted({reason for one in outcomes for reason in one.not_run})
    print("everything was run" if not not_run else "not run on this machine:")
    for reason in not_run:
        print(f"  - {reason.removeprefix('not run: ')}")
    print(
        f"\n{sum(o.passed for o in outcomes)} passed, {sum(len(o.failed) for o in outcomes)} failed",
        flush=True,
    )
    return 0 if all(one.code == 0 for one in outcomes) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--require", choices=["all"], default="", help="what cannot run is a failure")
    require = parser.parse_args().require
    environment = os.environ | ({"NODEWISE_REQUIRE": require} if require else {})
    with tempfile.TemporaryFile() as log, ThreadPoolExecutor((os.cpu_count() or 1) + 1) as lanes:
        # a tier that needs the programs asks for them again and says then what is wrong, so nothing is lost here
        building = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.programs"], stdout=log, stderr=log, env=environment
        )
        outcomes = [run(QUICK, environment)]
        show(outcomes[0])
        running = [lanes.submit(run, tier, environment) for tier in tiers()]
        try:
            for done in as_completed(running):
                outcomes.append(done.result())
                show(outcomes[-1])
        finally:
            lanes.shutdown(cancel_futures=True)  # what has not begun does not, where somebody ends us
        building.wait()
    return close(tried_again(outcomes, environment))


if __name__ == "__main__":
    sys.exit(main())
