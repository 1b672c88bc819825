"""A constant load of filter calls over old and new connections in TLS 1.2 and 1.3, which records failed calls."""

import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.cluster.certificates import CertificatePair
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.namespace_sandboxes import PATIENCE_S, wait
from tests.filter_responses import rejected_nodes

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
BAD, GOOD = "rack1-b", "rack1-a"
CALL = json.dumps(
    {
        "Pod": {
            "metadata": {
                "name": "steady",
                "namespace": "health-metric-demo",
                "labels": {"app": "demo-app"},
            }
        },
        "NodeNames": [GOOD, BAD],
    }
).encode()
"""The body of a filter call for the example `health-metric`, in which the node rack1-b is unhealthy."""

_FOREVER = 10**9
_PAUSE_S = 0.005


class ClientIdentity(NamedTuple):
    """The CA file and certificate files of a client. They are read again for each connection, as Go's client does."""

    trusted: Path
    pair: CertificatePair

    def context(self, version: ssl.TLSVersion) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self.trusted))
        made.minimum_version = made.maximum_version = version
        wait("certificate and key match", lambda: self._load(made) or None)
        return made

    def _load(self, context: ssl.SSLContext) -> bool:
        """Loads both files. Returns False if they do not match, since they may be replaced between the two reads."""
        try:
            context.load_cert_chain(self.pair.cert, self.pair.key)
        except ssl.SSLError as error:
            return error.reason != "KEY_VALUES_MISMATCH"
        return True


def connection(served: ExtenderProcess, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    """Opens a connection to nodewise."""
    port = urlsplit(served.url).port
    made = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=PATIENCE_S)
    made.connect()
    made.auto_open = 0  # a closed connection must fail the call instead of being reopened silently
    return made


def ask(opened: http.client.HTTPSConnection) -> bool:
    """Sends a call and checks the response. Returns whether the connection stays open."""
    opened.request("POST", "/scheduler/filter", CALL, {"Content-Type": "application/json"})
    answer = opened.getresponse()
    body = answer.read()
    assert answer.status == http.client.OK, f"{answer.status}: {body[:300]!r}"
    assert list(rejected_nodes(json.loads(body))) == [BAD], body
    return not answer.will_close


class ConnectionCaller(threading.Thread):
    """A thread that sends calls continuously, `per_connection` calls on each connection."""

    def __init__(
        self, served: ExtenderProcess, identity: ClientIdentity, version: ssl.TLSVersion, per_connection: int
    ) -> None:
        super().__init__(daemon=True)
        self.calls = 0
        self.opened_at_s = 0.0
        self.serial = ""
        self.failures: list[str] = []
        self.over = threading.Event()
        self._served = served
        self._identity = identity
        self._version = version
        self._per_connection = per_connection

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self._connect_and_call()
            except (OSError, AssertionError, http.client.HTTPException) as error:
                self.failures.append(
                    f"{self._version.name}, {self._per_connection} calls a connection: {error!r}"
                )
                self.over.wait(0.2)

    def _connect_and_call(self) -> None:
        began_s = time.monotonic()
        opened = connection(self._served, self._identity.context(self._version))
        with contextlib.closing(opened):
            self.serial = running_caller(opened)
            for _ in range(self._per_connection):
                stays = ask(opened)
                self.calls += 1
                self.opened_at_s = began_s
                if not stays or self.over.wait(_PAUSE_S):
                    return


def running_caller(opened: http.client.HTTPSConnection) -> str:
    """The serial number of the server's certificate on this connection."""
    assert isinstance(opened.sock, ssl.SSLSocket)
    return str((opened.sock.getpeercert() or {})["serialNumber"]).lstrip("0")


class SteadyLoad:
    """The running callers. None of their calls may fail."""

    def __init__(self, callers: list[ConnectionCaller]) -> None:
        self._callers = callers

    @property
    def failures(self) -> list[str]:
        return [failure for caller in self._callers for failure in caller.failures]

    def goes_on(self) -> None:
        """Waits until each caller has sent five more calls, and checks that no call has failed since the start."""
        before = [caller.calls for caller in self._callers]

        def further() -> bool | None:
            counts = [caller.calls for caller in self._callers]
            return all(now >= then + 5 for now, then in zip(counts, before, strict=True)) or None

        wait("each caller calls on", further, show=lambda: self.failures)
        assert not self.failures, self.failures

    def opens_anew(self, since_s: float) -> None:
        """Waits until each caller uses a connection that it opened after this time of the monotonic clock."""
        wait(
            "each caller is on a new connection",
            lambda: all(caller.opened_at_s > since_s for caller in self._callers) or None,
            show=lambda: self.failures,
        )

    def sees(self, serial: str) -> None:
        """Waits until each caller uses a connection with this server certificate, and sends calls on it."""
        wait(
            "each caller sees the new certificate",
            lambda: all(caller.serial == serial.lstrip("0") for caller in self._callers) or None,
            show=lambda: [(caller.serial, serial, caller.failures) for caller in self._callers],
        )
        self.goes_on()


@contextlib.contextmanager
def load(served: ExtenderProcess, identity: ClientIdentity) -> Iterator[SteadyLoad]:
    """Runs callers of every kind while the context is open, and checks that no call failed."""
    callers = [
        ConnectionCaller(served, identity, version, per_connection)
        for version in VERSIONS
        for per_connection in (1, 20, _FOREVER)
    ]
    for caller in callers:
        caller.start()
    try:
        made = SteadyLoad(callers)
        made.goes_on()
        yield made
    finally:
        for caller in callers:
            caller.over.set()
        for caller in callers:
            caller.join(30)
    assert not made.failures, made.failures
