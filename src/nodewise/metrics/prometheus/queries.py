"""PromQL queries for metrics.

An instant query of a selector returns every value with the time of the evaluation, regardless of the age of the sample.
So the query of a plain selector is a range, `temp[60s]`, which returns the samples with their own times (Prometheus,
"Querying basics": range vector selectors). Any other expression is used unchanged; the age of its values is unknown.
"""

import re
from collections.abc import Sequence
from typing import Final

from nodewise.metrics.metrics_source import MetricRequest

_STRING: Final = r"""(?:"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|`[^`]*+`)"""
_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABEL: Final = rf"(?:[a-zA-Z_][a-zA-Z0-9_]*+|{_STRING})"
_MATCHER: Final = rf"(?:{_LABEL}\s*+(?:=~|!~|!=|=)\s*+{_STRING}|{_STRING})\s*+"
_MATCHERS: Final = rf"\{{\s*+(?:{_MATCHER}(?:,\s*+{_MATCHER})*+(?:,\s*+)?+)?+\}}"
# possessive quantifiers throughout: the text is untrusted, and matching must take linear time
_SELECTOR: Final = re.compile(rf"(?:{_NAME}\s*+(?:{_MATCHERS})?+|{_MATCHERS})")
_NUMBERS: Final = ("inf", "nan")
"""Names that PromQL reads as numbers."""


def range_query(request: MetricRequest, lookback_s: float) -> str:
    """The query of a request: the rule's query, else a selector of the metric; samples no older than `lookback_s`."""
    expression = instant_query(request)
    return f"{expression}[{promql_duration(lookback_s)}]" if is_selector(expression) else expression


def last_value_query(request: MetricRequest, max_age_s: float, *, only_current: bool) -> str:
    """The query whose value at any time is that of the newest sample no older than `max_age_s`.

    With `only_current` it has no series that have ended. An expression is used unchanged.
    """
    expression = instant_query(request)
    if not is_selector(expression):
        return expression
    newest = f"last_over_time({expression}[{promql_duration(max_age_s)}])"
    return f"{newest} and {expression}" if only_current else newest


def instant_query(request: MetricRequest) -> str:
    """The same without a range. For a selector, Prometheus returns the series that have not ended."""
    return request.query.strip() if request.query else _metric_selector(request.metric)


def existing_metrics_query(names: Sequence[str]) -> str:
    """The query whose result has one series for each of these metrics that has series."""
    return f"count by (__name__) ({' or '.join(map(_metric_selector, names))})"


def is_selector(text: str) -> bool:
    """Whether this is a plain selector such as `temp` or `temp{job="node"}`, without offset or function."""
    return _SELECTOR.fullmatch(text) is not None and text.lower() not in _NUMBERS


def _metric_selector(metric: str) -> str:
    """A selector by name. The name is always quoted: it is a tenant's text and must not be parsed as PromQL."""
    escaped = metric.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{__name__="{escaped}"}}'


def promql_duration(seconds: float) -> str:
    """A duration in PromQL, which does not support fractions."""
    milli = max(round(seconds * 1000), 1)
    return f"{milli}ms" if milli % 1000 else f"{milli // 1000}s"
