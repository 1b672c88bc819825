"""Events on pods: `kubectl describe pod` shows why nodewise rejected all nodes, or did not bind the pod."""

from typing import Final

import numpy as np

from nodewise.engine.decision import Decision
from nodewise.kube.event_recorder import NO_NODE_PASSES, EventRecorder, ObjectReference
from nodewise.kube.resource_kinds import PODS

NOT_BOUND: Final = "NotBound"


class PodEventRecorder:
    """Records an event for each pod whose candidates were all rejected.

    It does not block. The recorder limits the rate.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def __call__(self, decision: Decision) -> None:
        if not len(decision.names) or decision.feasible().any():
            return
        if decision.verb == "filter":
            reason, action, text = NO_NODE_PASSES, "Filtering", summarize_rejections(decision)
        elif decision.verb == "bind":
            # kube-scheduler's own event has the status of the response, and not its text
            why = "; ".join(item.text() for _, verdict in decision.verdicts for item in verdict.reasons)
            reason, action, text = NOT_BOUND, "Binding", f"not bound to {decision.names[0]}: {why}"
        else:
            return
        about = ObjectReference(PODS, decision.pod.namespace, decision.pod.name, decision.pod.uid)
        self._recorder.record(about, "Warning", reason, text, action)


def summarize_rejections(decision: Decision) -> str:
    """How many candidates were rejected, by reason.

    Without measured values: everyone with access to the pod's namespace can read its events, and a metric may belong to
    another tenant. `explain` shows the values.
    """
    counts: dict[str, int] = {}
    for _, verdict in decision.verdicts:
        for code, count in zip(*np.unique(verdict.codes[verdict.codes > 0], return_counts=True), strict=True):
            text = verdict.reasons[int(code) - 1].text()
            counts[text] = counts.get(text, 0) + int(count)
    why = "; ".join(f"{count} {text}" for text, count in sorted(counts.items(), key=lambda item: -item[1]))
    return f"none of {len(decision.names)} candidates passes: {why}"
