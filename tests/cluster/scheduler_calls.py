"""Continuous calls like those of kube-scheduler, continuously created pods, and the result of each.

A caller keeps a connection, as Go's net/http does (transport.go, shouldRetryRequest). If it was closed while idle, the
caller opens a new one. A call is not repeated after its first byte was written, because a POST is not idempotent. If a
new connection fails, the call fails.
"""

import contextlib
import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox

VERBS = ("filter", "prioritize")


class FailedCall(NamedTuple):
    """A call without a response, or with an error status."""

    began_s: float
    at_s: float
    port: int
    """The port of the caller; 0 if there was no connection."""
    why: str


class SchedulerCaller(threading.Thread):
    """A thread that calls filter and prioritize for one pod in turn until `end`."""

    def __init__(
        self, url: str, context: ssl.SSLContext, body: Mapping[str, Any], pause_s: float = 0.0
    ) -> None:
        super().__init__(daemon=True)
        self._url = urlsplit(url)
        self._context = context
        self._body = json.dumps(body).encode()
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._connection: http.client.HTTPSConnection | None = None
        self.answers: dict[str, Any] = {}
        """The newest response by verb."""
        self.calls = 0
        self.slowest_s = 0.0
        self.failed: list[FailedCall] = []
        self.start()

    def run(self) -> None:
        while not self._ended.wait(self._pause_s):
            for verb in VERBS:
                self._call(verb)
        self._leave()

    def end(self) -> None:
        self._ended.set()
        self.join(60)

    def _call(self, verb: str) -> None:
        began_s, port = time.monotonic(), 0
        self.calls += 1
        try:
            connection = self._connected()
            port = connection.sock.getsockname()[1]
            connection.request("POST", f"/scheduler/{verb}", self._body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.failed.append(FailedCall(began_s, time.monotonic(), port, f"{verb}: {error!r}"))
            self._leave()
            self._ended.wait(0.01)
            return
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        if answer.status == http.HTTPStatus.OK:
            self.answers[verb] = json.loads(content)
        else:
            self.failed.append(
                FailedCall(began_s, time.monotonic(), port, f"{verb}: {answer.status} {content[:200]!r}")
            )

    def _connected(self) -> http.client.HTTPSConnection:
        """The kept connection, or a new one if the server has closed it."""
        kept = self._connection
        if kept is not None and kept.sock is not None and not select.select([kept.sock], [], [], 0)[0]:
            return kept
        self._leave()
        host, port = self._url.hostname or "", self._url.port
        self._connection = http.client.HTTPSConnection(host, port, context=self._context, timeout=60)
        self._connection.connect()
        return self._connection

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


@contextlib.contextmanager
def continuous_calls(count: int, make: Callable[[], SchedulerCaller]) -> Iterator[Sequence[SchedulerCaller]]:
    """Runs `count` callers while the context is open."""
    callers = [make() for _ in range(count)]
    try:
        yield callers
    finally:
        for caller in callers:
            caller.end()


class PodStream:
    """Creates pods one after another, with a limit on the unbound ones, and records when each was created and bound."""

    def __init__(self, sandbox: Sandbox, most_unbound: int, pause_s: float) -> None:
        self._sandbox = sandbox
        self._most_unbound = most_unbound
        self._pause_s = pause_s
        self.place = f"/api/v1/namespaces/{sandbox.namespace}/pods"
        self._ended = threading.Event()
        self.made_s: dict[str, float] = {}
        self.bound_s: dict[str, float] = {}
        self.ended = ""
        """The error that ended the watch; empty while it runs."""

    def make(self, pod: Callable[[str], Object], prefix: str) -> None:
        """Creates pods until `end`."""
        number = 0
        while not self._ended.wait(self._pause_s):
            if len(self.made_s) - len(self.bound_s) < self._most_unbound:
                name = f"{prefix}-{number}"
                self.made_s[name] = time.monotonic()
                self._sandbox.api.request("POST", self.place, json=pod(name))
                number += 1
            else:
                self._ended.wait(0.002)

    def end(self) -> None:
        self._ended.set()

    def unbound(self) -> list[str]:
        """The names of the pods that are not bound."""
        return sorted(self.made_s.keys() - self.bound_s.keys())

    def status_text(self) -> str:
        """The counts and an unbound pod, for error messages."""
        waiting = self.unbound()
        newest = [self._sandbox.pod(name) for name in waiting[:1]]
        return f"{len(self.bound_s)} bound of {len(self.made_s)}; {waiting[:5]}; {newest}; {self.ended}"

    def waits_s(self) -> dict[str, float]:
        """The seconds from creation to binding of each bound pod."""
        return {name: self.bound_s[name] - self.made_s[name] for name in self.bound_s}

    def see(self, line: bytes) -> None:
        """Processes an event of the watch."""
        event = json.loads(line)["object"]
        name = event["metadata"]["name"]
        if event.get("spec", {}).get("nodeName") and name in self.made_s and name not in self.bound_s:
            self.bound_s[name] = time.monotonic()


@contextlib.contextmanager
def continuous_pods(
    sandbox: Sandbox, pod: Callable[[str], Object], prefix: str, most_unbound: int, pause_s: float = 0.0
) -> Iterator[PodStream]:
    """Creates pods while the context is open."""
    pods = PodStream(sandbox, most_unbound, pause_s)
    maker = threading.Thread(target=pods.make, args=(pod, prefix), daemon=True)
    with watch_pods(sandbox.plane, pods):
        maker.start()
        try:
            yield pods
        finally:
            pods.end()
            maker.join(30)


class PodObserver(Protocol):
    """Receives the events of a watch of pods."""

    place: str
    """The path of the pods."""
    ended: str

    def see(self, line: bytes) -> None: ...


@contextlib.contextmanager
def watch_pods(plane: ControlPlane, pods: PodObserver) -> Iterator[None]:
    """Watches pods while the context is open. The reader thread ends before the socket is closed, since the file
    descriptor could be reused.
    """
    context = plane.authority.client_context(plane.admin.pair)
    version = plane.api.get(pods.place, limit="1")["metadata"]["resourceVersion"]
    server = urlsplit(plane.url)
    connection = http.client.HTTPSConnection(server.hostname or "", server.port, context=context)
    connection.request("GET", f"{pods.place}?watch=1&resourceVersion={version}")
    stream = connection.sock
    lines = connection.getresponse()

    def follow() -> None:
        try:
            for line in lines:
                pods.see(line)
        except (OSError, http.client.HTTPException) as error:
            pods.ended = repr(error)  # also set when the context is closed

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    try:
        yield
    finally:
        socket.socket.shutdown(
            stream, socket.SHUT_RDWR
        )  # not `stream.shutdown`: it would remove the TLS layer while the reader uses it
        reader.join(10)
        connection.close()
