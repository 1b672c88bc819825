"""The budgets of a namespace: how many policies, rules, metrics, queries and node labels it may have. No I/O.

Everyone who may create a policy could otherwise use up the memory, the requests to metric sources and the space for
node labels that all namespaces share. Within a namespace older policies come first, so that a new policy never takes
effect away from one that works. Policies beyond a budget of rules, metrics or queries are not evaluated: their pods are
rejected with a reason that names the budget. Node labels beyond a budget are not written. Both are reported in
`Policy.over_budget`, which becomes the condition `BudgetExceeded`. The limit for the labels of one policy is a
problem of that policy (`policy_objects.MAX_POLICY_LABELS`).

PlacementPolicies and TASPolicies of a namespace share its budgets. ClusterPlacementPolicies have no budgets of rules,
because only administrators write them, but their node labels share the space on a node. Of the PlacementPolicies of a
namespace, and of the ClusterPlacementPolicies, a limited number is enforced (`Policy.not_enforced`): each policy that
selects a pod costs time when the pod is created.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from nodewise.agents.telemetry import node_labels
from nodewise.agents.telemetry.options import TelemetryOptions
from nodewise.agents.telemetry.placement_policy import Comparison, Policy, PolicyKey, PolicyKind
from nodewise.agents.telemetry.policy_selection import SYSTEM_NAMESPACE

MAX_ENFORCED: Final = 50
"""PlacementPolicies of one namespace that are enforced, and ClusterPlacementPolicies."""
MAX_NAMESPACE_LABELS: Final = 64
"""Different node labels of the policies of one namespace, all of which may be on the same node."""
MAX_NODE_LABEL_BYTES: Final = 16 * 1024
"""Keys and values of all node labels of nodewise, which may be on the same node. The API server accepts objects of
1.5 MiB in total, and each key is in `managedFields` again."""
_MAX_NAMED: Final = 3
"""Labels that a message names."""

_Policies = Sequence[Policy]


class NamespaceBudgets:
    """Enforces the budgets of all namespaces on their policies."""

    def __init__(self, options: TelemetryOptions) -> None:
        self._rules = options.rules_per_namespace
        self._metrics = options.metrics_per_namespace
        self._queries = options.queries_per_namespace
        self._excluded = frozenset(filter(None, (SYSTEM_NAMESPACE, options.own_namespace)))

    def enforce(self, policies: Mapping[PolicyKey, Policy]) -> dict[PolicyKey, Policy]:
        """All policies, in the same order, with what is beyond a budget made unusable or left out."""
        by_namespace: dict[str, list[Policy]] = {}
        for policy in self._limit_policies(policies.values()):
            by_namespace.setdefault(policy.namespace, []).append(policy)
        evaluated = {
            name: self._enforce_rule_budgets(listed) if name else listed
            for name, listed in by_namespace.items()
        }
        enforced = {policy.key: policy for listed in _enforce_label_budgets(evaluated) for policy in listed}
        return {key: enforced[key] for key in policies}

    def _limit_policies(self, policies: Iterable[Policy]) -> Iterator[Policy]:
        """The policies, oldest first, but those in the mode Shadow at the end. Those beyond `MAX_ENFORCED` of
        their kind and namespace have no effect.
        """
        ordered = sorted(
            policies, key=lambda policy: (policy.is_shadow, policy.created, policy.name, policy.key.kind)
        )
        totals = Counter((policy.key.kind, policy.namespace) for policy in ordered)
        counts: Counter[tuple[PolicyKind, str]] = Counter()
        for policy in ordered:
            scope = policy.key.kind, policy.namespace
            counts[scope] += 1
            if policy.key.kind == "TASPolicy":
                yield policy
            elif policy.namespace in self._excluded:
                yield _not_enforced(
                    policy, f"pods of namespace {policy.namespace} are not selected by policies"
                )
            elif counts[scope] > MAX_ENFORCED:
                yield _not_enforced(policy, _describe_policy_excess(policy, totals[scope]))
            else:
                yield policy

    def _enforce_rule_budgets(self, policies: _Policies) -> list[Policy]:
        """The policies of one namespace, in order. A policy counts with all of its usable rules, or not at all."""
        rules = 0
        metrics: set[str] = set()
        queries: set[str] = set()
        enforced = []
        for policy in policies:
            usable = list(policy.usable_comparisons())
            metrics_with = metrics | {rule.metric_request().key for rule in usable}
            queries_with = queries | {rule.metric_request().key for rule in usable if rule.query}
            excess = next(
                (
                    f"{count} {what}; at most {most} ({option}), and older policies come first"
                    for count, most, what, option in (
                        (rules + len(usable), self._rules, "rules", "--rules-per-namespace"),
                        (len(metrics_with), self._metrics, "metrics", "--metrics-per-namespace"),
                        (len(queries_with), self._queries, "queries", "--queries-per-namespace"),
                    )
                    if count > most
                ),
                "",
            )
            if excess:
                enforced.append(
                    _reject_policy(policy, f"with it namespace {policy.namespace} needs {excess}")
                )
            else:
                rules, metrics, queries = rules + len(usable), metrics_with, queries_with
                enforced.append(policy)
        return enforced


def _not_enforced(policy: Policy, why: str) -> Policy:
    """The policy without its rules. It still selects pods, so that their decisions can name it."""
    return msgspec.structs.replace(policy, avoid=(), prefer=(), node_labels=(), not_enforced=why)


def _describe_policy_excess(policy: Policy, count: int) -> str:
    scope = (
        f"namespace {policy.namespace} has {count} PlacementPolicies"
        if policy.namespace
        else f"the cluster has {count} ClusterPlacementPolicies"
    )
    return f"{scope}; at most {MAX_ENFORCED} are enforced, and older policies come first"


def fair_shares(requested: Mapping[str, int], total: int) -> dict[str, int]:
    """Divide a total by max-min fairness: who requests less than an equal share gets all of it, and leaves the rest.

    Source of the definition: Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2.
    """
    shares: dict[str, int] = {}
    left = total
    by_amount = sorted(requested.items(), key=lambda item: (item[1], item[0]))
    for position, (name, amount) in enumerate(by_amount):
        shares[name] = min(amount, left // (len(by_amount) - position))
        left -= shares[name]
    return shares


def _reject_policy(policy: Policy, excess: str) -> Policy:
    """The policy with all rules unusable, so that its pods wait with a reason."""
    remedy = (
        f"delete policies or rules of namespace {policy.namespace}, or let an administrator raise the limit"
    )

    def reject(comparison: Comparison) -> Comparison:
        if comparison.unusable:
            return comparison
        return msgspec.structs.replace(comparison, unusable=excess, remedy=remedy)

    message = f"no rule is evaluated: {excess}; {remedy}"
    return msgspec.structs.replace(policy.with_comparisons(reject), over_budget=message)


def _enforce_label_budgets(by_namespace: Mapping[str, _Policies]) -> Iterator[list[Policy]]:
    """The policies of each namespace, without node labels beyond a budget.

    The bytes are divided among the namespaces, so that no namespace can fill a node for all others.
    """
    requested = {
        namespace: [node_labels.requested_labels(policy) for policy in policies]
        for namespace, policies in by_namespace.items()
    }
    totals = {namespace: _sum_bytes(labels) for namespace, labels in requested.items()}
    shares = fair_shares(totals, MAX_NODE_LABEL_BYTES)
    for namespace, policies in by_namespace.items():
        labels = requested[namespace]
        # the budget of labels is for tenants; the space on a node is for all
        count = sum(map(len, labels)) if namespace else 0
        if count <= MAX_NAMESPACE_LABELS and totals[namespace] <= shares[namespace]:
            yield list(policies)
            continue
        limits = _describe_label_excess(namespace, count, totals[namespace], shares[namespace])
        yield list(_admit_labels_in_order(policies, labels, shares[namespace], limits))


def _sum_bytes(labels: Iterable[Mapping[str, int]]) -> int:
    return sum(sum(bytes_by_key.values()) for bytes_by_key in labels)


def _describe_label_excess(namespace: str, count: int, size: int, share: int) -> str:
    excesses = []
    if count > MAX_NAMESPACE_LABELS:
        excesses.append(f"{count} labels, at most {MAX_NAMESPACE_LABELS}")
    if size > share:
        excesses.append(
            f"{size} bytes of labels, at most {share} of the {MAX_NODE_LABEL_BYTES} bytes per node"
        )
    policies = f"the policies of namespace {namespace}" if namespace else "the ClusterPlacementPolicies"
    return f"{policies} request {' and '.join(excesses)}, and older policies come first"


def _admit_labels_in_order(
    policies: _Policies, requested: Sequence[Mapping[str, int]], share: int, limits: str
) -> Iterator[Policy]:
    """The policies of one namespace, oldest first, each with the labels that fit after those before them."""
    count = size = 0
    for policy, bytes_by_key in zip(policies, requested, strict=True):
        omitted = []
        for key, label_bytes in bytes_by_key.items():
            is_within_count = count < MAX_NAMESPACE_LABELS or not policy.namespace
            if is_within_count and size + label_bytes <= share:
                count, size = count + 1, size + label_bytes
            else:
                omitted.append(key)
        yield _without_labels(policy, omitted, limits) if omitted else policy


def _without_labels(policy: Policy, omitted: Sequence[str], limits: str) -> Policy:
    named = ", ".join(omitted[:_MAX_NAMED])
    more = f" and {len(omitted) - _MAX_NAMED} more" if len(omitted) > _MAX_NAMED else ""
    message = f"{limits}; not written for this policy: {named}{more}"
    left = policy.with_label_keys(lambda key: key not in omitted)
    return msgspec.structs.replace(left, over_budget=message)
