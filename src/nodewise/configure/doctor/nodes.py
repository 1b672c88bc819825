"""Nodes with cards that nobody can name, and kubelets that give away the CPUs of pools."""

from collections.abc import Iterator, Sequence
from typing import Final

from nodewise.configure.doctor.facts import Cards, Facts, Kubelet, Unread
from nodewise.configure.doctor.findings import Answer, found, unlooked

_FEW: Final = 3
_REFUSING: Final = frozenset({"restricted", "single-numa-node"})
"""Topology manager policies by which a kubelet turns pods away."""


def check(facts: Facts) -> Iterator[Answer]:
    yield from _cards(facts)
    yield from _kubelets(facts)


def _cards(facts: Facts) -> Iterator[Answer]:
    id_ = "gpu-node-without-labels"
    if isinstance(facts.cards, Unread):
        yield from unlooked(facts.cards, id_)
        return
    bare = [one for one in facts.cards if not one.cards]
    if bare:
        seen = f"{bare[0].allocatable} is allocatable, and no card is named{_why(bare)}"
        yield found(id_, _named("Node", [one.node for one in bare]), seen, "labels or an annotation of cards")
    doubtful = [one for one in facts.cards if one.cards and one.problems]
    if doubtful:
        seen = f"not all can be read{_why(doubtful)}"
        where = _named("Node", [one.node for one in doubtful])
        yield found(id_, where, seen, "labels that can be read", severity="warning")


def _why(cards: Sequence[Cards]) -> str:
    reasons = next((one.problems for one in cards if one.problems), ())
    return f": {reasons[0]}" if reasons else ""


def _named(kind: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(f"{kind}/{name}" for name in names[:_FEW]) + more


def _kubelets(facts: Facts) -> Iterator[Answer]:
    id_ = "kubelet-policy-conflict"
    if isinstance(facts.kubelets, Unread):
        yield from unlooked(facts.kubelets, id_)
        return
    for one in facts.kubelets:
        if isinstance(one, Unread):
            yield from unlooked(one, id_)
    by_policy: dict[str, list[str]] = {}
    for one in facts.kubelets:
        if isinstance(one, Kubelet) and (wrong := _wrong(one)):
            by_policy.setdefault(wrong, []).append(one.node)
    for wrong, names in sorted(by_policy.items()):
        yield found(
            id_, _named("Node", names), f"{wrong}, and the node has pools", "none on nodes with pools"
        )


def _wrong(one: Kubelet) -> str:
    told = [f"cpuManagerPolicy: {one.cpu}"] if one.cpu == "static" else []
    told += [f"topologyManagerPolicy: {one.topology}"] if one.topology in _REFUSING else []
    told += [f"memoryManagerPolicy: {one.memory}"] if one.memory == "Static" else []
    return ", ".join(told)
