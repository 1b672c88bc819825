"""The budget of labels on one node, which the policies of all namespaces share. No I/O.

Every label of nodewise may be on the same node, and the API server refuses a Node that is too large: about 1.5 MiB
with `managedFields`, which contains each key again. The labels are those that policies name (`nodeLabels`,
`deschedule`, `labeling`) and, in native mode, those with the verdict of each policy. Everyone who may create
namespaces, policies or pods could otherwise fill the nodes for all others.

Namespaces share the bytes by max-min fairness for requests that cannot be divided: the namespace with the fewest bytes
gets its next label, until no label fits. Within a namespace, labels with verdicts come before others, and older
policies before newer ones. The verdicts of ClusterPlacementPolicies, which only administrators write, come before all
others. Source of the definition: Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Final, NamedTuple

import msgspec

from nodewise.policies import node_labels, policy_mode
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policies.taspolicy_parser import VIOLATING
from nodewise.policies.verdict_labels import label_key

MAX_NODE_LABEL_BYTES: Final = 16 * 1024
"""Keys and values of all labels of nodewise on a node."""
MAX_NAMESPACE_LABELS: Final = 64
"""Different labels that the policies of one namespace name."""
MAX_NAMESPACE_KEYS: Final = 10
"""Labels with verdicts for one namespace. Each policy that selects a pod adds more than 1 ms to the pod's creation."""
MAX_CLUSTER_KEYS: Final = 20
"""Labels with verdicts of ClusterPlacementPolicies."""
_MAX_NAMED: Final = 3
"""Labels that a message names."""

Policies = Sequence[Policy]


class _Request(NamedTuple):
    """A label that a policy may set on a node."""

    policy: Policy
    key: str
    size: int
    """Bytes of the key and the longest value."""


class _Requests(NamedTuple):
    """The labels that the policies of a namespace request, in the order in which they are admitted."""

    verdicts: Sequence[_Request]
    others: Sequence[_Request]

    def size(self) -> int:
        return sum(request.size for request in (*self.verdicts, *self.others))


_Admitted = set[tuple[PolicyKey, str]]


def enforce(by_namespace: Mapping[str, Policies], *, native_mode: bool) -> Iterator[list[Policy]]:
    """The policies of each namespace, in order, with `over_budget` and `no_verdict_label` for labels beyond the budget.

    Labels with verdicts are requested in native mode only.
    """
    requests = {
        namespace: _requests(policies, native_mode=native_mode)
        for namespace, policies in by_namespace.items()
    }
    admitted = _admit_fairly(requests)
    for namespace, policies in by_namespace.items():
        admitted_bytes = sum(
            request.size
            for request in chain(*requests[namespace])
            if (request.policy.key, request.key) in admitted
        )
        refuse = _Refusals(namespace, requests[namespace], admitted, admitted_bytes)
        yield [refuse.restrict(policy, native_mode=native_mode) for policy in policies]


def has_verdict_label(policy: Policy) -> bool:
    """Whether native mode labels nodes with the verdict of the policy, if the label is within the budget."""
    return bool(policy.avoid and policy.uid) and policy_mode.has_labels(policy)


def verdict_label_bytes(key: str) -> int:
    """The bytes of a label with a verdict."""
    return len(key) + len(VIOLATING)


def free_bytes(policies: Iterable[Policy]) -> int:
    """The bytes of a node that the admitted labels of these policies leave."""
    used = 0
    for policy in policies:
        used += sum(node_labels.requested_labels(policy).values())
        if has_verdict_label(policy) and not policy.no_verdict_label:
            used += verdict_label_bytes(label_key(policy.uid))
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
    for request in chain.from_iterable(zip_longest(*(queues[name] for name in sorted(queues)))):
        if request is None:
            continue
        key, namespaces = request
        has_turn = any(total[name] < _most_keys(name) for name in namespaces)
        if key not in admitted and has_turn and verdict_label_bytes(key) <= free:
            admitted.add(key)
            free -= verdict_label_bytes(key)
            total.update(namespaces)
    return frozenset(admitted)


def _most_keys(namespace: str) -> int:
    return MAX_NAMESPACE_KEYS if namespace else MAX_CLUSTER_KEYS


def _requests(policies: Policies, *, native_mode: bool) -> _Requests:
    """All requests of one namespace, also those beyond its own limits."""
    verdicts = []
    others: list[_Request] = []
    for policy in policies:
        if native_mode and has_verdict_label(policy):
            key = label_key(policy.uid)
            verdicts.append(_Request(policy, key, verdict_label_bytes(key)))
        for key, size in node_labels.requested_labels(policy).items():
            others.append(_Request(policy, key, size))
    verdicts.sort(key=lambda request: (request.policy.created, request.policy.key))
    return _Requests(verdicts, others)


def _admit_fairly(requests: Mapping[str, _Requests]) -> _Admitted:
    """The labels that fit, identified by policy and key."""
    admitted: _Admitted = set()
    free = MAX_NODE_LABEL_BYTES
    queues: dict[str, list[_Request]] = {}
    for namespace, (verdicts, others) in requests.items():
        if namespace:
            queues[namespace] = [*verdicts[:MAX_NAMESPACE_KEYS], *others[:MAX_NAMESPACE_LABELS]]
            continue
        for request in verdicts[:MAX_CLUSTER_KEYS]:
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


class _Refusals(NamedTuple):
    """What the policies of one namespace do not get, and why."""

    namespace: str
    requests: _Requests
    admitted: _Admitted
    admitted_bytes: int

    def restrict(self, policy: Policy, *, native_mode: bool) -> Policy:
        """The policy without the labels that are not admitted."""
        omitted = [
            key for key in node_labels.requested_labels(policy) if (policy.key, key) not in self.admitted
        ]
        if omitted:
            named = ", ".join(omitted[:_MAX_NAMED])
            more = f" and {len(omitted) - _MAX_NAMED} more" if len(omitted) > _MAX_NAMED else ""
            message = f"{self._describe_excess()}; not written for this policy: {named}{more}"
            left = policy.with_label_keys(lambda key: key not in omitted)
            policy = msgspec.structs.replace(left, over_budget=message)
        is_refused = (policy.key, label_key(policy.uid)) not in self.admitted
        if native_mode and has_verdict_label(policy) and is_refused:
            why = f"native mode does not enforce it: {self._describe_missing_verdict(policy)}"
            policy = msgspec.structs.replace(policy, no_verdict_label=why)
        return policy

    def _describe_excess(self) -> str:
        count = len(self.requests.others)
        excess = (
            f"{count} labels, at most {MAX_NAMESPACE_LABELS}"
            if self.namespace and count > MAX_NAMESPACE_LABELS
            else f"{self.requests.size()} bytes of labels, of which {self.admitted_bytes} fit into the"
            f" {MAX_NODE_LABEL_BYTES} bytes per node that namespaces share"
        )
        policies = (
            f"the policies of namespace {self.namespace}"
            if self.namespace
            else "the ClusterPlacementPolicies"
        )
        return f"{policies} request {excess}, and older policies come first"

    def _describe_missing_verdict(self, policy: Policy) -> str:
        scope = f"namespace {self.namespace}" if self.namespace else "the cluster"
        position = 1 + [request.policy.key for request in self.requests.verdicts].index(policy.key)
        limit = _most_keys(self.namespace)
        text = f"it is policy {position} of {scope} that avoids nodes"
        if position > limit:
            return f"{text}, at most {limit} have a node label, and older policies come first"
        return (
            f"{text}, and the {MAX_NODE_LABEL_BYTES} bytes per node that namespaces share equally have space for"
            f" {self.admitted_bytes} bytes of {scope}; older policies come first"
        )
