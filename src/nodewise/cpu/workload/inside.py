"""The API server for a process in a pod, by its service account, without any library.

PyYAML beside the standard library, of the ConfigMap's book.
"""

import http.client
import json
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from nodewise.cpu import names
from nodewise.cpu.book import Book
from nodewise.cpu.requests import NONE, Object, Requests
from nodewise.cpu.store.configmaps import ConfigMapBook
from nodewise.cpu.workload.arguments import Arguments
from nodewise.errors import BadSettings, Conflict, NodewiseError, Problem, Refused, Unavailable, shown
from nodewise.kube.api import DEADLINE_S, NotFound, Patch
from nodewise.kube.resources import PODS

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST: Final = "KUBERNETES_SERVICE_HOST"
PORT: Final = "KUBERNETES_SERVICE_PORT"

_PATCHES: Final[Mapping[Patch, str]] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
_LARGEST_BYTES: Final = 16 * 2**20


class InsideRequests:
    """`Requests` as the pod's service account. BadSettings if this is no pod, or it has no account.

    The token is read for each request anew: it is given anew while the pod runs.
    """

    def __init__(self, account: Path = ACCOUNT, environ: Mapping[str, str] = os.environ) -> None:
        self._account = account
        host, port = environ.get(HOST, ""), environ.get(PORT, "443")
        if not host or not (account / "token").is_file():
            seen = f"{HOST} is not set" if not host else f"no {account / 'token'}"
            raise BadSettings(
                "there is no API server to ask",
                [Problem("", seen, "a pod with a service account")],
                remedy="run the node agent, or give --conf-dir or --kubeconfig",
            )
        if not port.isdecimal():
            raise BadSettings("there is no API server to ask", [Problem(PORT, shown(port), "a port")])
        self.server: Final = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self._host, self._port = host, int(port)

    @property
    def namespace(self) -> str:
        """That of the pod."""
        return (self._account / "namespace").read_text(encoding="utf-8").strip()

    def get(self, path: str, params: Mapping[str, str] = NONE) -> Any:
        return self._call("GET", path, params=params)

    def create(self, path: str, body: Object) -> Any:
        return self._call("POST", path, body)

    def replace(self, path: str, body: Object) -> Any:
        return self._call("PUT", path, body)

    def patch(self, path: str, body: Any, kind: Patch, params: Mapping[str, str] = NONE) -> Any:
        return self._call("PATCH", path, body, params, _PATCHES[kind])

    def delete(self, path: str, body: Object | None = None) -> Any:
        return self._call("DELETE", path, body)

    def _call(
        self,
        verb: str,
        path: str,
        body: Any = None,
        params: Mapping[str, str] = NONE,
        kind: str = "application/json",
    ) -> Any:
        what = f"{verb} {self.server}{path}"
        try:
            status, data = self._exchanged(verb, path, body, params, kind)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(what, [Problem("", str(error) or type(error).__name__, "")]) from error
        try:
            answer = json.loads(data) if data else None
        except (RecursionError, ValueError):
            answer = None
        if status >= http.client.BAD_REQUEST:
            raise _error(what, status, answer, data)
        if answer is None:
            raise Unavailable(what, [Problem("answer", shown(data), "JSON")])
        return answer

    def _exchanged(
        self, verb: str, path: str, body: Any, params: Mapping[str, str], kind: str
    ) -> tuple[int, bytes]:
        headers = {
            "Authorization": f"Bearer {(self._account / 'token').read_text(encoding='utf-8').strip()}",
            "Accept": "application/json",
            "Content-Type": kind,
        }
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=DEADLINE_S, context=context)
        try:
            target = f"{path}?{urlencode(params)}" if params else path
            connection.request(verb, target, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read(_LARGEST_BYTES + 1)
            if len(data) > _LARGEST_BYTES:
                raise ValueError(f"more than {_LARGEST_BYTES} bytes")
            return answer.status, data
        finally:
            connection.close()


_KINDS: Final[Mapping[int, type[NodewiseError]]] = {404: NotFound, 409: Conflict, 429: Unavailable}
_INTERNAL: Final = 500


def _error(what: str, status: int, answer: Any, data: bytes) -> NodewiseError:
    """The error of an answer, with what the server says."""
    said = answer.get("message") if isinstance(answer, dict) else None
    problem = Problem(str(status), said if isinstance(said, str) else shown(data), "")
    kind: Callable[..., NodewiseError] = _KINDS.get(status, Unavailable if status >= _INTERNAL else Refused)
    return kind(what, [problem])


def book(asked: Arguments) -> Book:
    """The ConfigMap of the node that we are on."""
    requests: Requests
    if asked.kubeconfig:
        from nodewise.cpu.cluster.blocking import BlockingRequests
        from nodewise.kube.options import KubeOptions

        requests = BlockingRequests(KubeOptions(kubeconfig=asked.kubeconfig))
        node = asked.node_name or os.environ.get(names.NODE_NAME, "")
        if not node:
            raise _unknown("not told")
    else:
        requests = InsideRequests()
        node = asked.node_name or os.environ.get(names.NODE_NAME, "") or _node(requests)
    return ConfigMapBook(requests, asked.namespace or "default", node)


def _node(requests: InsideRequests) -> str:
    """Where our pod runs, which is named as its host name unless its manifest says otherwise."""
    pod = os.environ.get("HOSTNAME", "")
    if not pod:
        raise _unknown("HOSTNAME is not set")
    try:
        found = requests.get(PODS.path(requests.namespace, pod))
    except Refused as error:
        raise _unknown(f"pod {pod}: {error}") from error
    node = found.get("spec", {}).get("nodeName")
    if not node:
        raise _unknown(f"pod {pod} is on no node")
    return str(node)


def _unknown(seen: str) -> BadSettings:
    remedy = f"give --node-name, or {names.NODE_NAME} by the downward API (fieldPath: spec.nodeName)"
    return BadSettings("which node is this?", [Problem("", seen, "")], remedy=remedy)
