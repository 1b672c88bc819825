"""The interface of API clients of the CPU manager: blocking calls, with JSON as Python values.

Standard library only.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from nodewise.kube.api_server_interface import Patch

NO_PARAMS: Final[Mapping[str, str]] = {}
Object = Mapping[str, Any]


class ApiClient(Protocol):
    """One API server, as one user. A path is escaped (`kube.resource_kinds.Resource.path`).

    Every method raises kinds of `NodewiseError` and nothing else: `kube.api_server_interface.NotFound` (404),
    `Conflict` (409), `Refused` (another 4xx), `Unavailable` (429, 5xx, no answer).
    """

    def get(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> Any: ...

    def create(self, path: str, body: Object) -> Any: ...

    def replace(self, path: str, body: Object) -> Any: ...

    def patch(self, path: str, body: Any, kind: Patch, params: Mapping[str, str] = NO_PARAMS) -> Any: ...

    def delete(self, path: str, body: Object | None = None) -> Any: ...
