"""The page of log events and metrics."""

from nodewise.observe.log_events import EVENTS
from nodewise.observe.metric_definitions import METRICS
from nodewise.observe.metrics_registry import PREFIX
from tools.reference.markdown_formatting import MADE, table


def observability_page() -> str:
    """Every event and every metric."""
    metrics = (
        (f"`{PREFIX}{name}`", row.kind, ", ".join(row.labels), row.help) for name, row in METRICS.items()
    )
    events = ((f"`{name}`", row.level, row.meaning) for name, row in EVENTS.items())
    return "".join(
        [
            MADE,
            "# Events and metrics\n\n## Events\n\nLog lines on stderr; `--log-format json` for collectors.\n\n",
            table(("event", "level", "meaning"), events),
            "\n## Metrics\n\nOn the admin port, `/metrics`.\n\n",
            table(("metric", "kind", "labels", "meaning"), metrics),
        ]
    )
