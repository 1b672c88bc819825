"""Reads the API server: the response, or why it is unavailable and which right is missing. It changes nothing."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from nodewise.base.errors import UNREADABLE, NodewiseError, Refused, short
from nodewise.doctor.facts import UnavailableFact
from nodewise.kube import resource_kinds
from nodewise.kube.api_server_interface import Api, Expired, NotFound
from nodewise.kube.resource_kinds import Resource

T = TypeVar("T")

DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", "DaemonSet")
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", "StatefulSet")
CRON_JOBS: Final = Resource("batch", "v1", "cronjobs", "CronJob")
SERVICES: Final = Resource("", "v1", "services", "Service")
ADMISSION_POLICIES: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    namespaced=False,
)
ADMISSION_BINDINGS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
MUTATING_POLICIES: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingadmissionpolicies",
    "MutatingAdmissionPolicy",
    namespaced=False,
)
MUTATING_BINDINGS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicyBinding",
    namespaced=False,
)
API_SERVICES: Final = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)

_MAX_CONCURRENT: Final = 12
_PAGE_SIZE: Final = "500"
_PAGE_TIMEOUT_S: Final = 30.0
"""A page of a list may take longer than one object."""
_PROXY_TIMEOUT_S: Final = 5.0
_LIST_ATTEMPTS: Final = 3
_FORBIDDEN: Final = "forbidden"


class _ListMetadata(msgspec.Struct, frozen=True):
    token: str = msgspec.field(default="", name="continue")
    remaining: int = msgspec.field(default=0, name="remainingItemCount")


class _Page(msgspec.Struct, frozen=True):
    items: tuple[msgspec.Raw, ...] | None = None
    metadata: _ListMetadata = _ListMetadata()


class ClusterReader:
    """Reads the API server with a few requests at once. `say` reports progress."""

    def __init__(self, api: Api, timeout_s: float, say: Callable[[str], None]) -> None:
        self.api = api
        self.say = say
        self._timeout_s = timeout_s
        self._requests = asyncio.Semaphore(_MAX_CONCURRENT)

    async def connect(self) -> None:
        """Raise if the API server does not respond. A missing right is no error here."""
        try:
            await self.api.get("/version", timeout_s=self._timeout_s)
        except Refused as error:
            if _FORBIDDEN not in str(error):
                raise

    async def get(self, what: str, right: str, path: str, *, is_proxied: bool = False) -> Any:
        """The JSON at a path; None if there is no such object."""
        body = await self.get_bytes(what, right, path, is_proxied=is_proxied)
        if body is None or isinstance(body, UnavailableFact):
            return body
        try:
            return msgspec.json.decode(body)
        except UNREADABLE as error:
            return UnavailableFact(what, f"the response is no JSON: {short(str(error))}")

    async def get_bytes(
        self, what: str, right: str, path: str, *, is_proxied: bool = False
    ) -> bytes | UnavailableFact | None:
        """The same as bytes. `is_proxied`: the API server passes the request on to a server that may not respond."""
        timeout_s = min(self._timeout_s, _PROXY_TIMEOUT_S) if is_proxied else self._timeout_s
        try:
            async with self._requests:
                return await self.api.get(path, timeout_s=timeout_s)
        except NotFound:
            return None
        except NodewiseError as error:
            return unavailable(what, right, error)

    async def review(self, body: Mapping[str, Any], right: str) -> Any:
        """The response to a SubjectAccessReview, which the API server does not store."""
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        try:
            async with self._requests:
                response = await self.api.create(path, body, timeout_s=self._timeout_s)
            return msgspec.json.decode(response)
        except NodewiseError as error:
            return unavailable("SubjectAccessReviews", right, error)
        except UNREADABLE as error:
            return UnavailableFact("SubjectAccessReviews", short(str(error)))

    async def is_served(self, resource: Resource) -> bool | UnavailableFact:
        """Whether the API server has a kind."""
        try:
            async with self._requests:
                return await resource_kinds.is_served(self.api, resource)
        except NodewiseError as error:
            return unavailable("the kinds of the API server", "get the path /apis", error)

    async def get_list(
        self,
        resource: Resource,
        parse: Callable[[bytes], T | None],
        *,
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        limit: int = 0,
    ) -> list[T] | UnavailableFact:
        """All objects of a kind, each parsed by `parse`; None leaves it out.

        A kind that the API server does not have is empty. `limit`: with more objects the list is not read.
        """
        name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        what = f"{name} in namespace {namespace}" if namespace else name
        for _ in range(_LIST_ATTEMPTS):
            try:
                return await self._read_pages(resource, namespace, dict(selectors or {}), parse, limit)
            except Expired:  # the continue token is too old: read the list from its beginning
                continue
            except NotFound:
                return []
            except NodewiseError as error:
                return unavailable(what, f"list {what}", error)
            except UNREADABLE as error:
                return UnavailableFact(what, f"the response is no list: {short(str(error))}")
        return UnavailableFact(what, "the list expired before it was complete", is_minor=True)

    async def _read_pages(
        self,
        resource: Resource,
        namespace: str,
        selectors: dict[str, str],
        parse: Callable[[bytes], T | None],
        limit: int,
    ) -> list[T] | UnavailableFact:
        objects: list[T] = []
        token, count = "", 0
        while True:
            params = {**selectors, "limit": _PAGE_SIZE, **({"continue": token} if token else {})}
            async with self._requests:
                body = await self.api.get(resource.path(namespace), params, timeout_s=_PAGE_TIMEOUT_S)
            page = msgspec.json.decode(body, type=_Page)
            items = page.items or ()
            if limit and len(items) + page.metadata.remaining > limit and not token:
                reason = f"there are more than {limit:,}, which are too many to read"
                return UnavailableFact(resource.plural, reason, is_minor=True)
            objects += filter(None, (parse(bytes(item)) for item in items))
            count += len(items)
            if token and page.metadata.token == token:
                return UnavailableFact(resource.plural, "the list begins again where it should continue")
            token = page.metadata.token
            self.say(f"reading {count:,} {resource.plural}")
            if not token:
                return objects
            await asyncio.sleep(0)  # parsing a page takes time: let other collectors run in between


def unavailable(what: str, right: str, error: NodewiseError) -> UnavailableFact:
    """Why something could not be read, with the missing right if that is the reason."""
    if isinstance(error, Refused) and _FORBIDDEN in str(error):
        return UnavailableFact(what, "forbidden", right)
    return UnavailableFact(what, short(str(error)))


def parse_json(body: bytes) -> Any:
    """An object of any shape; None if the bytes are no JSON."""
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        return None
