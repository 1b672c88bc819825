"""The API server as the rest of the program knows it: paths and JSON, and two kinds of error of its own.

Refused   ├── NotFound   there is no such object, or no such kind
          └── NotAllowed the API server takes no such call for this kind (405)
Conflict  └── Expired    what was read is too old to go on from (410): read again
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Final, Literal, Protocol

from nodewise.errors import Conflict, Refused

Params = Mapping[str, str]
NONE: Final[Params] = {}

Patch = Literal["merge", "json", "apply", "strategic"]
"""`apply` is server-side apply (KEP-555); its field manager comes as the parameter `fieldManager`."""

DEADLINE_S: Final = 10.0
"""Of one call. An API server that is well answers in well under a second."""

IDLE_S: Final = 100.0
"""A watch that is silent for longer is taken for dead: bookmarks come every minute (apiserver v0.36)."""


class NotFound(Refused):
    """No such object, or the API server knows no such kind."""


class NotAllowed(Refused):
    """The API server takes no such call for this kind of object, whoever asks."""


class Expired(Conflict):
    """The resource version or page to go on from is no longer kept; list again."""


class Api(Protocol):
    """One API server, as one user. Every method raises kinds of `NodewiseError` and nothing else.

    A `body` is JSON bytes, or a value that msgspec encodes. Answers are JSON bytes. `timeout_s` bounds the
    whole call, with the wait for our own limit on writes. Paths, as `Resource.path` makes them, are escaped.
    """

    async def get(self, path: str, params: Params = NONE, *, timeout_s: float = DEADLINE_S) -> bytes: ...

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
        self, path: str, params: Params = NONE, *, idle_s: float = IDLE_S
    ) -> AsyncGenerator[bytes, None]:
        """Watch events, one JSON document each, however the frames are cut; ends when the server ends it."""
        ...

    async def close(self) -> None: ...
