"""Pods without a node that native mode concerns: what they require of labels with verdicts, and their gate. No I/O."""

from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from typing import Any, Final

import msgspec

from nodewise.agents.telemetry import verdict_labels
from nodewise.agents.telemetry.node_label_ownership import VERDICT_LABEL_PREFIX

GATE: Final = "nodewise.io/policy-not-active"
"""The scheduling gate of pods that were created before all nodes had the label of their policy."""


class _Expression(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class _Term(msgspec.Struct, frozen=True):
    matchExpressions: tuple[_Expression, ...] | None = None  # noqa: N815 - the API's name


class _NodeSelector(msgspec.Struct, frozen=True):
    nodeSelectorTerms: tuple[_Term, ...] | None = None  # noqa: N815


class _NodeAffinity(msgspec.Struct, frozen=True):
    requiredDuringSchedulingIgnoredDuringExecution: _NodeSelector | None = None  # noqa: N815


class _Affinity(msgspec.Struct, frozen=True):
    nodeAffinity: _NodeAffinity | None = None  # noqa: N815


class _Gate(msgspec.Struct, frozen=True):
    name: str = ""


class _Spec(msgspec.Struct, frozen=True):
    affinity: _Affinity | None = None
    schedulingGates: tuple[_Gate, ...] | None = None  # noqa: N815


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class UnscheduledPod(msgspec.Struct, frozen=True):
    """A pod without a node."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    keys: frozenset[str] = frozenset()
    """The keys of labels with verdicts that it requires. Set for a stored pod, whose spec is dropped."""
    keys_with_ok: frozenset[str] = frozenset()
    """Those of which it requires the value `ok`."""
    gate: int = -1
    """The position of our gate among its gates; -1 without it."""


def keep_pod(pod: UnscheduledPod) -> UnscheduledPod | None:
    """The pod as it is stored; None for a pod that native mode does not concern."""
    expressions = [item for item in _required_expressions(pod) if item.key.startswith(VERDICT_LABEL_PREFIX)]
    gates = [gate.name for gate in pod.spec.schedulingGates or ()]
    gate = gates.index(GATE) if GATE in gates else -1
    if not expressions and gate < 0:
        return None
    with_ok = (
        item.key for item in expressions if item.operator == "In" and item.values == (verdict_labels.OK,)
    )
    keys = frozenset(item.key for item in expressions)
    return UnscheduledPod(pod.metadata, _Spec(), keys, frozenset(with_ok), gate)


def _required_expressions(pod: UnscheduledPod) -> Iterator[_Expression]:
    affinity = pod.spec.affinity and pod.spec.affinity.nodeAffinity
    selector = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    for term in (selector.nodeSelectorTerms if selector else None) or ():
        yield from term.matchExpressions or ()


def releasable_pods(pods: Iterable[UnscheduledPod], settled: frozenset[str]) -> list[UnscheduledPod]:
    """The pods whose gate is to be removed: all their keys are `settled`. Namespaces take turns."""
    queues: dict[str, list[UnscheduledPod]] = {}
    for pod in pods:
        if pod.gate >= 0 and pod.keys <= settled:
            queues.setdefault(pod.metadata.namespace, []).append(pod)
    turns = chain.from_iterable(zip_longest(*queues.values()))
    return [pod for pod in turns if pod is not None]


def gate_removal(pod: UnscheduledPod) -> list[dict[str, Any]]:
    """The JSON patch that removes our gate, and fails if the pod is another one or its gates have changed."""
    path = f"/spec/schedulingGates/{pod.gate}"
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid},
        {"op": "test", "path": path, "value": {"name": GATE}},
        {"op": "remove", "path": path},
    ]
