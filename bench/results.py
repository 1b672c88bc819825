"""results.json: its keys, what each means and must reach, and where it was measured."""

import json
import os
import platform
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import rounds
from bench.rounds import Rounds

PATH: Final = Path(__file__).parent / "results.json"
PROGRAMS: Final = ("nodewise", "msgspec", "numpy", "uvicorn", "uvloop", "httptools", "httpx2")
FILTER, PRIORITIZE, REFRESH = "filter", "prioritize", "filter, metrics refresh"
NOTHING: Final = "nothing: "
"""Before the name of a series: the same questions put to the do-nothing server."""

Results = dict[str, Any]


class Figure(NamedTuple):
    """A key of results.json."""

    meaning: str
    unit: str
    at_most: float | None = None
    """The target of the design."""


FIGURES: Final[Mapping[str, Figure]] = {
    "filter_names_5000_p50_ms": Figure("filter, names: median", "ms", 1.5),
    "filter_names_5000_p99_ms": Figure("filter, names: 99th percentile", "ms"),
    "filter_names_5000_ratio": Figure("filter, names: median by that of doing nothing", ""),
    "prioritize_names_5000_p50_ms": Figure("prioritize, names: median", "ms", 1.5),
    "prioritize_names_5000_p99_ms": Figure("prioritize, names: 99th percentile", "ms"),
    "prioritize_names_5000_ratio": Figure("prioritize, names: median by that of doing nothing", ""),
    "filter_names_5000_p50_refresh_ms": Figure("filter while ten metrics refresh every 2 s: median", "ms"),
    "filter_names_5000_p99_refresh_ms": Figure("the same: 99th percentile", "ms", 5.0),
    "filter_names_5000_max_refresh_ms": Figure("the same: slowest of all", "ms"),
    "filter_names_5000_refresh_ratio": Figure("the same: 99th percentile by that of doing nothing", ""),
    "nothing_filter_5000_p50_ms": Figure("do-nothing server, as many bytes as filter: median", "ms"),
    "nothing_filter_5000_p99_ms": Figure("do-nothing server, as filter: 99th percentile", "ms"),
    "nothing_prioritize_5000_p50_ms": Figure("do-nothing server, as many bytes as prioritize: median", "ms"),
    "nothing_prioritize_5000_p99_ms": Figure("do-nothing server, as prioritize: 99th percentile", "ms"),
    "rss_mib": Figure("resident memory of the extender after the run", "MiB"),
}


def figures(measured: Rounds) -> dict[str, float]:
    """The figures that the rounds come to, all but the memory."""
    found: dict[str, float] = {}
    for verb in (FILTER, PRIORITIZE):
        series, nothing = measured[verb], measured[NOTHING + verb]
        for field in ("p50_ms", "p99_ms"):
            found[f"{verb}_names_5000_{field}"] = rounds.median(series, field)
            found[f"nothing_{verb}_5000_{field}"] = rounds.median(nothing, field)
        found[f"{verb}_names_5000_ratio"] = rounds.ratio(series, nothing, "p50_ms")
    refresh, nothing = measured[REFRESH], measured[NOTHING + REFRESH]
    for field in ("p50", "p99"):
        found[f"filter_names_5000_{field}_refresh_ms"] = rounds.median(refresh, f"{field}_ms")
    found["filter_names_5000_max_refresh_ms"] = max(each["max_ms"] for each in refresh)
    found["filter_names_5000_refresh_ratio"] = rounds.ratio(refresh, nothing, "p99_ms")
    return found


def made(measured: Rounds, rss_mib: float, client: str, others_share: float) -> Results:
    """All of results.json."""
    known = figures(measured) | {"rss_mib": round(rss_mib, 1)}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine() | {"others_share": round(others_share, 2)},
        "versions": versions(),
        "client": client,
        **{key: known[key] for key in FIGURES},
        "rounds": measured,
    }


def machine() -> dict[str, Any]:
    """Where we run."""
    return {"cpu": _cpu(), "cores": os.cpu_count(), "kernel": f"{platform.system()} {platform.release()}"}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def versions() -> dict[str, str]:
    """Of what is measured."""
    found = {"python": platform.python_version(), "openssl": ssl.OPENSSL_VERSION}
    return found | {name: metadata.version(name) for name in PROGRAMS}


class Spent:
    """How busy the machine is from now on, and by whom."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds of all cores: at work, idle, and at work for us and for children that have ended."""
        ours = os.times()
        with Path("/proc/stat").open() as lines:
            user, nice, system, idle, waiting, *rest = (
                float(field) for field in lines.readline().split()[1:9]
            )
        per_s = os.sysconf("SC_CLK_TCK")
        busy = (user + nice + system + sum(rest)) / per_s
        return busy, (idle + waiting) / per_s, sum(ours[:4])

    def others_share(self) -> float:
        """The share of the machine that went to other programs. More than a twentieth spoils the figures."""
        busy, idle, ours = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return max(busy - ours, 0.0) / (busy + idle)


def read() -> Results:
    """The results of the last run that wrote them."""
    found: Results = json.loads(PATH.read_text())
    return found


def write(found: Results) -> None:
    PATH.write_text(json.dumps(found, indent=2) + "\n")
