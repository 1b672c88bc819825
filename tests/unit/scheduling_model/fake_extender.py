"""An extender without a network: a transport whose responses a test defines."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

Object = dict[str, Any]

ENTRY: Mapping[str, Any] = {
    "urlPrefix": "http://extender/scheduler/",
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "weight": 1,
}


class FakeExtender:
    """An extender in memory.

    `reject` maps nodes to reasons and `scores` maps nodes to scores. Verbs in `broken` fail with status 500.
    """

    def __init__(self) -> None:
        self.reject: dict[str, str] = {}
        self.scores: dict[str, int] = {}
        self.broken: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.transport = httpx2.MockTransport(self._answer)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        verb = request.url.path.rpartition("/")[2]
        arguments = json.loads(request.content)
        self.calls.append((verb, arguments["Pod"]["metadata"]["name"]))
        if verb in self.broken:
            return httpx2.Response(500)
        verbs: dict[str, Callable[[Object], Any]] = {
            "filter": self._filter,
            "prioritize": lambda arguments: [
                {"Host": name, "Score": self.scores.get(name, 0)} for name in arguments["NodeNames"]
            ],
        }
        return httpx2.Response(200, json=verbs[verb](arguments))

    def _filter(self, arguments: Object) -> Object:
        left = [name for name in arguments["NodeNames"] if name not in self.reject]
        failed = {name: self.reject[name] for name in arguments["NodeNames"] if name in self.reject}
        return {"NodeNames": left, "FailedNodes": failed}


def answering(status: int = 200, body: Any = None, text: str = "") -> httpx2.MockTransport:
    """A transport that gives every request the same response."""
    content = text.encode(errors="surrogateescape") if body is None else json.dumps(body).encode()
    return httpx2.MockTransport(lambda _: httpx2.Response(status, content=content))
