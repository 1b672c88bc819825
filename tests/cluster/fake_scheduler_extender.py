"""A fake scheduler extender: it accepts everything, or rejects nodes, fails, hangs or spares victims, as a test
configures.

Tests observe kube-scheduler with it, and it is the baseline for benchmarks of nodewise: it has the same server stack,
reads the same bytes and writes as many. `python -m tests.cluster.fake_scheduler_extender --port 9100` runs it
as a program.
"""

import argparse
import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.cluster import asgi_server_thread
from tests.cluster.api_client import Object
from tests.cluster.asgi_server_thread import Receive, Scope, Send, ServerTls
from tests.cluster.certificates import CertificatePair

ALL = ("filter", "prioritize", "preempt")


class ReceivedNodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class ReceivedArgs(msgspec.Struct):
    """The ExtenderArgs of kube-scheduler for filter and prioritize, with node names or whole nodes."""

    pod: msgspec.Raw = msgspec.field(name="Pod")
    nodes: ReceivedNodeList | None = msgspec.field(name="Nodes", default=None)
    names: list[str] | None = msgspec.field(name="NodeNames", default=None)


class ReceivedPreemptionArgs(msgspec.Struct):
    """The ExtenderPreemptionArgs of kube-scheduler: the victims of each node, as UIDs or as whole pods."""

    pod: msgspec.Raw = msgspec.field(name="Pod")
    victims: dict[str, Any] | None = msgspec.field(name="NodeNameToVictims", default=None)
    uids: dict[str, Any] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


class NodeName(msgspec.Struct):
    name: str


class ReceivedNode(msgspec.Struct):
    metadata: NodeName


class RecordedCall(NamedTuple):
    """A received request; `whole` is True if it contains nodes or victims as objects."""

    verb: str
    pod: str
    nodes: tuple[str, ...]
    whole: bool


class FakeExtenderServer:
    """A fake scheduler extender; a test changes its responses at any time.

    `reject` and `reject_for_good` map nodes to reasons (the latter also rules out preemption), `lose` are nodes that
    the response of filter omits, `scores` are returned unchanged, `spare` are nodes that the response of preempt omits,
    `error` is the error text of filter. Benchmarks set `records` to False.
    """

    def __init__(self, *, records: bool = True) -> None:
        self.records = records
        self.url = ""
        self.calls: list[RecordedCall] = []
        self.calm()

    def calm(self) -> None:
        """Resets all responses and keeps the recorded calls."""
        self.reject: dict[str, str] = {}
        self.reject_for_good: dict[str, str] = {}
        self.lose: set[str] = set()
        self.scores: dict[str, int] = {}
        self.spare: set[str] = set()
        self.error = ""
        self._status: dict[str, int] = {}
        self._hung: set[str] = set()

    def fail(self, status: int = 500, *verbs: str) -> None:
        """Returns a status and an empty body, for these verbs or for all."""
        self._status |= dict.fromkeys(verbs or ALL, status)

    def hang(self, *verbs: str) -> None:
        """Delays responses until `calm`, for these verbs or for all."""
        self._hung |= set(verbs or ALL)

    def asked(self, verb: str, pod: str = "") -> list[RecordedCall]:
        """The recorded calls of one verb, for one pod if it is named."""
        return [call for call in self.calls if call.verb == verb and pod in ("", call.pod)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request (ASGI)."""
        verb = scope["path"].rpartition("/")[2]
        body = await asgi_server_thread.body_of(receive)
        if verb not in ALL:
            return await asgi_server_thread.answer(send, 404, b"{}")
        response_body = self._preempted(body) if verb == "preempt" else self._decided(verb, body)
        while verb in self._hung:
            await asyncio.sleep(0.02)
        status = self._status.get(verb, 200)
        return await asgi_server_thread.answer(send, status, response_body if status == 200 else b"")

    def _decided(self, verb: str, body: bytes) -> Any:
        arguments = _ARGUMENTS.decode(body)
        names = _names(arguments)
        self._record(verb, arguments.pod, names, whole=arguments.names is None)
        if verb == "prioritize":
            return [{"Host": name, "Score": self.scores.get(name, 0)} for name in names]
        return self._filtered(arguments, names)

    def _filtered(self, arguments: ReceivedArgs, names: list[str]) -> Object:
        out = {*self.reject, *self.reject_for_good, *self.lose}
        answer: Object = {
            "FailedNodes": {name: text for name, text in self.reject.items() if name in names},
            "FailedAndUnresolvableNodes": {n: text for n, text in self.reject_for_good.items() if n in names},
            "Error": self.error,
        }
        if arguments.names is not None:
            return answer | {"NodeNames": [name for name in names if name not in out]}
        items = (arguments.nodes.items if arguments.nodes else None) or []
        kept = [item for item, name in zip(items, names, strict=True) if name not in out]
        return answer | {"Nodes": {"items": kept}}

    def _preempted(self, body: bytes) -> Object:
        arguments = _PREEMPTION.decode(body)
        uids = arguments.uids if arguments.uids is not None else _uids(arguments.victims or {})
        self._record("preempt", arguments.pod, list(uids), whole=arguments.uids is None)
        return {"NodeNameToMetaVictims": {node: v for node, v in uids.items() if node not in self.spare}}

    def _record(self, verb: str, pod: msgspec.Raw, nodes: list[str], *, whole: bool) -> None:
        if self.records:
            self.calls.append(RecordedCall(verb, _NAMED.decode(pod).metadata.name, tuple(nodes), whole))


_ARGUMENTS = msgspec.json.Decoder(ReceivedArgs)
_PREEMPTION = msgspec.json.Decoder(ReceivedPreemptionArgs)
_NAMED = msgspec.json.Decoder(ReceivedNode)


def _names(arguments: ReceivedArgs) -> list[str]:
    if arguments.names is not None:
        return arguments.names
    items = (arguments.nodes.items if arguments.nodes else None) or []
    return [_NAMED.decode(item).metadata.name for item in items]


def _uids(victims: dict[str, Any]) -> Object:
    """The victims in the form of the response: always by UID, even if kube-scheduler sent whole pods."""
    return {
        node: {
            "Pods": [{"UID": pod["metadata"]["uid"]} for pod in victim.get("Pods") or []],
            "NumPDBViolations": victim.get("NumPDBViolations", 0),
        }
        for node, victim in victims.items()
    }


def entry(url: str, **fields: Any) -> Object:
    """The entry of an extender in a KubeSchedulerConfiguration, with node names and a timeout of 30 s; `fields`
    override it.
    """
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 1,
        "nodeCacheCapable": True,
        "httpTimeout": "30s",
        **fields,
    }


def tls_fields(ca_file: Path | None, pair: CertificatePair) -> Object:
    """The TLS fields of an entry: the client certificate, and the CA file if the server is to be verified."""
    files = {"certFile": str(pair.cert), "keyFile": str(pair.key)}
    if ca_file:
        files["caFile"] = str(ca_file)
    return {"enableHTTPS": True, "tlsConfig": files}


@contextlib.contextmanager
def serving(
    tls: ServerTls | None = None, port: int = 0, *, records: bool = True
) -> Iterator[FakeExtenderServer]:
    """A fake extender that listens at its `url` while the context is open."""
    fake_extender = FakeExtenderServer(records=records)
    with asgi_server_thread.serving(fake_extender, tls, port) as url:
        fake_extender.url = url
        try:
            yield fake_extender
        finally:
            fake_extender.calm()  # otherwise the server would wait for hanging requests


def main() -> None:
    """Serves a fake extender that records nothing until it is interrupted."""
    parser = argparse.ArgumentParser(description="a scheduler extender that does nothing")
    parser.add_argument("--port", type=int, default=9100)
    for name in ("--cert", "--key", "--cacert"):
        parser.add_argument(name, type=Path, help="with all three it serves mutual TLS")
    options = parser.parse_args()
    tls = ServerTls(CertificatePair(options.cert, options.key), options.cacert) if options.cert else None
    with serving(tls, options.port, records=False) as fake_extender, contextlib.suppress(KeyboardInterrupt):
        print(fake_extender.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
