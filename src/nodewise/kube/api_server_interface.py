"""Interface of an API server: paths, JSON bodies, and the errors that only an API server returns.

Refused   ├── NotFound   the object or the kind does not exist (404)
          └── NotAllowed the API server does not accept this method for this kind (405)
Conflict  └── Expired    the resource version or continue token is too old (410): list again
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final, Literal, Protocol

from nodewise.base.errors import Conflict, Refused

Params = Mapping[str, str]
NONE: Final[Params] = {}

Patch = Literal["merge", "json", "apply", "strategic"]
"""`apply` is server-side apply (KEP-555); the parameter `fieldManager` names the field manager."""

DEADLINE_S: Final = 10.0
"""Timeout of one call. A healthy API server responds in well under a second."""

WATCH_DEADLINE_S: Final = 36.0
"""Timeout of a watch. The API server ends it earlier, as its parameter `timeoutSeconds` requests."""


class NotFound(Refused):
    """The object does not exist, or the API server does not have the kind."""


class NotAllowed(Refused):
    """The API server does not accept this method for this kind of object, regardless of the user."""


class Expired(Conflict):
    """The API server no longer has the resource version or the page to continue from; list again."""


BeforeBody = Callable[[], Awaitable[object]]


class Api(Protocol):
    """One API server, as one user. Every method raises kinds of `NodewiseError` and nothing else.

    A `body` is JSON bytes, or a value that msgspec encodes. Responses are JSON bytes. `timeout_s` limits the whole
    call, including the wait for the client-side rate limit of writes. Paths are escaped, as `Resource.path` returns
    them.
    """

    async def get(
        self,
        path: str,
        params: Params = NONE,
        *,
        timeout_s: float = DEADLINE_S,
        before_body: BeforeBody | None = None,
    ) -> bytes:
        """The body of the response. `before_body` is called when a successful response has begun, and may wait; until
        then, the body takes no memory.
        """
        ...

    async def create(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes: ...

    async def replace(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes: ...

    async def patch(
        self, path: str, body: object, kind: Patch, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes: ...

    async def delete(
        self, path: str, body: object = b"", params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes: ...

    def watch(
        self, path: str, params: Params = NONE, *, timeout_s: float = WATCH_DEADLINE_S
    ) -> AsyncGenerator[bytes, None]:
        """Watch events, one JSON document each, independent of how the body is chunked. The iterator ends when the
        server ends the watch. `Unavailable` if it does not do so within the timeout.
        """
        ...

    async def close(self) -> None: ...
