"""The namespaces whose policies may affect the whole cluster, and the restrictions in all others. No I/O.

A cluster administrator grants trust: the namespace has the label `nodewise.io/trusted=true`, or it is nodewise's own,
or a flag names it. Only policies in trusted namespaces label nodes (`deschedule`, `labeling`, so also every `gas-*`
name, which disables GPUs) and use a raw `query`, which can read every series of Prometheus. In all other namespaces,
`dontschedule` and `scheduleonmetric` work with metric names, for pods of that namespace.

A PlacementPolicy has no node labels and queries; the limits for metric names and ages apply to it as well. A
ClusterPlacementPolicy is trusted, because only cluster administrators write it.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nodewise.base import clock
from nodewise.base.errors import BadSettings, Problem, shown
from nodewise.policies.placement_policy import Comparison, Policy, PolicyKey, PolicyKind

if TYPE_CHECKING:
    from nodewise.agent import ObjectKey
    from nodewise.policies.options import TelemetryOptions

NAMESPACES: Final = "namespaces"
"""The key of the namespaces in `ClusterState.objects`."""
LABEL: Final = "nodewise.io/trusted"
VALUE: Final = "true"
CLUSTER_WIDE: Final = ("deschedule", "labeling")
"""Strategies that write node labels."""
_MAX_LABEL_BYTES: Final = 16 * 1024
"""JSON of the labels of a namespace that are stored. It can have a megabyte of them."""
_MAX_UNTRUSTED_AGE_S: Final = 900.0
"""A metric is requested once for all rules, with the longest of their ages. An age of a year would make the response of
Prometheus too large, and policies of other namespaces would get no values of that metric."""
_MAX_REASONS: Final = 2


class NamespaceMetadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    """Always empty."""
    labels: dict[str, Any] | None = None


class NamespaceObject(msgspec.Struct, frozen=True):
    """The fields of a Namespace that are read."""

    metadata: NamespaceMetadata = NamespaceMetadata()
    has_unknown_labels: bool = False
    """Whether the labels were too large to be stored. Every selector then selects the namespace, which is not trusted.
    """


def drop_oversized_labels(namespace: NamespaceObject) -> NamespaceObject:
    """The namespace as it is stored: without its labels if these are too large."""
    if len(msgspec.json.encode(namespace.metadata.labels)) <= _MAX_LABEL_BYTES:
        return namespace
    metadata = msgspec.structs.replace(namespace.metadata, labels=None)
    return msgspec.structs.replace(namespace, metadata=metadata, has_unknown_labels=True)


class NamespaceTrust:
    """Decides which namespaces are trusted, and restricts the policies of the others."""

    def __init__(self, options: "TelemetryOptions", max_age_s: float) -> None:
        """`BadSettings` if `--allowed-metrics` is not a regular expression."""
        self._max_age_s = max(_MAX_UNTRUSTED_AGE_S, max_age_s)
        self._all = options.trust_all_namespaces
        self._named = frozenset(filter(None, (options.own_namespace, *options.label_policies_from)))
        try:
            self._allowed = re.compile(options.allowed_metrics or "(?s:.*)")
        except re.error as error:
            seen = f"{shown(options.allowed_metrics)}: {error}"
            problem = Problem("--allowed-metrics", seen, "a regular expression")
            raise BadSettings("settings", [problem]) from error

    def trusted_namespaces(self, objects: "Mapping[str, Mapping[ObjectKey, Any]]") -> frozenset[str]:
        """The namespaces that are trusted by their label or by a flag."""
        namespaces: Mapping[ObjectKey, NamespaceObject] = objects.get(NAMESPACES, {})
        return self._named.union(
            name for (_, name), item in namespaces.items() if (item.metadata.labels or {}).get(LABEL) == VALUE
        )

    def is_trusted(self, namespace: str, namespaces: frozenset[str]) -> bool:
        """Whether policies of a namespace may affect the whole cluster; `namespaces` are the `trusted_namespaces`."""
        return self._all or namespace in namespaces

    def restrict_untrusted_policy(self, policy: Policy) -> Policy:
        """The policy with the restrictions of a namespace that is not trusted.

        Strategies that write node labels are left out, so their metrics are not fetched either. Rules that need trust
        are unusable: in `dontschedule` they reject every node, in `scheduleonmetric` they express no preference.
        """
        omitted = [name for name in CLUSTER_WIDE if name in policy.sections]
        restricted = msgspec.structs.replace(
            policy,
            node_labels=(),
            sections=tuple(name for name in policy.sections if name not in omitted),
        ).with_comparisons(partial(self._restrict_comparison, policy=policy.key))
        refusals = (comparison.refusal for comparison in restricted.comparisons())
        reasons = list(dict.fromkeys(filter(None, refusals)))
        if len(reasons) > _MAX_REASONS:
            # few enough that the remedy fits into a condition as well
            reasons[_MAX_REASONS:] = [f"{len(reasons) - _MAX_REASONS} more rules cannot be used"]
        if omitted:
            verb = "has" if len(omitted) == 1 else "have"
            reasons.insert(0, f"{' and '.join(omitted)} {verb} no effect")
        if not reasons:
            return restricted
        message = (
            f"namespace {policy.namespace} is not trusted: {'; '.join(reasons)}; {remedy(policy.namespace)}"
        )
        return msgspec.structs.replace(restricted, not_trusted=message)

    def _restrict_comparison(self, comparison: Comparison, policy: PolicyKey) -> Comparison:
        refusal = self._trust_refusal_reason(comparison, policy.kind)
        if comparison.unusable or not refusal:
            return comparison
        text = f"namespace {policy.namespace} is not trusted: {refusal}"
        return msgspec.structs.replace(
            comparison, unusable=text, refusal=refusal, remedy=remedy(policy.namespace)
        )

    def _trust_refusal_reason(self, comparison: Comparison, kind: PolicyKind) -> str:
        """Why a comparison needs trust, without the text of its query; empty if it does not."""
        if comparison.query:
            return "rules with a query cannot be used"
        if not self._allowed.fullmatch(comparison.metric):
            return f"metric {comparison.metric} is not one of --allowed-metrics"
        if comparison.max_age_s is not None and comparison.max_age_s > self._max_age_s:
            field = "max_age" if kind == "TASPolicy" else "maxAge"
            return f"rules with a {field} above {clock.format_duration(self._max_age_s)} cannot be used"
        return ""


def remedy(namespace: str) -> str:
    """How an administrator grants trust."""
    return f"a cluster administrator grants trust with: kubectl label namespace {namespace} {LABEL}={VALUE}"
