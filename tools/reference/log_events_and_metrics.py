"""The page of log events and metrics."""

from nodewise.metrics.refresher import MAX_METRIC_NAMES
from nodewise.observe.logs import EVENTS
from nodewise.observe.metrics_registry import METRICS, PREFIX, metric_kind
from tools.reference.markdown_formatting import MADE, table

_TENANT_CHOSEN_VALUES = (
    "Of all labels, tenants choose only the values of `metric`, which are metric names in policies. At most"
    f" {MAX_METRIC_NAMES} of them have series, in fair shares of the namespaces;"
    f" `{PREFIX}metric_names_not_exported` counts the others. All other labels have values of nodewise or of its"
    " configuration. `node` and `card` have as many values as `--gpu-card-metrics` allows.\n\n"
)


def observability_page() -> str:
    """Every event and every metric."""
    metrics = (
        (f"`{PREFIX}{name}`", metric_kind(name), ", ".join(row.labels), row.help)
        for name, row in METRICS.items()
    )
    events = ((f"`{name}`", row.level, row.meaning) for name, row in sorted(EVENTS.items()))
    return "".join(
        [
            MADE,
            "# Events and metrics\n\n## Events\n\n",
            "Log lines of servers on stderr; `--log-format json` for collectors. The fields `error` and `why`\n",
            "are reasons. Other commands print an event as a sentence, followed by its name in brackets.\n\n",
            table(("event", "level", "meaning"), events),
            "\n## Metrics\n\nOn the admin port, `/metrics`.\n\n",
            _TENANT_CHOSEN_VALUES,
            table(("metric", "kind", "labels", "meaning"), metrics),
        ]
    )
