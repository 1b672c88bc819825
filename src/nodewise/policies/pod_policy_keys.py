"""Which labels with verdicts a pod may require, in native mode: those of policies of its namespace, and of
ClusterPlacementPolicies that select it. No I/O.

Everyone who may create pods can name any key, and the uids of all policies stand on nodes. A key of another policy must
neither cause labels nor tell anything about the policy.
"""

from collections.abc import Generator, Iterable, Mapping

import msgspec

from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_selection import PodFields, PodMetadata, SelectionIndex
from nodewise.policies.selected_pods import PodLabelGroup
from nodewise.policies.unscheduled_pods import UnscheduledPod


def remove_foreign_keys(
    pods: Iterable[UnscheduledPod], policies: Mapping[str, PolicyKey], selection: SelectionIndex
) -> Generator[None, None, list[UnscheduledPod]]:
    """The pods without the keys of policies that are not theirs (`names_foreign_key`). Keys of no policy stay.

    `policies` are all policies by label key. Use the result for everything that others can see. A scheduling gate has
    to wait for all keys of a pod: its labels may have changed since a ClusterPlacementPolicy selected it. Yields
    between pods.
    """
    selected: dict[PodLabelGroup, frozenset[PolicyKey]] = {}
    result = []
    for pod in pods:
        yield
        foreign = frozenset(
            key
            for key in pod.keys & policies.keys()
            if not _is_policy_of_pod(policies[key], pod, selection, selected)
        )
        if foreign:
            pod = msgspec.structs.replace(  # noqa: PLW2901
                pod, keys=pod.keys - foreign, keys_with_ok=pod.keys_with_ok - foreign, names_foreign_key=True
            )
        result.append(pod)
    return result


def _is_policy_of_pod(
    policy: PolicyKey,
    pod: UnscheduledPod,
    selection: SelectionIndex,
    selected: dict[PodLabelGroup, frozenset[PolicyKey]],
) -> bool:
    if (
        policy.namespace or pod.group is None
    ):  # without known labels, no ClusterPlacementPolicy selects the pod
        return policy.namespace == pod.metadata.namespace
    if pod.group not in selected:
        # without its owners: a pod that the DaemonSet controller did not create has requirements, whoever it names
        fields = PodFields(PodMetadata(pod.group.namespace, pod.group.pod().metadata.labels))
        selected[pod.group] = frozenset(selection.select(fields))
    return policy in selected[pod.group]
