"""An extender between kube-scheduler and nodewise: it records what nodewise answers, and kube-scheduler sees no effect.

kube-scheduler places pods as if there were no extender, since every node passes. Each node of a request has passed
kube-scheduler's own filters, so that it would bind the pod there.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import httpx2
import msgspec

from tests.cluster import asgi_server_thread
from tests.cluster.api_client import Object
from tests.cluster.asgi_server_thread import Receive, Scope, Send
from tests.cluster.extender_process import ExtenderProcess
from tests.filter_responses import rejected_nodes


class FilterRecord(NamedTuple):
    """The response of nodewise to one filter request."""

    pod: Object
    nodes: tuple[str, ...]
    rejected: Mapping[str, str]
    """The reasons by node."""


class RecordingExtender:
    """Forwards filter requests to nodewise, and binds by nodewise."""

    def __init__(self, nodewise: ExtenderProcess) -> None:
        certificates = nodewise.certificates
        context = certificates.authority.client_context(certificates.client)
        self._http = httpx2.Client(
            base_url=f"{nodewise.url}/scheduler/", verify=context, trust_env=False, timeout=30
        )
        self.filtered: list[FilterRecord] = []
        self.refused: list[tuple[str, str]] = []
        """The pod and the reason of each refused bind."""
        self.bound: dict[str, str] = {}
        """The node of each pod; empty if it was not bound."""
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request (ASGI)."""
        verb, body = scope["path"].rpartition("/")[2], await asgi_server_thread.body_of(receive)
        answer = self._post(verb, body)
        request, response = msgspec.json.decode(body), answer.json()
        if verb == "filter":
            nodes = request["NodeNames"]
            self.filtered.append(FilterRecord(request["Pod"], tuple(nodes), rejected_nodes(response)))
            response = {"NodeNames": nodes, "FailedNodes": {}, "Error": response.get("Error", "")}
        elif response.get("Error"):
            self.refused.append((request["PodName"], response["Error"]))
        await asgi_server_thread.answer(send, 200, response)

    def drop_rejections_by_older_state(self, resources: Sequence[str]) -> None:
        """Drops rejections of pods that request one of these resources, where nodewise passes the pod now: it saw a
        DeviceClass later than kube-scheduler, and its leader requeues such pods. Their refused binds are dropped too.
        """
        for at, (pod, nodes, rejected) in enumerate(self.filtered):
            text = msgspec.json.encode(pod)
            if rejected and any(f'"{resource}"'.encode() in text for resource in resources):
                request = msgspec.json.encode({"Pod": pod, "NodeNames": nodes})
                now = rejected_nodes(self._post("filter", request).json())
                kept = {node: why for node, why in rejected.items() if node in now}
                self.filtered[at] = FilterRecord(pod, nodes, kept)
                if not kept:
                    self.refused = [each for each in self.refused if each[0] != pod["metadata"]["name"]]

    def _post(self, verb: str, body: bytes) -> httpx2.Response:
        return self._http.post(verb, content=body, headers={"Content-Type": "application/json"})

    def entries(self, resources: Iterable[str]) -> list[Object]:
        """The extender's entries of a scheduler configuration: filter for all pods, and bind for pods that request one
        of these resources.
        """
        entry = {"urlPrefix": self.url, "nodeCacheCapable": True, "httpTimeout": "30s"}
        managed = [{"name": resource} for resource in resources]
        return [entry | {"filterVerb": "filter"}, entry | {"bindVerb": "bind", "managedResources": managed}]


@contextlib.contextmanager
def serving(nodewise: ExtenderProcess) -> Iterator[RecordingExtender]:
    """A recording extender that listens at its `url` while the context is open."""
    recorder = RecordingExtender(nodewise)
    with asgi_server_thread.serving(recorder) as url:
        recorder.url = url
        yield recorder
