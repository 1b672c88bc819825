"""A small client of the API server."""

import ssl
from typing import Any, Self

import httpx2

Object = dict[str, Any]
"""A Kubernetes object, as its JSON."""

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class ApiError(Exception):
    """The API server said no; `code` is the HTTP status, the text is its own message."""

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
        """Any request; raises ApiError for an answer that is no success."""
        answer = self._http.request(method, path, **extra)
        if answer.is_success:
            return answer
        raise ApiError(answer.status_code, _message(answer))

    def get(self, path: str, **query: str) -> Object:
        """The object or list at a path."""
        result: Object = self.request("GET", path, params=query).json()
        return result

    def find(self, path: str) -> Object | None:
        """The object at a path, or None where there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.code == httpx2.codes.NOT_FOUND:
                return None
            raise

    def create(self, obj: Object) -> Object:
        """Makes an object where its kind and namespace say."""
        made: Object = self.request("POST", folder_of(obj), json=obj).json()
        return made

    def ensure(self, obj: Object) -> None:
        """Makes an object unless it is there."""
        try:
            self.create(obj)
        except ApiError as error:
            if error.code != httpx2.codes.CONFLICT:
                raise

    def patch(self, path: str, patch: Any, kind: str = MERGE) -> Object:
        """Changes the object at a path."""
        changed: Object = self.request("PATCH", path, json=patch, headers={"Content-Type": kind}).json()
        return changed

    def delete(self, path: str) -> None:
        """Takes away an object, or all of a folder, at once; what is not there is taken away already."""
        try:
            # some kinds wait by default for a garbage collector, which may not run, to orphan their pods
            params = {"gracePeriodSeconds": "0", "propagationPolicy": "Background"}
            self.request("DELETE", path, params=params)
        except ApiError as error:
            if error.code != httpx2.codes.NOT_FOUND:
                raise

    def answers(self, url: str) -> bool:
        """Whether a path of this server, or any other address, answers with success now."""
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
