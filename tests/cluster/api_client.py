"""A small client of the API server."""

import ssl
from typing import Any, Self

import httpx2

Object = dict[str, Any]
"""A Kubernetes object as decoded JSON."""

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class ApiError(Exception):
    """An error response of the API server: `code` is the HTTP status, the text contains the server's message."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(f"{code}: {message}")


class ClusterApi:
    """A connection to one API server, as one user."""

    def __init__(self, url: str, context: ssl.SSLContext, token: str = "", timeout_s: float = 60) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx2.Client(
            base_url=url, verify=context, headers=headers, timeout=timeout_s, trust_env=False
        )

    def request(self, method: str, path: str, **extra: Any) -> httpx2.Response:
        """Sends a request and returns the response. Raises ApiError unless the status is a success."""
        answer = self._http.request(method, path, **extra)
        if answer.is_success:
            return answer
        raise ApiError(answer.status_code, _message(answer))

    def get(self, path: str, **query: str) -> Object:
        """The object or list at a path."""
        result: Object = self.request("GET", path, params=query).json()
        return result

    def find(self, path: str) -> Object | None:
        """The object at a path; None if there is no such object."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.code == httpx2.codes.NOT_FOUND:
                return None
            raise

    def create(self, obj: Object) -> Object:
        """Creates an object at the path that follows from its kind and namespace."""
        made: Object = self.request("POST", folder_of(obj), json=obj).json()
        return made

    def ensure(self, obj: Object) -> None:
        """Creates an object unless it exists."""
        try:
            self.create(obj)
        except ApiError as error:
            if error.code != httpx2.codes.CONFLICT:
                raise

    def patch(self, path: str, patch: Any, kind: str = MERGE) -> Object:
        """Patches the object at a path."""
        changed: Object = self.request("PATCH", path, json=patch, headers={"Content-Type": kind}).json()
        return changed

    def delete(self, path: str) -> None:
        """Deletes an object, or all objects of a collection, without a grace period. A missing object is no error."""
        try:
            # the default policy of some kinds orphans pods and needs the garbage collector, which may not run
            params = {"gracePeriodSeconds": "0", "propagationPolicy": "Background"}
            self.request("DELETE", path, params=params)
        except ApiError as error:
            if error.code != httpx2.codes.NOT_FOUND:
                raise

    def answers(self, url: str) -> bool:
        """Whether a path of this server, or any other URL, returns a success status now."""
        try:
            return self._http.get(url, timeout=10).is_success
        except httpx2.TransportError:
            return False

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def folder_of(obj: Object) -> str:
    """The path of the collection that an object belongs to, from its kind, its version and its namespace."""
    version, kind, metadata = obj["apiVersion"], obj["kind"].lower(), obj["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    inside = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
    return f"{root}{inside}/{_plural(kind)}"


def path_of(obj: Object) -> str:
    """The path of an object."""
    return f"{folder_of(obj)}/{obj['metadata']['name']}"


def _plural(kind: str) -> str:
    if kind.endswith("y"):
        return kind[:-1] + "ies"
    return kind + "es" if kind.endswith("s") else kind + "s"


def _message(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:500]
