"""A minimal API server of any version, for versions that are not available. `tests/cluster` has real ones.

It stores objects, checks their resource versions, and records every request. Tests define the behaviour of nodes and
controllers by a function.
"""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

Object = dict[str, Any]
_FOLDERS: Final = ("pods", "daemonsets", "nodes")
_GROUPS: Final = ("/apis/intel.com/v1", "/apis/cmk.intel.com/v1")
"""API groups whose kinds exist once they are defined."""


class RecordedRequest(NamedTuple):
    """A request that changes something."""

    verb: str
    path: str
    body: Any
    content_type: str = ""


class RequestRefusal(NamedTuple):
    """The error response to requests of a verb for paths that contain `part`."""

    verb: str
    part: str
    status: int
    message: str
    reason: str = ""


class MinimalApiServer:
    """The server's objects by path; created by `serving`."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.objects: dict[str, Object] = {}
        self.requests: list[RecordedRequest] = []
        self.refusals: list[RequestRefusal] = []
        self.behave: Callable[[MinimalApiServer], None] = simulate_nodes
        """Called before each response about pods."""
        self.looks = 0
        self.url = ""
        self._numbers = itertools.count(1)
        self.lock = threading.RLock()

    def put(self, path: str, obj: Object) -> Object:
        """Store an object with a UID and a resource version."""
        with self.lock:
            number = str(next(self._numbers))
            metadata = {"uid": f"uid-{number}", **obj.get("metadata", {}), "resourceVersion": number}
            self.objects[path] = {**obj, "metadata": metadata}
            return self.objects[path]

    def node(self, name: str, **spec: Any) -> Object:
        """Create a node."""
        return self.put(f"/api/v1/nodes/{name}", {"kind": "Node", "metadata": {"name": name}, "spec": spec})

    def folder(self, end: str) -> dict[str, Object]:
        """The objects of this plural, by path."""
        return {path: obj for path, obj in self.objects.items() if path.split("/")[-2] == end}

    def sent(self, verb: str, end: str) -> list[Any]:
        """The bodies of requests of a verb to paths with this ending, in order."""
        return [
            request.body for request in self.requests if request.verb == verb and request.path.endswith(end)
        ]

    def kubeconfig(self, folder: Path) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        file = folder / "older.kubeconfig"
        file.write_text(json.dumps(config))
        return file

    def answer(self, verb: str, target: str, body: Any, content_type: str) -> tuple[int, Any]:
        """The status and body of a response."""
        url = urlsplit(target)
        path = unquote(url.path)
        with self.lock:
            if verb != "GET":
                self.requests.append(RecordedRequest(verb, path, body, content_type))
            for refusal in self.refusals:
                if refusal.verb == verb and refusal.part in path:
                    return refusal.status, _status(refusal.status, refusal.message, refusal.reason)
            if path in ("/version", *_GROUPS):
                kinds = [{"name": name} for name in self._defined(path)]
                return 200, {"gitVersion": self.version, "resources": kinds}
            if verb == "GET" and "/pods" in path:
                self.looks += 1
                self.behave(self)
            if verb == "GET" and path.split("/")[-1] in _FOLDERS:
                return self._list(path, parse_qs(url.query))
            if verb == "POST":
                return self._create(f"{path}/{body['metadata']['name']}", body)
            return self._of_one(verb, path, body, content_type)

    def _defined(self, group: str) -> list[str]:
        """The plurals of the defined kinds of a group."""
        parts = [
            path.rpartition("/")[2].split(".", 1)
            for path in [*self.folder("customresourcedefinitions"), *self.folder("thirdpartyresources")]
        ]
        ending = "s" if "cmk." in group else ""  # a third-party resource is named in the singular
        return [name + ending for name, of in parts if f"/apis/{of}/v1" == group]

    def _list(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        wanted = dict(
            term.split("=", 1) for term in ",".join(query.get("labelSelector", [])).split(",") if term
        )
        items = [
            obj
            for at, obj in self.objects.items()
            if at.rpartition("/")[0] == path
            and wanted.items() <= (obj["metadata"].get("labels") or {}).items()
        ]
        return 200, {"kind": "List", "metadata": {}, "items": items}

    def _create(self, path: str, body: Object) -> tuple[int, Any]:
        group, _, rest = path.partition("/namespaces/")
        if group in _GROUPS and rest.split("/")[1] not in self._defined(group):
            return 404, _status(404, "the server could not find the requested resource", "NotFound")
        if path in self.objects:
            return 409, _status(409, f"{path} already exists", "AlreadyExists")
        return 201, self.put(path, body)

    def _of_one(self, verb: str, path: str, body: Any, content_type: str) -> tuple[int, Any]:
        obj = self.objects.get(path.removesuffix("/status"))
        if obj is None:
            return 404, _status(404, f"{path} not found", "NotFound")
        if verb == "DELETE":
            return self._delete(path, obj, body or {})
        if verb == "PUT":
            return self._replace(path, obj, body)
        if verb == "PATCH":
            assert content_type == "application/merge-patch+json"
            return 200, self.put(path.removesuffix("/status"), _merged(obj, body))
        return 200, obj

    def _replace(self, path: str, stored: Object, body: Object) -> tuple[int, Any]:
        seen = body["metadata"].get("resourceVersion")
        if seen not in (None, stored["metadata"]["resourceVersion"]):
            return 409, _status(409, "the object has been modified", "Conflict")
        kept = {"uid": stored["metadata"]["uid"]}
        return 200, self.put(path, {**body, "metadata": {**body["metadata"], **kept}})

    def _delete(self, path: str, stored: Object, options: Object) -> tuple[int, Any]:
        uid = options.get("preconditions", {}).get("uid", stored["metadata"]["uid"])
        if uid != stored["metadata"]["uid"]:
            return 409, _status(409, "the UID is another one", "Conflict")
        del self.objects[path]
        for at, obj in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences", ())):
                del self.objects[at]
        return 200, stored


def simulate_nodes(server: MinimalApiServer) -> None:
    """Nodes and controllers without failures."""
    for path, daemon_set in server.folder("daemonsets").items():
        folder = "/api/v1" + path[path.index("/namespaces") :].replace("/daemonsets", "/pods")
        template = daemon_set["spec"]["template"]
        selector = template["spec"].get("nodeSelector")
        if not selector:
            _one_pod(server, f"{folder}-abc", daemon_set, template["spec"])
            continue
        for node in server.folder("nodes").values():
            name = node["metadata"]["name"]
            if selector.items() <= node["metadata"].get("labels", {}).items():
                _one_pod(server, f"{folder}-{name}", daemon_set, {**template["spec"], "nodeName": name})
            else:
                server.objects.pop(f"{folder}-{name}", None)
    for path, pod in server.folder("pods").items():
        if pod.get("status"):
            continue
        goes_on = "Always" if "ownerReferences" in pod["metadata"] else "Never"
        is_once = pod.get("spec", {}).get("restartPolicy", goes_on) == "Never"
        pod["status"] = {"phase": "Succeeded"} if is_once else running(pod)
        server.objects[path] = pod
        if is_once and any(
            container["name"] == "discover" for container in pod.get("spec", {}).get("containers", ())
        ):
            node = server.objects[f"/api/v1/nodes/{pod['spec']['nodeName']}"]
            node["metadata"].setdefault("labels", {})["cmk.intel.com/cmk-node"] = "true"


def _one_pod(server: MinimalApiServer, path: str, daemon_set: Object, spec: Object) -> None:
    """The pod of a DaemonSet, created again if the template changed."""
    old = server.objects.get(path)
    if old is None or old["spec"] != spec:
        about = daemon_set["spec"]["template"]["metadata"] | {
            "name": path.rpartition("/")[2],
            "ownerReferences": [{"uid": daemon_set["metadata"]["uid"]}],
        }
        server.put(path, {"kind": "Pod", "metadata": about, "spec": spec})


def running(pod: Object) -> Object:
    """The status of a pod whose containers are all running."""
    containers = [
        {"name": container["name"], "ready": True, "restartCount": 0, "state": {"running": {}}}
        for container in pod["spec"]["containers"]
    ]
    return {"phase": "Running", "containerStatuses": containers}


def _status(code: int, message: str, reason: str) -> Object:
    return {"kind": "Status", "code": code, "message": message, "reason": reason}


def _merged(original: Any, change: Any) -> Any:
    """The object after a merge patch."""
    if not isinstance(change, dict):
        return change
    kept = original if isinstance(original, dict) else {}
    merged = {key: _merged(kept.get(key), value) for key, value in change.items() if value is not None}
    return {**{key: value for key, value in kept.items() if key not in change}, **merged}


@contextmanager
def serving(version: str) -> Iterator[MinimalApiServer]:
    """An empty API server of this version."""
    server = MinimalApiServer(version)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body are separate writes: Nagle's algorithm would delay each response by the client's 40 ms.
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            content_type = self.headers.get("Content-Type", "")
            code, answer = server.answer(self.command, self.path, body, content_type)
            data = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - the library's names

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
