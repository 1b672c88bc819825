"""Laws of pods in flight, for any history of bindings, starts, samples, restarts and clock skew."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise_scorers.load.in_flight import InFlightPods

NODES, MAX_AGE_S, MAX_SKEW_S = 3, 100.0, 5.0
UIDS = ("a", "b", "c", "d")


class Event(NamedTuple):
    kind: str
    uid: str
    node: int
    after_s: float
    """Time since the event before."""
    skew_s: float
    """Error of the clock of a sample."""
    usage: float


EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from(["bind", "bind", "start", "sample", "sample", "end", "restart", "wait"]),
        st.sampled_from(UIDS),
        st.integers(0, NODES - 1),
        st.floats(0, 30),
        st.floats(-MAX_SKEW_S, MAX_SKEW_S),
        st.floats(0, 4),
    ),
    max_size=40,
)


class Pod(NamedTuple):
    node: int
    bound_s: float
    started_s: float | None
    usage: float


class History:
    """Feeds `InFlightPods` with a history, and knows which pods a sample contains."""

    def __init__(self) -> None:
        self.accounting = InFlightPods(NODES, MAX_AGE_S, MAX_SKEW_S)
        self.pods: dict[str, Pod] = {}
        self.windows = [-1e9] * NODES
        """By node: the begin of the newest window by the node's clock."""
        self.now_s = 1000.0

    def report(self, uid: str) -> None:
        pod = self.pods[uid]
        self.accounting.put(uid, pod.node, pod.bound_s, pod.usage, pod.started_s)

    def apply(self, events: Sequence[Event]) -> None:  # complexity: one branch for each kind of event
        for event in events:
            self.now_s += event.after_s
            pod = self.pods.get(event.uid)
            if event.kind == "bind" and pod is None:
                self.pods[event.uid] = Pod(event.node, self.now_s, None, event.usage)
                self.report(event.uid)
            elif event.kind == "start" and pod is not None and pod.started_s is None:
                self.pods[event.uid] = pod._replace(started_s=self.now_s)
                self.report(event.uid)
            elif event.kind == "sample":
                self.windows[event.node] = max(self.windows[event.node], self.now_s + event.skew_s)
                self.accounting.observe(event.node, self.now_s + event.skew_s)
            elif event.kind == "end" and pod is not None:
                del self.pods[event.uid]
                self.accounting.remove(event.uid)
            elif (
                event.kind == "restart"
            ):  # another replica, which lists all pods and reads the newest statistics
                self.accounting = InFlightPods(NODES, MAX_AGE_S, MAX_SKEW_S)
                for node, began_s in enumerate(self.windows):
                    self.accounting.observe(node, began_s)
                for uid in self.pods:
                    self.report(uid)
            self.accounting.expire(self.now_s)
            self.check()

    def check(self) -> None:
        sums = [0.0] * NODES
        for uid in UIDS:
            if uid in self.accounting:
                sums[self.pods[uid].node] += self.pods[uid].usage
        assert self.accounting.usage.tolist() == pytest.approx(sums, abs=1e-9), "each pod counts once"
        for uid, pod in self.pods.items():
            since_s = pod.bound_s if pod.started_s is None else pod.started_s
            if self.windows[pod.node] >= since_s + MAX_SKEW_S:
                assert uid not in self.accounting, "a sample contains it"
            elif self.now_s - pod.bound_s <= MAX_AGE_S:
                assert uid in self.accounting, "no sample contains it yet"


@given(EVENTS)
def test_a_pod_counts_once_until_a_sample_contains_it(events: list[Event]) -> None:
    History().apply(events)


@given(EVENTS)
def test_nothing_counts_after_a_quiet_period(events: list[Event]) -> None:
    """Also if statistics stopped, or pods never started."""
    history = History()
    history.apply(events)
    history.accounting.expire(history.now_s + MAX_AGE_S + 1)
    assert len(history.accounting) == 0
    assert history.accounting.usage.tolist() == [0.0] * NODES


@given(EVENTS)
def test_replicas_agree(events: list[Event]) -> None:
    history = History()
    history.apply(events)
    before = history.accounting
    history.apply([Event("restart", "a", 0, 0.0, 0.0, 0.0)])
    assert [uid in before for uid in UIDS] == [uid in history.accounting for uid in UIDS]
    assert before.usage.tolist() == pytest.approx(history.accounting.usage.tolist(), abs=1e-9)
