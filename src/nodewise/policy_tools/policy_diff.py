"""What changes if some policies replace others: rejections and ranks of nodes by pod, and node labels. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import ObjectKey
from nodewise.base import cooperative_scheduling
from nodewise.policies import node_labels, placement_policy_parser
from nodewise.policies.placement_policy import LabelSelector, Policy, PolicyKey
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policies.policy_selection import NAME_LABEL, POLICY_LABEL, is_enforced_for
from nodewise.policies.state import POLICY_KINDS
from nodewise.policy_tools import policy_timeline
from nodewise.policy_tools.policy_timeline import POD_TYPE, Moment, Objects

_MODES: Final = ("Shadow", "Canary", "Enforce")  # in the order in which a policy is introduced


class NodeVerdict(NamedTuple):
    """What policies say about one node for a pod."""

    reason: str = ""
    """Why the node is rejected; empty if it is not."""
    rank: int | None = None
    """1 is the best; None if the node is rejected, or no policy ranks nodes."""

    def text(self) -> str:
        if self.reason:
            return f"rejected: {self.reason}"
        return "accepted" if self.rank is None else f"rank {self.rank}"

    def differs(self, other: "NodeVerdict") -> bool:
        """Another reason for the same rejection is no difference."""
        return (bool(self.reason), self.rank) != (bool(other.reason), other.rank)


class NodeVerdictChange(NamedTuple):
    """A node that changes for some pods."""

    node: str
    before: NodeVerdict
    after: NodeVerdict

    @property
    def changes_verdict(self) -> bool:
        """Whether the node is rejected before or after, and not only its rank changes."""
        return bool(self.before.reason) != bool(self.after.reason)


class SelectingPolicies(NamedTuple):
    """The policies that select a pod."""

    keys: tuple[PolicyKey, ...]
    enforced: tuple[PolicyKey, ...]
    """Those that have an effect on the pod: not in the mode Shadow, nor in the mode Canary if it is not part of it."""


class SelectedPodGroup(NamedTuple):
    """Pods with the same policies, before and after."""

    pods: Sequence[Any]
    before: SelectingPolicies
    after: SelectingPolicies
    nodes: Sequence[NodeVerdictChange] = ()
    """Those whose verdict changes come first, in the order of the nodes."""


class ModeChange(NamedTuple):
    """The mode of a policy before and after."""

    policy: PolicyKey
    before: str
    after: str


class ComparableModes(NamedTuple):
    """The policies of both sides with the modes in which they are compared."""

    old: Objects
    new: Objects
    changes: Sequence[ModeChange]
    notes: Sequence[str]
    """Which policies are compared as if they were enforced."""


def comparable_modes(old: Objects, new: Objects) -> ComparableModes:
    """Both sides with each policy as if it were enforced for all pods: the modes Shadow and Canary, and a guard that
    has stepped back, would hide what its rules do.

    A policy that exists on both sides keeps its modes if the new one has more effect, or another canary: then the
    effect is what changes.
    """
    parsed_old, parsed_new = parse_policies(old), parse_policies(new)
    changes, notes, kept = [], dict[str, None](), set()
    for key in parsed_old.keys() & parsed_new.keys():
        before, after = parsed_old[key], parsed_new[key]
        if (before.mode, before.canary) != (after.mode, after.canary):
            changes.append(ModeChange(key, _mode_text(before), _mode_text(after)))
            is_demoted = _MODES.index(before.mode) > _MODES.index(after.mode)
            kept |= set() if is_demoted else {key}
    sides = []
    for objects, parsed in ((old, parsed_old), (new, parsed_new)):
        changed = {key: policy for key, policy in parsed.items() if key not in kept}
        notes |= dict.fromkeys(policy_timeline.mode_notes(changed))
        sides.append(_as_enforced(objects, changed))
    return ComparableModes(sides[0], sides[1], sorted(changes), list(notes))


def parse_policies(objects: Objects) -> dict[PolicyKey, Policy]:
    """The policies of the kinds that have a mode."""
    parsed = {}
    for name, kind in POLICY_KINDS.items():
        if kind != "TASPolicy":
            for item in objects.get(name, {}).values():
                policy = placement_policy_parser.parse_policy(item, kind)
                parsed[policy.key] = policy
    return parsed


def _mode_text(policy: Policy) -> str:
    if policy.mode != "Canary" or policy.canary is None:
        return policy.mode
    return f"Canary ({'podSelector' if policy.canary.pods is not None else f'{policy.canary.percent} %'})"


def _as_enforced(objects: Objects, policies: Mapping[PolicyKey, Policy]) -> Objects:
    """The objects with some policies as if they were enforced. An invalid policy rejects all nodes in any mode."""
    enforced = {name: dict(items) for name, items in objects.items()}
    for name, kind in POLICY_KINDS.items():
        for key, item in objects.get(name, {}).items():
            policy = policies.get(PolicyKey(kind, *key))
            if policy and not policy.problems and (policy.mode != "Enforce" or policy.guard):
                spec = {**msgspec.json.decode(item.spec), "mode": "Enforce"}
                # no step-back in the status is one of generation 0
                metadata = msgspec.structs.replace(item.metadata, generation=0)
                raw = msgspec.Raw(msgspec.json.encode(spec))
                enforced[name][key] = msgspec.structs.replace(item, metadata=metadata, spec=raw)
    return enforced


def replace_policies(base: Objects, old: Objects, new: Objects) -> tuple[Objects, Objects]:
    """The objects with the old policies, and with the new ones in their place.

    A policy that exists keeps its status, which has the states of nodes under rules with `for` or `keepFor`.
    """
    others = {
        name: {
            key: item
            for key, item in objects.items()
            if name not in POLICY_KINDS or key not in old.get(name, {})
        }
        for name, objects in base.items()
    }
    names = {*others, *old, *new}
    with_old, with_new = (
        {
            name: {**others.get(name, {}), **_with_statuses(side.get(name, {}), base.get(name, {}))}
            for name in names
        }
        for side in (old, new)
    )
    return with_old, with_new


def _with_statuses(policies: Mapping[ObjectKey, Any], base: Mapping[ObjectKey, Any]) -> dict[ObjectKey, Any]:
    return {
        key: msgspec.structs.replace(item, status=base[key].status)
        if key in base and isinstance(item, PolicyObject)
        else item
        for key, item in policies.items()
    }


def group_pods(pods: Sequence[Any], before: Moment, after: Moment) -> list[SelectedPodGroup]:
    """The pods that any policy selects, by their policies: verdicts depend on nothing else."""
    groups: dict[tuple[SelectingPolicies, SelectingPolicies], list[Any]] = {}
    for pod in pods:
        policies = _policies_of(pod, before), _policies_of(pod, after)
        if any(side.keys for side in policies):
            groups.setdefault(policies, []).append(pod)
    return [SelectedPodGroup(own, *policies) for policies, own in groups.items()]


def _policies_of(pod: Any, moment: Moment) -> SelectingPolicies:
    states, selecting = moment.state.policies, moment.state.selection.select(pod)
    enforced = (key for key in selecting if key in states and is_enforced_for(states[key].policy, pod))
    return SelectingPolicies(selecting, tuple(enforced))


def compare(group: SelectedPodGroup, before: Moment, after: Moment) -> SelectedPodGroup:
    """The group with the nodes that change. Both moments have the same nodes."""
    pod = group.pods[0]
    old, new = _verdicts(pod, before), _verdicts(pod, after)
    changes = [
        NodeVerdictChange(name, old[name], new[name])
        for name in before.snapshot.nodes.known
        if old[name].differs(new[name])
    ]
    return group._replace(nodes=sorted(changes, key=lambda change: not change.changes_verdict))


def _verdicts(pod: Any, moment: Moment) -> dict[str, NodeVerdict]:
    """The verdict about each node."""
    reasons, ranks = moment.rejection_reasons(pod), moment.ranks(pod)
    return {name: NodeVerdict(reasons.get(name, ""), ranks.get(name)) for name in moment.snapshot.nodes.known}


def label_changes(before: Moment, after: Moment) -> Iterator[tuple[str, str, str, str]]:
    """Node, key, and the values before and after of each label of policies that changes; empty for no label."""
    old, new = _labels(before), _labels(after)
    for node in before.snapshot.nodes.known:
        own_before, own_after = old.get(node, {}), new.get(node, {})
        for key in sorted({*own_before, *own_after}):
            values = own_before.get(key, ""), own_after.get(key, "")
            if values[0] != values[1]:
                yield node, key, *values


def _labels(moment: Moment) -> Mapping[str, Mapping[str, str]]:
    states = moment.state.policies
    assignment = node_labels.combine_policy_labels(
        {key: (state.policy, state.labels) for key, state in states.items()}
    )
    return cooperative_scheduling.run_without_pauses(
        node_labels.desired_labels(assignment.columns, moment.snapshot.nodes, {})
    )


def example_pods(policies: Sequence[Policy]) -> list[Any]:
    """For each policy a pod that its selectors select, to compare policies without pods."""
    pods = []
    for policy in policies:
        labels, namespace = {POLICY_LABEL: policy.name}, policy.namespace
        if policy.selection is not None:
            labels = _matching_labels(policy.selection.pods)
            namespace = namespace or _matching_labels(policy.selection.namespaces).get(NAME_LABEL, "default")
        elif policy.key.kind != "TASPolicy":
            continue
        metadata = {"name": f"pods of {policy.key.path}", "namespace": namespace, "labels": labels}
        pods.append(msgspec.convert({"metadata": metadata}, POD_TYPE))
    return pods


def _matching_labels(selector: LabelSelector) -> dict[str, str]:
    """Labels that meet the positive requirements of a selector."""
    return {
        requirement.key: min(requirement.values, default="any")
        for requirement in selector.requirements
        if requirement.operator in ("In", "Exists")
    }
