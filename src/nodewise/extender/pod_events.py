"""Events on pods: `kubectl describe pod` shows, beside kube-scheduler's own words, why no node passes."""

from typing import Final

import numpy as np

from nodewise.extender.decision import Decision
from nodewise.kube.event_recorder import EventRecorder, ObjectReference
from nodewise.kube.resources import PODS

REASON: Final = "NoNodePasses"
NOT_BOUND: Final = "NotBound"


class PodEvents:
    """Records one event for a pod whose candidates were all rejected. Never blocks; the recorder limits the rate."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def __call__(self, decision: Decision) -> None:
        if not len(decision.names) or decision.kept().any():
            return
        if decision.verb == "filter":
            self._record(decision, REASON, note(decision), "Filtering")
        elif decision.verb == "bind":
            self._record(decision, NOT_BOUND, _not_bound(decision), "Binding")

    def _record(self, decision: Decision, reason: str, text: str, action: str) -> None:
        pod = decision.pod
        about = ObjectReference(PODS, pod.namespace, pod.name, pod.uid)
        self._recorder.record(about, "Warning", reason, text, action)


def _not_bound(decision: Decision) -> str:
    """kube-scheduler's own event tells the status of our answer, and none of its words."""
    why = "; ".join(reason.text() for _, verdict in decision.verdicts for reason in verdict.reasons)
    return f"not bound to {decision.names[0]}: {why}"


def note(decision: Decision) -> str:
    """How many candidates were rejected for what. Measured values stay in the decision, for `explain`: an event can be
    read by everybody who may read the pod's namespace, and a metric may be another tenant's.
    """
    counts: dict[str, int] = {}
    for _, verdict in decision.verdicts:
        for code, count in zip(*np.unique(verdict.codes[verdict.codes > 0], return_counts=True), strict=True):
            text = verdict.reasons[int(code) - 1].text()
            counts[text] = counts.get(text, 0) + int(count)
    why = "; ".join(f"{count} {text}" for text, count in sorted(counts.items(), key=lambda item: -item[1]))
    return f"none of {len(decision.names)} candidates passes: {why}"
