"""All changes of node labels, from a watch of the API server."""

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import NamedTuple

import httpx2

from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import wait


class NodeLabelChange(NamedTuple):
    """A change of one label of one node; None means that the label is absent."""

    node: str
    key: str
    old: str | None
    new: str | None


class LabelWatch:
    """The label changes since `watch_labels` was entered, oldest first."""

    def __init__(self) -> None:
        self.changes: list[NodeLabelChange] = []
        self._labels: dict[str, dict[str, str]] = {}

    def see(self, kind: str, node: dict) -> None:
        name = node["metadata"]["name"]
        new = {} if kind == "DELETED" else node["metadata"].get("labels", {})
        old = self._labels.get(name)
        self._labels[name] = new
        if old is None or kind == "DELETED":
            return
        self.changes += [
            NodeLabelChange(name, key, old.get(key), new.get(key))
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
        ]

    def expect(self, *changes: NodeLabelChange) -> None:
        """Waits for exactly these changes in this order, since events of the watch arrive with a delay."""
        wait(
            "the watch has received the changes",
            lambda: len(self.changes) >= len(changes) or None,
            show=lambda: self.changes,
        )
        assert self.changes == list(changes)

    def of(self, key: str) -> list[NodeLabelChange]:
        return [change for change in self.changes if change.key == key]


@contextlib.contextmanager
def watch_labels(plane: ControlPlane) -> Iterator[LabelWatch]:
    """Watches all nodes while the context is open."""
    seen = LabelWatch()
    context = plane.authority.client_context(plane.admin.pair)
    ready = threading.Event()
    with httpx2.Client(base_url=plane.url, verify=context, timeout=None, trust_env=False) as client:
        listed = client.get("/api/v1/nodes").json()
        for node in listed["items"]:
            seen.see("ADDED", node)
        query = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}

        def follow() -> None:
            ended = contextlib.suppress(httpx2.HTTPError, httpx2.StreamError, RuntimeError)
            with ended, client.stream("GET", "/api/v1/nodes", params=query) as lines:
                ready.set()
                for line in lines.iter_lines():
                    event = json.loads(line)
                    seen.see(event["type"], event["object"])

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        ready.wait(5)
        yield seen
