"""What the node affinity of a pod says about labels with verdicts. The API server adds it in native mode. No I/O."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from nodewise.agents.telemetry import verdict_labels
from nodewise.agents.telemetry.node_label_ownership import VERDICT_LABEL_PREFIX
from nodewise.agents.telemetry.taspolicy_parser import VIOLATING

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


class VerdictRequirement(NamedTuple):
    """What a pod requires, or prefers, of the label of one policy."""

    key: str
    needs_ok: bool
    """Whether nodes without the label do not meet it."""
    is_preferred: bool

    def accepts(self, value: str | None) -> bool:
        """Whether a node meets it, by the value of its label; None without the label."""
        return value == verdict_labels.OK if self.needs_ok else value != VIOLATING


def verdict_requirements(affinity: Affinity | None) -> tuple[VerdictRequirement, ...]:
    """Each key once, in order, up to `MAX_KEYS`; required ones first.

    The admission policies add the same to all terms.
    """
    needs_ok: dict[tuple[str, bool], bool] = {}
    for expression, is_preferred in _expressions(affinity):
        key = (expression.key, is_preferred)
        if expression.key.startswith(VERDICT_LABEL_PREFIX) and (key in needs_ok or len(needs_ok) < MAX_KEYS):
            needs_ok[key] = needs_ok.get(key, False) or _needs_ok(expression)
    return tuple(VerdictRequirement(key, ok, is_preferred) for (key, is_preferred), ok in needs_ok.items())


def _needs_ok(expression: Expression) -> bool:
    return expression.operator == "In" and expression.values == (verdict_labels.OK,)


def _expressions(affinity: Affinity | None) -> Iterator[tuple[Expression, bool]]:
    """All expressions of the node affinity, each with whether it is preferred."""
    node_affinity = (affinity and affinity.nodeAffinity) or _NodeAffinity()
    selector = node_affinity.requiredDuringSchedulingIgnoredDuringExecution or _NodeSelector()
    preferences = node_affinity.preferredDuringSchedulingIgnoredDuringExecution or ()
    terms = [(term, False) for term in selector.nodeSelectorTerms or ()]
    terms += [(preferred.preference or Term(), True) for preferred in preferences]
    for term, is_preferred in terms:
        yield from ((expression, is_preferred) for expression in term.matchExpressions or ())
