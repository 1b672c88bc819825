"""A client of the API server for a process in a pod, by its service account, and the node's ConfigMap store.

PyYAML beside the standard library, for the ConfigMap store.
"""

import http.client
import json
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from nodewise.base.errors import (
    BadSettings,
    Conflict,
    NodewiseError,
    NotFound,
    Refused,
    Unavailable,
    shown,
)
from nodewise.kube.resource_kinds import PODS
from nodewise_cpu import cmk_names
from nodewise_cpu.allocation_store import AllocationStore
from nodewise_cpu.cluster.api_server import NO_PARAMS, ApiClient, Object
from nodewise_cpu.configmap_store import ConfigMapStore, LockClock
from nodewise_cpu.workload.isolate import IsolateArguments

if TYPE_CHECKING:
    from nodewise.kube.api_server_interface import Patch

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST: Final = "KUBERNETES_SERVICE_HOST"
PORT: Final = "KUBERNETES_SERVICE_PORT"

_PATCHES: Final[Mapping["Patch", str]] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
_DEADLINE_S: Final = 10.0
_MAX_BYTES: Final = 16 * 2**20


_ERRORS: Final[Mapping[int, type[NodewiseError]]] = {404: NotFound, 409: Conflict, 429: Unavailable}
_INTERNAL: Final = 500


class ServiceAccountClient:
    """An `ApiClient` as the pod's service account. BadSettings outside of pods, and in a pod without an account.

    The token is read again for each request, because it is renewed while the pod runs.
    """

    def __init__(self, account: Path = ACCOUNT, environ: Mapping[str, str] = os.environ) -> None:
        self._account = account
        host, port = environ.get(HOST, ""), environ.get(PORT, "443")
        if not host or not (account / "token").is_file():
            seen = f"{HOST} is not set" if not host else f"no {account / 'token'}"
            raise BadSettings.of(
                "there is no API server to ask",
                "",
                seen,
                "a pod with a service account",
                remedy="run the node agent, or give --conf-dir or --kubeconfig",
            )
        if not port.isdecimal():
            raise BadSettings.of("there is no API server to ask", PORT, shown(port), "a port")
        self.server: Final = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self._host, self._port = host, int(port)

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return (self._account / "namespace").read_text(encoding="utf-8").strip()

    def get(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> Any:
        return self._call("GET", path, params=params)

    def create(self, path: str, body: Object) -> Any:
        return self._call("POST", path, body)

    def replace(self, path: str, body: Object) -> Any:
        return self._call("PUT", path, body)

    def patch(self, path: str, body: Any, kind: "Patch", params: Mapping[str, str] = NO_PARAMS) -> Any:
        return self._call("PATCH", path, body, params, _PATCHES[kind])

    def delete(self, path: str, body: Object | None = None) -> Any:
        return self._call("DELETE", path, body)

    def _call(
        self,
        verb: str,
        path: str,
        body: Any = None,
        params: Mapping[str, str] = NO_PARAMS,
        kind: str = "application/json",
    ) -> Any:
        what = f"{verb} {self.server}{path}"
        try:
            status, data = self._send_request(verb, path, body, params, kind)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable.of(what, "", str(error) or type(error).__name__) from error
        try:
            value = json.loads(data) if data else None
        except (RecursionError, ValueError):
            value = None
        if status >= http.client.BAD_REQUEST:
            message = value.get("message") if isinstance(value, dict) else None
            error_kind = _ERRORS.get(status, Unavailable if status >= _INTERNAL else Refused)
            raise error_kind.of(what, str(status), message if isinstance(message, str) else shown(data))
        if value is None:
            raise Unavailable.of(what, "answer", shown(data), "JSON")
        return value

    def _send_request(
        self, verb: str, path: str, body: Any, params: Mapping[str, str], kind: str
    ) -> tuple[int, bytes]:
        headers = {
            "Authorization": f"Bearer {(self._account / 'token').read_text(encoding='utf-8').strip()}",
            "Accept": "application/json",
            "Content-Type": kind,
        }
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=_DEADLINE_S, context=context)
        try:
            target = f"{path}?{urlencode(params)}" if params else path
            connection.request(verb, target, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES} bytes")
            return response.status, data
        finally:
            connection.close()


def open_config_map_store(options: IsolateArguments, sleep: Callable[[float], None]) -> AllocationStore:
    """The ConfigMap of this node."""
    api: ApiClient
    if options.kubeconfig:
        from nodewise.kube.kubeconfig import KubeOptions
        from nodewise_cpu.cluster.blocking_client import BlockingApiClient

        api = BlockingApiClient(KubeOptions(kubeconfig=options.kubeconfig))
        node = options.node_name or os.environ.get(cmk_names.NODE_NAME, "")
        if not node:
            raise _unknown_node_error("not told")
    else:
        api = ServiceAccountClient()
        node = options.node_name or os.environ.get(cmk_names.NODE_NAME, "") or _node_of_pod(api)
    return ConfigMapStore(api, options.namespace or "default", node, clock=LockClock(sleep=sleep))


def _node_of_pod(api: ServiceAccountClient) -> str:
    """The node of this pod. The pod's name is its host name, unless its manifest sets another one."""
    pod = os.environ.get("HOSTNAME", "")
    if not pod:
        raise _unknown_node_error("HOSTNAME is not set")
    try:
        node = api.get(PODS.path(api.namespace, pod)).get("spec", {}).get("nodeName")
    except Refused as error:
        raise _unknown_node_error(f"pod {pod}: {error}") from error
    if not node:
        raise _unknown_node_error(f"pod {pod} is on no node")
    return str(node)


def _unknown_node_error(seen: str) -> BadSettings:
    remedy = f"give --node-name, or {cmk_names.NODE_NAME} by the downward API (fieldPath: spec.nodeName)"
    return BadSettings.of("unknown node", "", seen, remedy=remedy)
