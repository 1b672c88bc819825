"""Source `custom`: the custom metrics API (custom.metrics.k8s.io v1beta1 and v1beta2), through the API server.

One call per metric: `GET /apis/custom.metrics.k8s.io/<version>/nodes/*/<metric>`.
"""

import asyncio
import contextlib
from functools import partial
from typing import Final

import msgspec

from nodewise.base import cooperative_scheduling
from nodewise.base.errors import UNREADABLE, BadInput, NodewiseError, Problem, Unavailable
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.resource_kinds import escape_path
from nodewise.metrics import metric_value_list, missing_values
from nodewise.metrics.fair_concurrency_limit import DECODING, FairConcurrencyLimit
from nodewise.metrics.metrics_source import MetricNotFound, MetricRequest, NoValues
from nodewise.metrics.series import Series

GROUP: Final = "custom.metrics.k8s.io"
_READABLE: Final = ("v1beta1", "v1beta2")
_REMEDY: Final = (
    "install prometheus-adapter or another server of this API, or use another source of --metrics"
)
_SHARED_S: Final = 1.0
"""A missing API is looked up once for all metrics of a refresh, and again in the next refresh."""


class _ApiVersion(msgspec.Struct, frozen=True):
    version: str = ""


class _ApiGroup(msgspec.Struct, frozen=True):
    preferredVersion: _ApiVersion = _ApiVersion()  # noqa: N815
    versions: list[_ApiVersion] = []


class _ApiResource(msgspec.Struct, frozen=True):
    name: str = ""


class _ApiResourceList(msgspec.Struct, frozen=True):
    resources: list[_ApiResource] = []


class CustomMetricsSource:
    """The source `custom`. The version is looked up again after each failed call, which detects an upgrade."""

    name = missing_values.CUSTOM

    def __init__(self, api: Api, timeout_s: float = 5.0) -> None:
        self._api = api
        self._timeout_s = timeout_s
        self._version = ""
        self._looking = asyncio.Lock()
        self._decoding = FairConcurrencyLimit(DECODING)
        self._absent: tuple[float, MetricNotFound] | None = None

    def supports(self, request: MetricRequest) -> bool:
        """Any metric by name; the API does not support expressions."""
        return bool(request.metric) and not request.query

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        """The values of a metric for all nodes. `MetricNotFound` if the API is not registered; `Refused` or
        `Unavailable` if the metric is not available.
        """
        version = await self._api_version(now)
        path = escape_path("apis", GROUP, version, "nodes", "*", request.metric)
        await asyncio.sleep(0)  # the preceding steps already took time on the event loop
        async with contextlib.AsyncExitStack() as stack:
            slot = self._decoding.slot(request.namespaces)
            try:
                # a response that is not decoded at once stays in the buffers of the connection
                body = await self._api.get(
                    path, timeout_s=self._timeout_s, before_body=partial(stack.enter_async_context, slot)
                )
            except NodewiseError:
                self._version = ""
                raise
            entries = metric_value_list.node_samples(metric_value_list.decode_items(body))
            builder = metric_value_list.SeriesBuilder()
            async for node, entry in cooperative_scheduling.iterate_with_pauses(entries):
                builder.add(node, entry)
            series = await cooperative_scheduling.run(builder.series(request, self.name, now))
        if not series.samples and not series.invalid:
            problem = Problem("items", "an empty list", "a value of a node")
            cause = missing_values.cause("NoSeries", self.name, "has the metric, and no value of a node")
            raise NoValues(f"metric {request.metric}", [problem], cause=cause)
        return series

    async def metric_names(self) -> list[str]:
        """The metrics of nodes in the discovery document."""
        path = escape_path("apis", GROUP, await self._api_version(0.0))
        body = await self._api.get(path, timeout_s=self._timeout_s)
        try:
            resources = msgspec.json.decode(body, type=_ApiResourceList).resources
        except UNREADABLE as error:
            raise BadInput(
                f"discovery of {GROUP}", [Problem("", str(error), "an APIResourceList")]
            ) from error
        return [name for kind, _, name in (item.name.partition("/") for item in resources) if kind == "nodes"]

    async def _api_version(self, now: float) -> str:
        """The version of the API to use. All metrics share the result of a lookup."""
        async with self._looking:
            if self._absent and now - self._absent[0] < _SHARED_S:
                raise self._absent[1]
            self._absent = None
            if not self._version:
                self._version = await self._find_version(now)
            return self._version

    async def _find_version(self, now: float) -> str:
        try:
            body = await self._api.get(f"/apis/{GROUP}", timeout_s=self._timeout_s)
        except NotFound as error:
            cause = missing_values.cause("SourceNotInstalled", self.name, "is not installed")
            absent = MetricNotFound(f"{GROUP} is not registered: {error}", cause=cause, remedy=_REMEDY)
            self._absent = (now, absent)
            raise absent from error
        return choose_version(body)


def choose_version(body: bytes) -> str:
    """The version to use, from the discovery document: the preferred one, else the first supported one."""
    try:
        group = msgspec.json.decode(body, type=_ApiGroup)
    except UNREADABLE as error:
        raise BadInput(f"discovery of {GROUP}", [Problem("", str(error), "an APIGroup")]) from error
    offered = [group.preferredVersion.version, *(version.version for version in group.versions)]
    for version in offered:
        if version in _READABLE:
            return version
    raise Unavailable(
        f"{GROUP} offers only {', '.join(offered)}", remedy=f"nodewise reads {', '.join(_READABLE)}"
    )
