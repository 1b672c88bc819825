"""Which nodes have the labels of each policy, and what happens to nodes that refuse them, in native mode. No I/O.

A policy is active once every node that existed when the policy was first evaluated has had its label. Nodes that join
later do not count, so that a cluster whose nodes are replaced all the time does not delay the policy: they are labelled
like those of an active policy.

A node can refuse every write, for example because its object is too large, or because of a webhook. If pods could then
be placed on it although the policy rejects it, new pods exclude it by its name (`status.excludedNodes`).
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from nodewise.policies import policy_selection, verdict_labels
from nodewise.policies.placement_policy_fields import VIOLATING
from nodewise.policies.verdict_labels import LabelledPolicy

MAX_EXCLUDED_NODES: Final = 10
"""Nodes that a policy excludes by name. If more nodes refuse its label, it waits for them."""
_MAX_CAUSE: Final = 300
"""Characters of a cause."""


class PendingLabel(NamedTuple):
    """A label that is still to be written."""

    current: str
    """Its value; empty without the label."""
    wanted: str
    """Empty if the label is to be removed."""


Pending = Mapping[str, Mapping[str, PendingLabel]]
"""By key and node, labels that are still to be written."""


class _Progress(NamedTuple):
    """The labels of one policy."""

    unlabelled: frozenset[str]
    """The nodes that have not had the label yet, without those that are excluded."""
    excluded: tuple[str, ...]
    since_s: float
    """The monotonic time of the step that found no unlabelled node and the same excluded ones."""


class LabellingProgress:
    """The progress of all policies. Policies without a meaningful verdict have none."""

    def __init__(self) -> None:
        self._by_uid: dict[str, _Progress] = {}
        self.refusals: Mapping[str, str] = {}
        """By uid of a policy, a message about nodes that refuse its label."""

    def begin(self) -> None:
        """Begin again, as a new leader."""
        self._by_uid, self.refusals = {}, {}

    def unlabelled_keys(self, policies: Iterable[LabelledPolicy]) -> frozenset[str]:
        """The keys of labels that some node has not had yet."""
        return frozenset(
            labelled.label
            for labelled in policies
            if (progress := self._by_uid.get(labelled.policy.uid)) is None or progress.unlabelled
        )

    def update(
        self,
        policies: Iterable[LabelledPolicy],
        pending: Pending | None,
        failures: Mapping[str, str],
        now_s: float,
    ) -> None:
        """After a step that left `pending` labels to be written: all labels of the nodes in `failures`, which refuse
        them, with the cause, and of other nodes those with `unlabelled_keys`. None if the step failed early.
        """
        evaluated = [
            labelled
            for labelled in policies
            if policy_selection.has_labels(labelled.policy) and not labelled.awaits_metrics
        ]
        if pending is None:
            uids = [labelled.policy.uid for labelled in evaluated]
            self._by_uid = {uid: self._by_uid[uid] for uid in uids if uid in self._by_uid}
            return
        by_uid: dict[str, _Progress] = {}
        refusals: dict[str, str] = {}
        for labelled in evaluated:
            uid = labelled.policy.uid
            labels = pending.get(labelled.label, {})
            refused = frozenset(labels.keys() & failures.keys())
            unsafe = frozenset(filter(lambda node: _admits_rejected_pods(labelled, labels[node]), refused))
            written_later = frozenset(labels.keys() - refused)
            by_uid[uid] = progress = _next_progress(self._by_uid.get(uid), written_later, unsafe, now_s)
            if refused:
                effect = _describe_effect(labelled, unsafe, progress.excluded)
                refusals[uid] = _describe_refusal(unsafe or refused, failures, effect)
        self._by_uid, self.refusals = by_uid, refusals

    def labelled_s(self, uid: str, now_s: float) -> float:
        """For how long no node lacks the label of a policy, except for excluded ones; negative if some node does."""
        progress = self._by_uid.get(uid)
        return -1.0 if progress is None or progress.unlabelled else now_s - progress.since_s

    def excluded_nodes(self, uid: str) -> tuple[str, ...]:
        """The names of the nodes that new pods of the policy must exclude, in order."""
        progress = self._by_uid.get(uid)
        return progress.excluded if progress else ()


def _next_progress(
    before: _Progress | None, written_later: frozenset[str], unsafe: frozenset[str], now_s: float
) -> _Progress:
    """The progress after a step: `written_later` are nodes that will get the label, `unsafe` those that refuse it."""
    excluded = tuple(sorted(unsafe)) if len(unsafe) <= MAX_EXCLUDED_NODES else ()
    unlabelled = written_later if before is None else written_later & before.unlabelled
    unlabelled |= unsafe - set(excluded)
    was_labelled = before is not None and not before.unlabelled and before.excluded == excluded
    return _Progress(unlabelled, excluded, before.since_s if before is not None and was_labelled else now_s)


def _admits_rejected_pods(labelled: LabelledPolicy, label: PendingLabel) -> bool:
    """Whether the current label admits pods of the policy to a node that the policy rejects."""
    if labelled.policy.only_prefers:
        return False
    lacks_ok = verdict_labels.rejects_missing(labelled.policy) and label.current != verdict_labels.OK
    return label.wanted == VIOLATING and not lacks_ok


def _describe_effect(labelled: LabelledPolicy, unsafe: frozenset[str], excluded: tuple[str, ...]) -> str:
    """What it means for pods of a policy that nodes refuse its label."""
    if excluded:
        return (
            "new pods of the policy exclude it by its name; pods that were created before may be placed there"
        )
    if unsafe:
        return f"at most {MAX_EXCLUDED_NODES} nodes can be excluded by name, so a new policy is not active until then"
    if labelled.policy.only_prefers:
        return "its label differs from the verdict, so pods may prefer it"
    return "its label differs from the verdict, and it takes no pod that the policy rejects"


def _describe_refusal(refused: frozenset[str], failures: Mapping[str, str], effect: str) -> str:
    """Which nodes refuse the label of a policy, and why."""
    names = sorted(refused)
    count = len(names) - MAX_EXCLUDED_NODES
    verb = f" and {count} more nodes refuse" if count > 0 else " refuses"
    cause = failures[names[0]][:_MAX_CAUSE]
    return (
        f"node {', '.join(names[:MAX_EXCLUDED_NODES])}{verb} the node label of the policy: {cause}; {effect}"
    )
