"""The custom metrics API (custom.metrics.k8s.io v1beta1 and v1beta2), asked through the API server.

One call a metric: `GET /apis/custom.metrics.k8s.io/<version>/nodes/*/<metric>`.
"""

from typing import Final
from urllib.parse import quote

import msgspec

from nodewise import clock
from nodewise.errors import UNREADABLE, BadInput, NodewiseError, Problem, Unavailable
from nodewise.kube.api import Api
from nodewise.metrics import values
from nodewise.metrics.series import Series
from nodewise.metrics.source import Want

GROUP: Final = "custom.metrics.k8s.io"
_READABLE: Final = ("v1beta1", "v1beta2")
_REMEDY: Final = (
    "install prometheus-adapter or another server of this API, or use another source of --metrics"
)


class _Version(msgspec.Struct, frozen=True):
    version: str = ""


class _Group(msgspec.Struct, frozen=True):
    preferredVersion: _Version = _Version()  # noqa: N815
    versions: list[_Version] = []


class CustomMetrics:
    """The source `custom`. The version is looked up again after every failed call, so an upgrade is noticed."""

    name = "custom"

    def __init__(self, api: Api, timeout_s: float = 5.0) -> None:
        self._api = api
        self._timeout_s = timeout_s
        self._version = ""

    async def fetch(self, want: Want, now: float) -> Series:
        """All nodes' values of a metric. `Unavailable` where the API or the metric is not there."""
        if not self._version:
            self._version = await self._find_version()
        path = f"/apis/{GROUP}/{self._version}/nodes/%2A/{quote(want.metric, safe='')}"
        try:
            body = await self._api.get(path, timeout_s=self._timeout_s)
        except NodewiseError:
            self._version = ""
            raise
        found = values.entries(values.items(body))
        series = values.collect(want, self.name, now, [entry async for entry in clock.paced(found)])
        if not series.samples and not series.invalid:
            raise Unavailable(
                f"metric {want.metric}", [Problem("items", "an empty list", "a value of a node")]
            )
        return series

    async def _find_version(self) -> str:
        try:
            body = await self._api.get(f"/apis/{GROUP}", timeout_s=self._timeout_s)
        except Unavailable:
            raise
        except NodewiseError as error:
            raise Unavailable(f"{GROUP} is not registered: {error}", remedy=_REMEDY) from error
        return chosen_version(body)


def chosen_version(body: bytes) -> str:
    """The version to speak, from the API group's discovery document: the preferred one, else the first we read."""
    try:
        group = msgspec.json.decode(body, type=_Group)
    except UNREADABLE as error:
        raise BadInput(f"discovery of {GROUP}", [Problem("", str(error), "an APIGroup")]) from error
    offered = [group.preferredVersion.version, *(version.version for version in group.versions)]
    for version in offered:
        if version in _READABLE:
            return version
    raise Unavailable(
        f"{GROUP} offers only {', '.join(offered)}", remedy=f"nodewise reads {', '.join(_READABLE)}"
    )
