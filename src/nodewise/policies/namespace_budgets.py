"""The budgets of a namespace: how many policies, rules, metrics, queries and node labels it may have. No I/O.

Everyone who may create a policy could otherwise use up the memory, the requests to metric sources and the space for
node labels that all namespaces share. Within a namespace older policies come first, so that a new policy never takes
effect away from one that works. Policies beyond a budget of rules, metrics or queries are not evaluated: their pods
are rejected with a reason that names the budget. Node labels beyond a budget are not written (`node_label_budget`).
Both are reported in `Policy.over_budget`, which becomes the condition `BudgetExceeded`. The limit for the labels of one
policy is a problem of that policy (`policy_objects.MAX_POLICY_LABELS`).

PlacementPolicies and TASPolicies of a namespace share its budgets. ClusterPlacementPolicies have no budgets of rules,
because only administrators write them. Of the PlacementPolicies of a namespace, and of the ClusterPlacementPolicies, a
limited number is enforced (`Policy.not_enforced`): each policy that selects a pod costs time when the pod is created.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from nodewise.policies import node_label_budget
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import Comparison, Policy, PolicyKey, PolicyKind
from nodewise.policies.policy_selection import SYSTEM_NAMESPACE

MAX_ENFORCED: Final = 50
"""PlacementPolicies of one namespace that are enforced, and ClusterPlacementPolicies."""

_Policies = Sequence[Policy]


class NamespaceBudgets:
    """Enforces the budgets of all namespaces on their policies."""

    def __init__(self, options: TelemetryOptions) -> None:
        self._rules = options.rules_per_namespace
        self._metrics = options.metrics_per_namespace
        self._queries = options.queries_per_namespace
        self._native_mode = options.native_mode
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
        labelled = node_label_budget.enforce(evaluated, native_mode=self._native_mode)
        enforced = {policy.key: policy for listed in labelled for policy in listed}
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
