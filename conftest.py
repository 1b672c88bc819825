"""What all tests share: how much a run tries, which command runs a test, and in which order files are run.

`make test` runs what needs neither other programs nor root, `make test-cluster` the rest, and `make test-long` every
test with as many cases as are worth the wait. See `pytest_collection_modifyitems` for how a test is assigned.
"""

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests import short_and_long_case_counts
from tests.cluster import skip_conditions

ROOT = Path(__file__).parent
DURATIONS = ROOT / "tests" / "file_durations.txt"
RECORDED = ROOT / "build" / "file_durations.txt"
PROGRAM_FOLDERS = ("tests/cluster/", "tests/node/")
PROGRAM_FIXTURES = {"control_plane_programs", "prometheus_programs"}
CLUSTER_FILE_S = 20.0
"""Estimated duration of a file with real programs that `file_durations.txt` does not list."""

# No deadlines: bench/ measures speed, and machines are noisy. `make test` tries the same examples on every run, so that
# it fails only for what a change has touched.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("long", deadline=None, max_examples=3000)
settings.load_profile(short_and_long_case_counts.of("quick", "long"))

# A shell that starts the tests in the background makes them, and every program that they start, ignore these signals.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--longest-first", action="store_true", help="run files with a long duration first")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need programs, and put the files that take longest first, so that no worker ends late.

    Every worker of pytest-xdist collects by itself, and all have to arrive at the same order.
    """
    for item in items:
        fixtures = PROGRAM_FIXTURES.intersection(getattr(item, "fixturenames", ()))
        if fixtures or item.nodeid.startswith(PROGRAM_FOLDERS):
            item.add_marker(pytest.mark.cluster)
    if config.getoption("--longest-first"):
        durations = read_durations()
        items.sort(key=lambda item: -durations.get(file_of(item.nodeid), estimate(item)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude modules and items from garbage collections, which take half of the time of many tests, and of forks."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture
def anyio_backend() -> object:
    """The event loop of async tests, unless a folder or a module has another one."""
    return "asyncio"


def estimate(item: pytest.Item) -> float:
    return CLUSTER_FILE_S if item.get_closest_marker("cluster") else 0.0


def file_of(node_id: str) -> str:
    return node_id.partition("::")[0]


def read_durations() -> dict[str, float]:
    """Seconds by file, of files that take one second or more."""
    rows = (line.split() for line in DURATIONS.read_text().splitlines())
    return {file: float(seconds) for seconds, file in rows}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        skip_conditions.not_run("needs root")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the slowest files, and record the duration of all files in `build`."""
    if not config.getoption("--longest-first"):
        return
    seconds = measured(terminalreporter)
    terminalreporter.section("slowest files")
    for file, spent in seconds.most_common(10):
        terminalreporter.write_line(f"{spent:5.0f} s  {file}")
    known = {file: spent for file, spent in read_durations().items() if (ROOT / file).exists()}
    rows = sorted((known | seconds).items(), key=lambda row: -row[1])
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text("".join(f"{spent:.0f} {file}\n" for file, spent in rows if spent >= 1))


def measured(terminalreporter: pytest.TerminalReporter) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for report in reports(terminalreporter):
        seconds[file_of(report.nodeid)] += report.duration
    return seconds


def reports(terminalreporter: pytest.TerminalReporter) -> Iterator[pytest.TestReport]:
    for same_outcome in terminalreporter.stats.values():
        yield from (report for report in same_outcome if isinstance(report, pytest.TestReport))
