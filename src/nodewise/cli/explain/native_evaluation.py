"""What the policies of a pod say about nodes now, by the evaluation of a replica, beside the labels of native mode.

kube-scheduler compares labels, which the leader writes after its evaluation. Both are shown where they differ: the
leader writes within a limit, and no labels while nothing leads.
"""

from collections.abc import Iterable
from typing import NamedTuple

from nodewise.agent import PolicyRejections
from nodewise.cli.explain.pod_state import NativeState, RequiredLabel
from nodewise.cli.explain.replica_queries import ReplicaResponse
from nodewise.engine import scheduling_attempt_explanation
from nodewise.engine.scheduling_attempt_explanation import Attempt, Explanation
from nodewise.policies.verdict_labels import VerdictRequirement


class Evaluation(NamedTuple):
    """The evaluation of the pod's policies by one replica."""

    replica: str
    leads: bool
    """Whether this replica writes the labels."""
    nodes: int
    """The number of nodes, also of those that are left out."""
    passing: int
    """How many of them pass."""
    explanation: Explanation
    """Without scores: kube-scheduler compares classes of preference by labels, and knows no scores of nodewise."""
    shards: int = 1
    """The number of shards of all replicas."""
    own_shards: tuple[int, ...] = ()
    """With shards, those of this replica. It writes the labels of their nodes, and has evaluated no others."""

    @property
    def at(self) -> float:
        """Seconds since 1970."""
        return self.explanation.attempt.main_decision.at

    @property
    def left_out(self) -> int:
        """Nodes beyond the limit of a response, which are further from passing than the others, or pass."""
        return self.nodes - len(self.explanation.findings)

    @property
    def has_policies(self) -> bool:
        """Whether a policy selects the pod, or the policies are not known yet."""
        return bool(self.explanation.attempt.main_decision.verdicts or self.explanation.ranking_only)

    @property
    def rejections(self) -> dict[str, PolicyRejections]:
        """What each policy that may reject nodes rejects, by its name; masks are by candidate."""
        verdicts = (verdict for _, verdict in self.explanation.attempt.main_decision.verdicts)
        return {policy.policy: policy for verdict in verdicts for policy in verdict.policies}

    @property
    def observers(self) -> dict[str, list[str]]:
        """By node, the policies that only observe the pod and would reject the node."""
        by_node: dict[str, list[str]] = {}
        for policy in self.explanation.policies:
            for node in policy.would_reject or ():
                by_node.setdefault(node, []).append(policy.policy)
        return by_node

    @property
    def only_ranking(self) -> list[str]:
        """Policies that only have preferences."""
        scored = self.explanation.attempt.scored
        evidence = [rule for _, scores in scored.scores for rule in scores.evidence] if scored else []
        avoiding = {rule.policy for rule in evidence if rule.target is not None}
        return [policy for policy in self.explanation.ranking_only if policy not in avoiding]


def choose_evaluation(responses: Iterable[ReplicaResponse]) -> Evaluation | None:
    """The evaluation of the leader, else the newest one; None if no replica has evaluated the pod.

    With shards, that of a replica with the most shards.
    """
    newest: Evaluation | None = None
    for response in responses:
        if response.evaluation is None or not response.decisions:
            continue
        page, (filtered, scored) = response.evaluation, response.decisions
        explanation = scheduling_attempt_explanation.explain(Attempt(filtered, scored))
        findings = tuple(finding._replace(score=None, parts=()) for finding in explanation.findings)
        evaluation = Evaluation(
            response.replica,
            page.leads,
            page.nodes,
            page.passing,
            explanation._replace(findings=findings),
            page.shards,
            tuple(page.own_shards),
        )
        if newest is None or _preference(evaluation) > _preference(newest):
            newest = evaluation
    return newest


def _preference(evaluation: Evaluation) -> tuple[int, bool, float]:
    return len(evaluation.own_shards), evaluation.leads, evaluation.at


class LabelDifference(NamedTuple):
    """Nodes whose label of a policy differs from its verdict now. `-o json` prints it under these names."""

    policy: str
    label: str
    nodes: tuple[str, ...]
    cause: str
    """Why they may differ."""


_LAG = "labels follow an evaluation within the limit of writes of the leader"


def label_differences(native: NativeState, evaluation: Evaluation) -> list[LabelDifference]:
    """The differences by policy. Labels that the pod only prefers, and those of deleted policies, are not compared."""
    decision, rejections = evaluation.explanation.attempt.main_decision, evaluation.rejections
    if any(not verdict.policies for _, verdict in decision.verdicts):  # the policies are not known yet
        return []
    names = decision.names.tolist()
    known = set(names)
    differences = []
    for place, required in enumerate(native.requirements):
        if required.preferred or not required.policy:
            continue
        rejection = rejections.get(required.policy)
        rejected = (
            set() if rejection is None else {names[at] for at in rejection.rejected.nonzero()[0].tolist()}
        )
        requirement = VerdictRequirement(required.label, required.needs_ok, required.preferred)
        nodes = tuple(
            labelled.node
            for labelled in native.nodes
            if labelled.node in known
            and requirement.accepts(labelled.labels[place]) == (labelled.node in rejected)
        )
        if nodes:
            cause = _cause_of_difference(native, required, selects=rejection is not None)
            differences.append(LabelDifference(required.policy, required.label, nodes, cause))
    return differences


def _cause_of_difference(native: NativeState, required: RequiredLabel, *, selects: bool) -> str:
    if native.controller is not None and not native.controller.leader:
        return "no replica leads, so labels keep their last values"
    if not selects:
        return "the policy does not select the pod any more, or rejects no node: create the pod again"
    return _LAG if required.active else "the policy is not active yet"
