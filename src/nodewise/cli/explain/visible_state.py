"""What a user sees of a pod's placement without rights in nodewise's namespace: events and the status of policies.

The API server authorizes each of these requests for the pod's own namespace, so nothing of other namespaces appears.
Events contain the policies and rules that reject nodes, with the number of nodes for each, and no measured values.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from nodewise.base import clock
from nodewise.base.errors import UNREADABLE, NodewiseError
from nodewise.cli import terminal_output
from nodewise.cli.explain import missing_decision
from nodewise.cli.explain.pod_state import PodReadResult
from nodewise.kube.api_server_interface import Api
from nodewise.kube.resource_kinds import Resource

_EVENTS: Final = Resource("", "v1", "events", "Event")
"""The API of `kubectl describe`: the ClusterRole `view` has the right to read these."""
_REPORTERS: Final = "nodewise.io/"
_MOST_LISTED: Final = "200"
MOST_SHOWN: Final = 5


class PodEvent(NamedTuple):
    """An event that nodewise wrote about the pod."""

    reason: str
    message: str
    times: int
    last: str
    """RFC 3339."""


class VisibleState(NamedTuple):
    """What is visible, and what is not."""

    events: tuple[PodEvent, ...]
    """The newest first."""
    events_error: str
    """Why events cannot be read; empty if they can."""
    hidden: str
    """Why the decisions of replicas cannot be read."""


class _Series(msgspec.Struct, frozen=True, rename="camel"):
    count: int = 0
    last_observed_time: str | None = None


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    reporting_component: str = ""
    event_time: str | None = None
    last_timestamp: str | None = None
    series: _Series | None = None


class _Events(msgspec.Struct, frozen=True):
    items: tuple[_Event, ...] | None = None


async def read_visible_state(
    api: Api, namespace: str, pod: str, uid: str, timeout_s: float, hidden: str
) -> VisibleState:
    """The events of nodewise about the pod with this uid, or with this name if the uid is empty."""
    fields = {"involvedObject.name": pod, "involvedObject.kind": "Pod"} | (
        {"involvedObject.uid": uid} if uid else {}
    )
    selector = ",".join(f"{name}={value}" for name, value in fields.items())
    try:
        query = {"fieldSelector": selector, "limit": _MOST_LISTED}
        body = await api.get(_EVENTS.path(namespace), query, timeout_s=timeout_s)
        listed = msgspec.json.decode(body, type=_Events).items or ()
    except (NodewiseError, *UNREADABLE) as error:
        return VisibleState((), str(error), hidden)
    events = [_pod_event(event) for event in listed if event.reporting_component.startswith(_REPORTERS)]
    return VisibleState(tuple(sorted(events, key=lambda event: event.last, reverse=True)), "", hidden)


def _pod_event(event: _Event) -> PodEvent:
    series = event.series or _Series()
    last = series.last_observed_time or event.event_time or event.last_timestamp or ""
    return PodEvent(event.reason, event.message, max(series.count, 1), last)


def print_visible_state(pod: str, lookup: PodReadResult, visible: VisibleState, now: float) -> None:
    """Print what is known without the decisions of replicas, and which rights would show more."""
    for line in _lines(pod, lookup, visible, now):
        terminal_output.print_line(line)


def _lines(pod: str, lookup: PodReadResult, visible: VisibleState, now: float) -> Iterator[str]:
    state = lookup.state
    if lookup.native is None:
        yield _placement(pod, lookup)
        if state and state.message:
            yield f"kube-scheduler: {state.message}"
    for event in visible.events[:MOST_SHOWN]:
        yield f"nodewise, {_times(event, now)}: {event.reason}: {event.message}"
    yield from _policy_lines(lookup)
    if not visible.events and not (state and state.node) and lookup.native is None:
        yield "nodewise has written no event about it"
        if not lookup.gone:
            yield from (f"  {cause}" for cause in missing_decision.find_missing_decision_causes(lookup, ()))
    yield from _hidden_lines(lookup, visible)


def _policy_lines(lookup: PodReadResult) -> Iterator[str]:
    for policy in lookup.policies:
        yield f"{policy.policy} selects it" + (f", and {policy.not_enforced}" if policy.not_enforced else "")
        yield from (f"  {line}" for line in policy.status)


def _placement(pod: str, lookup: PodReadResult) -> str:
    if lookup.state is None:
        return lookup.missing if lookup.gone else pod
    return f"{pod} is on {lookup.state.node}" if lookup.state.node else f"{pod} waits"


def _times(event: PodEvent, now: float) -> str:
    times = f", {event.times} times" if event.times > 1 else ""
    try:
        age_s = max(now - clock.parse_rfc3339(event.last), 0.0)
    except ValueError:
        return f"at an unknown time{times}"
    return f"{clock.format_duration(round(age_s))} ago{times}"


def _hidden_lines(lookup: PodReadResult, visible: VisibleState) -> Iterator[str]:
    hidden: Sequence[tuple[str, str]] = (
        ("the measured values, scores and suggestions of replicas", visible.hidden),
        ("policies that may select it, too", lookup.policies_error),
        ("events", visible.events_error),
    )
    yield "Not visible to you:"
    yield from (f"  {what}: {why}" for what, why in hidden if why)
