"""One cluster asked for many things: an answer, or why there is none and which right is missing. Nothing is written."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from nodewise.cli.progress import Progress
from nodewise.configure.doctor.facts import Unread
from nodewise.errors import UNREADABLE, NodewiseError, Refused
from nodewise.kube.api import Api, Expired, NotFound
from nodewise.kube.resources import Resource
from nodewise.visible import short

T = TypeVar("T")

_AT_ONCE: Final = 12
_PAGE: Final = "500"
_PAGE_S: Final = 30.0
"""A page of a list may take longer than a call for one object."""
_AGAIN: Final = 3
_FORBIDDEN: Final = "forbidden"


class _Metadata(msgspec.Struct, frozen=True):
    token: str = msgspec.field(default="", name="continue")
    remaining: int = msgspec.field(default=0, name="remainingItemCount")


class _Page(msgspec.Struct, frozen=True):
    items: tuple[msgspec.Raw, ...] | None = None
    metadata: _Metadata = _Metadata()


class Asker:
    """Asks the API server, a few calls at once."""

    def __init__(self, api: Api, timeout_s: float, progress: Progress) -> None:
        self._api = api
        self._timeout_s = timeout_s
        self._progress = progress
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self.timeout_s = timeout_s

    async def reach(self) -> None:
        """Raise why the API server cannot be asked at all; a right that is missing is no such reason."""
        try:
            await self._api.get("/version", timeout_s=self._timeout_s)
        except Refused as error:
            if _FORBIDDEN not in str(error):
                raise

    def say(self, doing: str) -> None:
        self._progress.say(doing)

    async def get(self, what: str, right: str, path: str, *, quick: bool = False) -> Any:
        """The JSON at a path, None where there is no such thing, or why it is `Unread`."""
        found = await self.raw(what, right, path, quick=quick)
        if found is None or isinstance(found, Unread):
            return found
        try:
            return msgspec.json.decode(found)
        except UNREADABLE as error:
            return Unread(what, f"the answer is no JSON: {short(str(error))}")

    async def raw(self, what: str, right: str, path: str, *, quick: bool = False) -> bytes | Unread | None:
        """The same as bytes; `quick`: of somebody behind the API server who may not answer."""
        timeout_s = min(self._timeout_s, 5.0) if quick else self._timeout_s
        try:
            async with self._turn:
                return await self._api.get(path, timeout_s=timeout_s)
        except NotFound:
            return None
        except NodewiseError as error:
            return unread(what, right, error)

    async def review(self, body: Mapping[str, Any], right: str) -> Any:
        """The answer to a SubjectAccessReview, which is made and kept nowhere."""
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        try:
            async with self._turn:
                answer = await self._api.create(path, body, timeout_s=self._timeout_s)
            return msgspec.json.decode(answer)
        except NodewiseError as error:
            return unread("SubjectAccessReviews", right, error)
        except UNREADABLE as error:
            return Unread("SubjectAccessReviews", short(str(error)))

    async def listed(
        self,
        resource: Resource,
        read: Callable[[bytes], T | None],
        *,
        namespace: str = "",
        selectors: Mapping[str, str] | None = None,
        most: int = 0,
    ) -> list[T] | Unread:
        """Every object of a kind, as `read` takes it; what that makes nothing of is left out.

        A kind that the API server does not know has no objects. `most`: None are taken where there are more.
        """
        what, right = _named(resource, namespace)
        for _ in range(_AGAIN):
            try:
                return await self._pages(resource, namespace, dict(selectors or {}), read, most)
            except Expired:
                continue
            except NotFound:
                return []
            except NodewiseError as error:
                return unread(what, right, error)
            except UNREADABLE as error:
                return Unread(what, f"the answer is no list: {short(str(error))}")
        return Unread(what, "the list was too old before it was whole", is_minor=True)

    async def _pages(
        self,
        resource: Resource,
        namespace: str,
        selectors: dict[str, str],
        read: Callable[[bytes], T | None],
        most: int,
    ) -> list[T] | Unread:
        found: list[T] = []
        token, count = "", 0
        while True:
            params = {**selectors, "limit": _PAGE, **({"continue": token} if token else {})}
            async with self._turn:
                body = await self._api.get(resource.path(namespace), params, timeout_s=_PAGE_S)
            page = msgspec.json.decode(body, type=_Page)
            listed = page.items or ()
            if most and not token and len(listed) + (page.metadata.remaining or 0) > most:
                return Unread(
                    resource.plural, f"more than {most:,}, which is too many to look at", is_minor=True
                )
            for one in listed:
                taken = read(bytes(one))
                if taken is not None:
                    found.append(taken)
            count += len(listed)
            if token and page.metadata.token == token:
                return Unread(resource.plural, "the list begins again where it should go on")
            token = page.metadata.token
            self.say(f"reading {count:,} {resource.plural}")
            if not token:
                return found
            await asyncio.sleep(0)


def _named(resource: Resource, namespace: str) -> tuple[str, str]:
    """What is listed, and the right that it takes."""
    kind = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    where = f" in namespace {namespace}" if namespace else ""
    return f"{kind}{where}", f"list {kind}{where}"


def unread(what: str, right: str, error: NodewiseError) -> Unread:
    """Why something could not be read; the right that is missing, where that is why."""
    is_forbidden = isinstance(error, Refused) and _FORBIDDEN in str(error)
    if is_forbidden:
        return Unread(what, "forbidden", right)
    return Unread(what, short(str(error)))


def anything(body: bytes) -> Any:
    """An object as it is; None for what is none."""
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        return None
