"""Settings of the `extender` command that belong to no single room."""

from typing import Annotated, Literal

import msgspec


class ExtenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the extender serves, and from what."""

    agents: str = "telemetry"
    """Agents to ask, separated by commas, in this order. `nodewise agents list` shows them."""

    metrics: tuple[str, ...] = ("auto",)
    """Where node metrics come from; repeat it for several, the first that has a metric wins. `auto`: the custom
    metrics API. `custom`: the same. `file:PATH`: MetricValueLists in YAML or JSON, or CSV lines
    node,metric,value[,timestamp]."""

    objects_from: tuple[str, ...] = ()
    """Read nodes, policies and metrics from these files or folders instead of a cluster, and read them again when
    they change. For trying things out: nothing is written anywhere."""

    decisions_bytes: Annotated[int, msgspec.Meta(ge=0)] = 64 * 2**20
    """Memory for the decisions that /decisions shows; the oldest make room."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level of log lines that are written."""

    log_format: Literal["text", "json"] = "text"
    """Form of log lines: text for people, json for collectors."""
