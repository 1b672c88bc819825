"""A test double of the part of Prometheus' HTTP API that sources of node metrics use: instant queries, on loopback.

It evaluates selectors with `=` matchers, `selector[range]`, `max by (label) (selector)`, `selector * number`,
`count by (__name__) (selector or selector)` and numbers. Any other query is a parse error. The double passes the same
suite as a real Prometheus.
"""

import json
import re
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SeriesSamples = Mapping[str, str | tuple[str, float]]
"""Series in the exposition format, such as `temp{instance="a:9100"}`, each with a value, or with a value and its age in
seconds."""

LOOKBACK_S = 300.0
SELECTOR = r"(?P<name>[a-zA-Z_:][\w:]*)?(?:\{(?P<matchers>[^}]*)\})?"
RANGE = re.compile(rf"{SELECTOR}\[(?P<span>\d+)(?P<unit>ms|s)\]")
INSTANT = re.compile(SELECTOR)
MAX_BY = re.compile(rf"max by \((?P<by>[\w, ]+)\) \({SELECTOR}\)")
COUNT = re.compile(r"count by \(__name__\) \((?P<selectors>.*)\)")
TIMES = re.compile(rf"{SELECTOR} \* (?P<factor>[\d.]+)")
NUMBER = re.compile(r"[\d.]+")
PAIR = re.compile(r'(\w+)="([^"]*)"')


class PrometheusDouble:
    """Series and faults of the test server, and the requests that it received."""

    def __init__(self, series: SeriesSamples = {}) -> None:  # noqa: B006 - read only
        self.url = ""
        self.requests: list[dict[str, str]] = []
        self.series = [self._read(text, sample) for text, sample in series.items()]
        self.warnings: list[str] = []
        self.authorization = ""
        self.headers: list[dict[str, str]] = []
        """The headers of the requests, by name in lower case."""
        self.faults: list[tuple[int, bytes, dict[str, str]]] = []
        self.delay_s = 0.0

    @staticmethod
    def _read(text: str, sample: str | tuple[str, float]) -> tuple[dict[str, str], float, str]:
        value, age_s = (sample, 0.0) if isinstance(sample, str) else sample
        name, _, rest = text.partition("{")
        # Prometheus stores times in milliseconds
        return {"__name__": name} | dict(PAIR.findall(rest)), round(time.time() - age_s, 3), value

    def fail(self, status: int, body: bytes | dict[str, Any] = b"", **headers: str) -> None:
        """Give this response to every request from now on."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.faults = [(status, content, headers)]

    def answer(self, query: str) -> tuple[int, Any]:
        if NUMBER.fullmatch(query):
            return 200, self._good("scalar", [time.time(), query])
        if match := RANGE.fullmatch(query):
            span_s = int(match["span"]) / (1000 if match["unit"] == "ms" else 1)
            return 200, self._good(
                "matrix",
                [
                    {"metric": labels, "values": [[at, value]]}
                    for labels, at, value in self._within(match, span_s)
                ],
            )
        if match := INSTANT.fullmatch(query):
            return 200, self._vector((labels, value) for labels, _, value in self._within(match, LOOKBACK_S))
        if match := TIMES.fullmatch(query):
            factor = float(match["factor"])
            within = self._within(match, LOOKBACK_S)
            return 200, self._vector(
                (_nameless(labels), _text(float(value) * factor)) for labels, _, value in within
            )
        if match := MAX_BY.fullmatch(query) or COUNT.fullmatch(query):
            return 200, self._vector(
                self._highest(match) if match.re is MAX_BY else self._counted(match["selectors"])
            )
        error = f'invalid parameter "query": 1:1: parse error: unexpected {query!r}'
        return 400, {"status": "error", "errorType": "bad_data", "error": error}

    def names(self) -> tuple[int, Any]:
        return 200, {
            "status": "success",
            "data": sorted({labels["__name__"] for labels, _, _ in self.series}),
        }

    def _counted(self, selectors: str) -> Iterator[tuple[dict[str, str], str]]:
        matches = filter(None, map(INSTANT.fullmatch, selectors.split(" or ")))
        names = {labels["__name__"] for match in matches for labels, _, _ in self._within(match, LOOKBACK_S)}
        return (({"__name__": name}, "1") for name in sorted(names))

    def _highest(self, match: re.Match[str]) -> Iterator[tuple[dict[str, str], str]]:
        by = re.split(r", *", match["by"])
        groups: dict[tuple[str, ...], list[float]] = {}
        for labels, _, value in self._within(match, LOOKBACK_S):
            groups.setdefault(tuple(labels.get(label, "") for label in by), []).append(float(value))
        for key, values in groups.items():
            yield {name: text for name, text in zip(by, key, strict=True) if text}, _text(max(values))

    def _within(self, match: re.Match[str], span_s: float) -> list[tuple[dict[str, str], float, str]]:
        wanted = dict(PAIR.findall(match["matchers"] or ""))
        if match["name"]:
            wanted["__name__"] = match["name"]
        return [
            (labels, at, value)
            for labels, at, value in self.series
            if wanted.items() <= labels.items() and time.time() - at <= span_s
        ]

    def _vector(self, series: Any) -> dict[str, Any]:
        now = time.time()
        return self._good("vector", [{"metric": labels, "value": [now, value]} for labels, value in series])

    def _good(self, kind: str, result: Any) -> dict[str, Any]:
        good = {"status": "success", "data": {"resultType": kind, "result": result}}
        return good | ({"warnings": self.warnings} if self.warnings else {})


def _nameless(labels: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in labels.items() if name != "__name__"}


def _text(value: float) -> str:
    """A float in about the format of Go."""
    return f"{value:g}" if value == int(value) else repr(value)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are separate writes
    prometheus: PrometheusDouble

    def do_GET(self) -> None:
        self._serve(urlsplit(self.path).query)

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def _serve(self, text: str) -> None:
        form = {key: value[0] for key, value in parse_qs(text).items()}
        self.prometheus.requests.append(form | {"method": self.command, "path": urlsplit(self.path).path})
        self.prometheus.headers.append({name.lower(): value for name, value in self.headers.items()})
        time.sleep(self.prometheus.delay_s)
        if (
            self.prometheus.authorization
            and self.headers.get("Authorization") != self.prometheus.authorization
        ):
            self._say(401, f"who is {self.headers.get('Authorization')}".encode(), {})
        elif self.prometheus.faults:
            self._say(*self.prometheus.faults[0])
        else:
            names = urlsplit(self.path).path.endswith("/label/__name__/values")
            status, answer = self.prometheus.names() if names else self.prometheus.answer(form["query"])
            self._say(status, json.dumps(answer, separators=(",", ":")).encode(), {})

    def _say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Ignore errors of connections. In some tests the client closes the connection early."""


@contextmanager
def run_prometheus(
    prometheus: PrometheusDouble, tls: ssl.SSLContext | None = None
) -> Iterator[PrometheusDouble]:
    """Run the double on a free port until the block ends."""
    handler = type("Handler", (_Handler,), {"prometheus": prometheus})
    server = _Server(("127.0.0.1", 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    prometheus.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield prometheus
    finally:
        server.shutdown()
        server.server_close()
