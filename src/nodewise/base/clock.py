"""Clocks, as arguments. No other module reads the time of the operating system.

`now()` is wall-clock time in seconds since 1970, as in samples and API objects. `monotonic()` never jumps, for
deadlines and periods. Tasks get a `Clock`; functions that decide get the time as a number.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Protocol


class Clock(Protocol):
    """The time, and a way to wait."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        import asyncio  # `cmk isolate` parses durations, and starts fast

        await asyncio.sleep(seconds)


def parse_rfc3339(text: str) -> float:
    """Seconds since 1970 of a Kubernetes timestamp such as `2026-11-21T00:43:47Z`; ValueError for any other text."""
    stamp = datetime.fromisoformat(text)
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()


LAST_TIME_S: Final = 2**32 - 1
"""The last time that states of nodes can have, 2106-02-07T06:28:15Z: they are whole seconds since 1970 in 32 bits."""
INPUT_TIME: Final = "a time from 1970 to 2106, such as 2026-11-21T00:43:47Z"
"""What `parse_input_time` expects, for messages."""


def parse_input_time(text: str) -> float:
    """Seconds since 1970 of a time that a user chooses; ValueError for other texts, and before 1970 or after 2106."""
    seconds = parse_rfc3339(text)
    if not 0 <= seconds <= LAST_TIME_S:
        raise ValueError(f"found {text}, expected {INPUT_TIME}")
    return seconds


def format_rfc3339(seconds: float) -> str:
    """The Kubernetes form, in UTC and whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(seconds: float) -> str:
    """The Kubernetes form of a MicroTime, in UTC and microseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_MAX_DURATION_LENGTH: Final = 64
"""In characters. Parsing copies the rest of the text for each unit."""


_GO_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as `2s`, `1m30s`, `500ms`. ValueError has a message for the user."""
    return _parse_duration(text, _GO_UNITS)


def parse_option_duration(text: str, *, has_default_unit: bool = False) -> float:
    """Seconds of an option's value: a Go duration, also with days such as `90d`.

    With `has_default_unit` a plain number means seconds, for options that were numbers in an older program.
    """
    return _parse_duration(text, {**_GO_UNITS, "d": 86400.0, **({"": 1.0} if has_default_unit else {})})


def _parse_duration(text: str, units: Mapping[str, float]) -> float:
    if len(text) > _MAX_DURATION_LENGTH:
        raise ValueError(f"{len(text)} characters are no duration (for example 5s, 500ms, 1m30s)")
    rest = text.strip()
    sign = -1.0 if rest.startswith("-") else 1.0
    rest = rest.lstrip("+-")
    if rest == "0":
        return 0.0
    total = 0.0
    is_empty = True
    while rest or is_empty:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        letters = len(rest) - digits - len(rest[digits:].lstrip("nuµmshd"))
        number, unit = rest[:digits], rest[digits : digits + letters]
        if unit not in units or number.strip(".") == "" or number.count(".") > 1:
            raise ValueError(f"invalid duration {text!r} (for example 5s, 500ms, 1m30s)")
        total += float(number) * units[unit]
        rest = rest[digits + letters :]
        is_empty = False
    return sign * total


def format_duration(seconds: float) -> str:
    """The shortest form: `5s`, `500ms`, `1m30s`."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return "".join(f"{n:g}{u}" for n, u in ((hours, "h"), (minutes, "m"), (rest, "s")) if n) or "0s"
