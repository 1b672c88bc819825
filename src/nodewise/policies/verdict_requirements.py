"""What a pod requires of labels with verdicts. The API server adds the requirements in native mode. No I/O."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from nodewise.policies import verdict_labels
from nodewise.policies.node_label_ownership import VERDICT_LABEL_PREFIX
from nodewise.policies.taspolicy_parser import VIOLATING

MAX_KEYS: Final = 64
"""Keys of one pod that are read. The API server adds at most 31, but the pod itself can have thousands of others."""


class Expression(msgspec.Struct, frozen=True):
    """A requirement of a node selector term."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class Term(msgspec.Struct, frozen=True):
    """A node selector term. Nodes meet all its expressions."""

    matchExpressions: tuple[Expression, ...] | None = None  # noqa: N815 - the API's name
    matchFields: tuple[Expression, ...] | None = None  # noqa: N815


class _NodeSelector(msgspec.Struct, frozen=True):
    nodeSelectorTerms: tuple[Term, ...] | None = None  # noqa: N815


class _Preference(msgspec.Struct, frozen=True):
    preference: Term | None = None


class _NodeAffinity(msgspec.Struct, frozen=True):
    requiredDuringSchedulingIgnoredDuringExecution: _NodeSelector | None = None  # noqa: N815
    preferredDuringSchedulingIgnoredDuringExecution: tuple[_Preference, ...] | None = None  # noqa: N815


class Affinity(msgspec.Struct, frozen=True):
    """The affinity of a pod."""

    nodeAffinity: _NodeAffinity | None = None  # noqa: N815


class NodeConstraints(msgspec.Struct, frozen=True):
    """The fields of a pod's spec that limit the nodes on which it may run by their labels."""

    affinity: Affinity | None = None
    nodeSelector: dict[str, str] | None = None  # noqa: N815


class VerdictRequirement(NamedTuple):
    """What a pod requires, or prefers, of the label of one policy."""

    key: str
    needs_ok: bool
    """Whether nodes without the label do not meet it."""
    is_preferred: bool

    def accepts(self, value: str | None) -> bool:
        """Whether a node meets it, by the value of its label; None without the label."""
        return value == verdict_labels.OK if self.needs_ok else value != VIOLATING


def verdict_requirements(spec: NodeConstraints) -> tuple[VerdictRequirement, ...]:
    """Each key once, up to `MAX_KEYS`: first those of the node selector, then of required, then of preferred affinity.

    The admission policies add the same to all terms of the affinity.
    """
    needs_ok: dict[tuple[str, bool], bool] = {}
    for key, is_ok_needed, is_preferred in _requirements(spec):
        known = (key, is_preferred)
        if key.startswith(VERDICT_LABEL_PREFIX) and (known in needs_ok or len(needs_ok) < MAX_KEYS):
            needs_ok[known] = needs_ok.get(known, False) or is_ok_needed
    return tuple(VerdictRequirement(key, ok, is_preferred) for (key, is_preferred), ok in needs_ok.items())


def _requirements(spec: NodeConstraints) -> Iterator[tuple[str, bool, bool]]:
    """The key of each label, whether `ok` is needed, and whether it is only preferred.

    A node without the label never meets a node selector. Earlier versions of nodewise added `In [ok]` to the affinity.
    """
    yield from ((key, True, False) for key in spec.nodeSelector or ())
    for expression, is_preferred in _expressions(spec.affinity):
        is_ok_needed = expression.operator == "In" and expression.values == (verdict_labels.OK,)
        yield expression.key, is_ok_needed, is_preferred


def _expressions(affinity: Affinity | None) -> Iterator[tuple[Expression, bool]]:
    """All expressions of the node affinity, each with whether it is preferred."""
    node_affinity = (affinity and affinity.nodeAffinity) or _NodeAffinity()
    selector = node_affinity.requiredDuringSchedulingIgnoredDuringExecution or _NodeSelector()
    preferences = node_affinity.preferredDuringSchedulingIgnoredDuringExecution or ()
    terms = [(term, False) for term in selector.nodeSelectorTerms or ()]
    terms += [(preferred.preference or Term(), True) for preferred in preferences]
    for term, is_preferred in terms:
        yield from ((expression, is_preferred) for expression in term.matchExpressions or ())
