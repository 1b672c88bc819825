"""The budgets of a namespace (policies, rules, metrics, queries and node labels), and the budget of labels on one node,
which all namespaces share. No I/O.

Everyone who may create a policy could otherwise use up the memory, the requests to metric sources and the space for
node labels that all namespaces share. Within a namespace older policies come first, so that a new policy never takes
effect away from one that works. Policies beyond a budget of rules, metrics or queries are not evaluated: their pods
are rejected with a reason that names the budget. Node labels beyond a budget are not written.
Both are reported in `Policy.over_budget`, which becomes the condition `BudgetExceeded`. The limit for the labels of one
policy is a problem of that policy (`policy_objects.MAX_POLICY_LABELS`).

PlacementPolicies and TASPolicies of a namespace share its budgets. ClusterPlacementPolicies have no budgets of rules,
because only administrators write them. Of the PlacementPolicies of a namespace, and of the ClusterPlacementPolicies, a
limited number is enforced (`Policy.not_enforced`): each policy that selects a pod costs time when the pod is created.

Every label of nodewise may be on the same node, and the API server refuses a Node that is too large: about 1.5 MiB
with `managedFields`, which contains each key again. The labels are those that policies name (`nodeLabels`,
`deschedule`, `labeling`) and, in native mode, those with the verdict of each policy. Everyone who may create
namespaces, policies or pods could otherwise fill the nodes for all others.

Namespaces share the bytes of a node by max-min fairness for requests that cannot be divided: the namespace with the
fewest bytes gets its next label, until no label fits. Within a namespace, labels with verdicts come before others, and
older policies before newer ones. The verdicts of ClusterPlacementPolicies, which only administrators write, come before
all others. Source of the definition: Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from nodewise.base.errors import list_first
from nodewise.policies import node_labels, policy_selection
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import Policy, PolicyKey, PolicyKind
from nodewise.policies.placement_policy_fields import VIOLATING
from nodewise.policies.policy_selection import SYSTEM_NAMESPACE
from nodewise.policies.verdict_labels import label_key, preference_label_key

MAX_NODE_LABEL_BYTES: Final = 16 * 1024
"""Keys and values of all labels of nodewise on a node."""
MAX_NAMESPACE_LABELS: Final = 64
"""Different labels that the policies of one namespace name."""
MAX_NAMESPACE_KEYS: Final = 10
"""Labels with verdicts or preferences for one namespace, verdicts first. Each policy that selects a pod adds more than
1 ms to the pod's creation."""
MAX_CLUSTER_KEYS: Final = 20
"""Labels with verdicts or preferences of ClusterPlacementPolicies."""
_MAX_NAMED: Final = 3
"""Labels that a message names."""


class _Request(NamedTuple):
    """A label that a policy may set on a node."""

    policy: Policy
    key: str
    size: int
    """Bytes of the key and the longest value."""


class _Requests(NamedTuple):
    """The labels that the policies of a namespace request, in the order in which they are admitted."""

    native: Sequence[_Request]
    """Those with verdicts, and then those with preferences."""
    others: Sequence[_Request]


_Admitted = set[tuple[PolicyKey, str]]


def enforce_node_label_budget(
    by_namespace: Mapping[str, Sequence[Policy]], *, native_mode: bool
) -> Iterator[list[Policy]]:
    """The policies of each namespace, in order, with `over_budget`, `no_verdict_label` and `no_preference_label` for
    labels beyond the budget.

    Labels with verdicts and preferences are requested in native mode only.
    """
    requests = {
        namespace: _requests(policies, native_mode=native_mode)
        for namespace, policies in by_namespace.items()
    }
    admitted = _admit_fairly(requests)
    for namespace, policies in by_namespace.items():
        refusals = _Refusals(namespace, requests[namespace], admitted)
        yield [refusals.restrict(policy) for policy in policies]


def has_verdict_label(policy: Policy) -> bool:
    """Whether native mode labels nodes with the verdict of the policy, if the label is within the budget."""
    return bool(policy.avoid and policy.uid) and policy_selection.has_labels(policy)


def has_preference_label(policy: Policy) -> bool:
    """The same for the label with the classes of its preferences."""
    return bool(policy.prefer and policy.uid) and policy_selection.has_labels(policy)


def _preference_request(policy: Policy) -> _Request:
    key = preference_label_key(policy.uid)
    return _Request(policy, key, len(key) + 1)


def verdict_label_bytes(key: str) -> int:
    return len(key) + len(VIOLATING)


def free_bytes(policies: Iterable[Policy]) -> int:
    """The bytes of a node that the admitted labels of these policies leave."""
    used = 0
    for policy in policies:
        used += sum(node_labels.requested_labels(policy).values())
        if has_verdict_label(policy) and not policy.no_verdict_label:
            used += verdict_label_bytes(label_key(policy.uid))
        if has_preference_label(policy) and not policy.no_preference_label:
            used += _preference_request(policy).size
    return MAX_NODE_LABEL_BYTES - used


def admit_labels_of_waiting_pods(
    wanted: Iterable[tuple[str, frozenset[str]]], counts: Mapping[str, int], free: int
) -> frozenset[str]:
    """The keys of labels that only waiting pods need, as far as the admitted labels of policies leave space for them.

    `wanted` are keys, each with the namespaces of the pods; an empty name stands for a ClusterPlacementPolicy. Of one
    namespace the first ones come first, and namespaces take turns. `counts` is the number of labels with verdicts that
    each namespace has already; both kinds together have one limit. A key counts in all of its namespaces.
    """
    total = Counter(counts)
    queues: dict[str, list[tuple[str, frozenset[str]]]] = {}
    for key, namespaces in wanted:
        queues.setdefault(min(namespaces, default=""), []).append((key, namespaces))
    admitted: set[str] = set()
    for key, namespaces in node_labels.interleave(queues[name] for name in sorted(queues)):
        has_turn = any(total[name] < _most_keys(name) for name in namespaces)
        if key not in admitted and has_turn and verdict_label_bytes(key) <= free:
            admitted.add(key)
            free -= verdict_label_bytes(key)
            total.update(namespaces)
    return frozenset(admitted)


def _most_keys(namespace: str) -> int:
    return MAX_NAMESPACE_KEYS if namespace else MAX_CLUSTER_KEYS


def _requests(policies: Sequence[Policy], *, native_mode: bool) -> _Requests:
    """All requests of one namespace, also those beyond its own limits."""
    verdicts, others = [], []
    by_age = sorted(policies, key=lambda policy: (policy.created, policy.key)) if native_mode else ()
    preferences = [_preference_request(policy) for policy in by_age if has_preference_label(policy)]
    for policy in by_age:
        if has_verdict_label(policy):
            key = label_key(policy.uid)
            verdicts.append(_Request(policy, key, verdict_label_bytes(key)))
    for policy in policies:
        for key, size in node_labels.requested_labels(policy).items():
            others.append(_Request(policy, key, size))
    return _Requests([*verdicts, *preferences], others)


def _admit_fairly(requests: Mapping[str, _Requests]) -> _Admitted:
    """The labels that fit, identified by policy and key."""
    admitted: _Admitted = set()
    free = MAX_NODE_LABEL_BYTES
    queues: dict[str, list[_Request]] = {}
    for namespace, (native, others) in requests.items():
        if namespace:
            queues[namespace] = [*native[:MAX_NAMESPACE_KEYS], *others[:MAX_NAMESPACE_LABELS]]
            continue
        for request in native[:MAX_CLUSTER_KEYS]:
            admitted.add((request.policy.key, request.key))
            free -= request.size
        queues[namespace] = list(others)
    heap = [(0, queue[0].policy.created, namespace, 0) for namespace, queue in queues.items() if queue]
    heapq.heapify(heap)
    while heap:
        used, _, namespace, position = heapq.heappop(heap)
        request = queues[namespace][position]
        if request.size <= free:
            admitted.add((request.policy.key, request.key))
            free -= request.size
            used += request.size
        position += 1
        if position < len(queues[namespace]):
            created = queues[namespace][position].policy.created
            heapq.heappush(heap, (used, created, namespace, position))
    return admitted


class _Refusals:
    """What the policies of one namespace do not get, and why."""

    def __init__(self, namespace: str, requests: _Requests, admitted: _Admitted) -> None:
        self._namespace = namespace
        self._requests = requests
        self._admitted = admitted
        self._positions = {
            request.policy.key: number
            for number, request in enumerate(requests.native, start=1)
            if request.key == label_key(request.policy.uid)
        }
        """Of the policies with verdict labels."""
        sizes = [
            (request.size, (request.policy.key, request.key) in admitted) for request in chain(*requests)
        ]
        self._bytes = sum(size for size, _ in sizes)
        self._admitted_bytes = sum(size for size, is_admitted in sizes if is_admitted)

    def restrict(self, policy: Policy) -> Policy:
        """The policy without the labels that are not admitted."""
        omitted = [
            key for key in node_labels.requested_labels(policy) if (policy.key, key) not in self._admitted
        ]
        if omitted:
            named = list_first(omitted, _MAX_NAMED)
            message = f"{self._describe_excess()}; not written for this policy: {named}"
            left = policy.with_label_keys(lambda key: key not in omitted)
            policy = msgspec.structs.replace(left, over_budget=message)
        is_admitted = (policy.key, label_key(policy.uid)) in self._admitted
        if policy.key in self._positions and not is_admitted:
            why = f"native mode does not enforce it: {self._describe_missing_verdict(policy)}"
            policy = msgspec.structs.replace(policy, no_verdict_label=why)
        if any(
            request.policy.key == policy.key and (policy.key, request.key) not in self._admitted
            for request in self._requests.native
            if request.key != label_key(request.policy.uid)
        ):
            limit = _most_keys(self._namespace)
            why = (
                f"prefer has no effect in native mode: at most {limit} labels with verdicts or preferences of"
                f" {self._describe_scope()} are within the budget of a node; verdicts and older policies come first"
            )
            texts = filter(None, [policy.over_budget, why])
            policy = msgspec.structs.replace(policy, over_budget="; ".join(texts), no_preference_label=True)
        return policy

    def _describe_excess(self) -> str:
        count, namespace = len(self._requests.others), self._namespace
        excess = (
            f"{count} labels, at most {MAX_NAMESPACE_LABELS}"
            if namespace and count > MAX_NAMESPACE_LABELS
            else f"{self._bytes} bytes of labels, of which {self._admitted_bytes} fit into the"
            f" {MAX_NODE_LABEL_BYTES} bytes per node that namespaces share"
        )
        policies = f"the policies of namespace {namespace}" if namespace else "the ClusterPlacementPolicies"
        return f"{policies} request {excess}, and older policies come first"

    def _describe_scope(self) -> str:
        return f"namespace {self._namespace}" if self._namespace else "the cluster"

    def _describe_missing_verdict(self, policy: Policy) -> str:
        scope = self._describe_scope()
        position = self._positions[policy.key]
        limit = _most_keys(self._namespace)
        text = f"it is policy {position} of {scope} that avoids nodes"
        if position > limit:
            return f"{text}, at most {limit} have a node label, and older policies come first"
        return (
            f"{text}, and the {MAX_NODE_LABEL_BYTES} bytes per node that namespaces share equally have space for"
            f" {self._admitted_bytes} bytes of {scope}; older policies come first"
        )


MAX_ENFORCED: Final = 50
"""PlacementPolicies of one namespace that are enforced, and ClusterPlacementPolicies."""


class NamespaceBudgets:
    """Enforces the budgets of all namespaces on their policies."""

    def __init__(self, options: TelemetryOptions) -> None:
        self._rules = options.rules_per_namespace
        self._metrics = options.metrics_per_namespace
        self._queries = options.queries_per_namespace
        self._excluded = frozenset(filter(None, (SYSTEM_NAMESPACE, options.own_namespace)))

    def enforce(self, policies: Mapping[PolicyKey, Policy], *, native_mode: bool) -> dict[PolicyKey, Policy]:
        """All policies, in the same order, with what is beyond a budget made unusable or left out."""
        by_namespace: dict[str, list[Policy]] = {}
        for policy in self._limit_policies(policies.values()):
            by_namespace.setdefault(policy.namespace, []).append(policy)
        evaluated = {
            name: self._enforce_rule_budgets(listed) if name else listed
            for name, listed in by_namespace.items()
        }
        labelled = enforce_node_label_budget(evaluated, native_mode=native_mode)
        enforced = {policy.key: policy for listed in labelled for policy in listed}
        return {key: enforced[key] for key in policies}

    def _limit_policies(self, policies: Iterable[Policy]) -> Iterator[Policy]:
        """The policies, oldest first, but those in the mode Shadow at the end. Those beyond `MAX_ENFORCED` of
        their kind and namespace have no effect: they only select pods, so that decisions can name them.
        """
        ordered = sorted(
            policies, key=lambda policy: (policy.is_shadow, policy.created, policy.name, policy.key.kind)
        )
        totals = Counter((policy.key.kind, policy.namespace) for policy in ordered)
        counts: Counter[tuple[PolicyKind, str]] = Counter()
        for policy in ordered:
            kind, namespace = scope = policy.key.kind, policy.namespace
            counts[scope] += 1
            why = ""
            if kind != "TASPolicy" and namespace in self._excluded:
                why = f"pods of namespace {namespace} are not selected by policies"
            elif kind != "TASPolicy" and counts[scope] > MAX_ENFORCED:
                owner = f"namespace {namespace}" if namespace else "the cluster"
                kinds = f"{kind.removesuffix('y')}ies"
                why = (
                    f"{owner} has {totals[scope]} {kinds}; at most {MAX_ENFORCED} are enforced, "
                    "and older policies come first"
                )
            replace = msgspec.structs.replace
            left = replace(policy, avoid=(), prefer=(), node_labels=(), device_taints=(), not_enforced=why)
            yield left if why else policy

    def _enforce_rule_budgets(self, policies: Sequence[Policy]) -> list[Policy]:
        """The policies of one namespace, in order. A policy counts with all of its usable rules, or not at all."""
        rules = 0
        metrics: set[str] = set()
        queries: set[str] = set()
        enforced = []
        for policy in policies:
            usable = list(policy.usable_comparisons())
            rules_with = rules + len(usable)
            metrics_with = metrics | {rule.metric_request().key for rule in usable}
            queries_with = queries | {rule.metric_request().key for rule in usable if rule.query}
            for count, most, what in (
                (rules_with, self._rules, "rules"),
                (len(metrics_with), self._metrics, "metrics"),
                (len(queries_with), self._queries, "queries"),
            ):
                if count > most:
                    excess = f"{count} {what}; at most {most} (--{what}-per-namespace)"
                    enforced.append(_reject_policy(policy, f"{excess}, and older policies come first"))
                    break
            else:
                rules, metrics, queries = rules_with, metrics_with, queries_with
                enforced.append(policy)
        return enforced


def _reject_policy(policy: Policy, excess: str) -> Policy:
    """The policy with all rules unusable, so that its pods wait with a reason."""
    namespace = policy.namespace
    unusable = f"with it namespace {namespace} needs {excess}"
    remedy = f"delete policies or rules of namespace {namespace}, or let an administrator raise the limit"
    rejected = policy.with_comparisons(
        lambda comparison: (
            comparison
            if comparison.unusable
            else msgspec.structs.replace(comparison, unusable=unusable, remedy=remedy)
        )
    )
    return msgspec.structs.replace(rejected, over_budget=f"no rule is evaluated: {unusable}; {remedy}")
