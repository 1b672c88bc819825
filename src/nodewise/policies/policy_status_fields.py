"""The status of a PlacementPolicy or ClusterPlacementPolicy as it is stored. No I/O."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from nodewise.base.errors import truncate
from nodewise.policies import policy_rejection_reasons
from nodewise.policies.placement_policy import AvoidRule, Comparison, PolicyKind
from nodewise.policies.policy_conditions import StatusWithConditions
from nodewise.policies.policy_objects import StepBack
from nodewise.policies.hysteresis import NodeStateGroup

MAX_EXPRESSION: Final = 256
"""Characters of the text of a rule, which may be a whole query."""


class RuleCounts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The counts of one rule."""

    rule: str
    """Its place in the spec: `avoid[1]`, or `avoid[1].all[0]` for a part of it."""
    expression: str = ""
    nodes: int | None = None
    """How many nodes meet it; None for a preference."""
    missing: int | None = None
    """How many nodes have no fresh value; None for a rule with several parts."""
    suspended: bool = False
    flaps_per_hour: int = 0
    """How often it rejected a node again soon after the node passed."""
    node_states: tuple[NodeStateGroup, ...] | None = None
    """None for a rule without `for`, `release` and `keepFor`."""
    unlisted_nodes: int = 0
    """Rejected nodes that are not in `node_states`."""

    def rejected_nodes(self) -> frozenset[str]:
        """The nodes in `node_states` that the rule rejects."""
        groups = (group for group in self.node_states or () if group.state != "Pending")
        return frozenset(node for group in groups for node in group.nodes)


class PlacementPolicyStatus(StatusWithConditions, frozen=True, omit_defaults=True):
    """The fields of a status that are written, and read back."""

    mode: str = ""
    selected_pods: int | None = None
    """None: not counted yet, not enforced, or a policy that only labels nodes."""
    rejected_nodes: int | None = None
    """None: the policy rejects no nodes."""
    rules: tuple[RuleCounts, ...] = ()
    stepped_back: StepBack | None = None

    def has_same_conditions(self, other: Any) -> bool:
        """Whether at most counts differ. A first count is more than that, and so are verdicts that depend on states."""
        is_first_count = (self.selected_pods is None) != (other.selected_pods is None)
        return (
            super().has_same_conditions(other)
            and (self.mode, self.stepped_back) == (other.mode, other.stepped_back)
            and not is_first_count
            and _rejections(self.rules) == _rejections(other.rules)
        )


def _rejections(rules: Iterable[RuleCounts]) -> list[tuple[str, str, frozenset[str]]]:
    """What rules with states reject, which takes effect only when it is written."""
    return [
        (rule.rule, rule.expression, rule.rejected_nodes()) for rule in rules if rule.node_states is not None
    ]


def rule_expression(rule: AvoidRule, kind: PolicyKind) -> str:
    """The text of a rule of `avoid`."""
    text = " and ".join(_comparison_text(part, kind) for part in rule.parts)
    return truncate(text + policy_rejection_reasons.times_text(rule.times), MAX_EXPRESSION)


def comparison_expression(comparison: Comparison, kind: PolicyKind) -> str:
    """The text of a comparison."""
    return truncate(_comparison_text(comparison, kind), MAX_EXPRESSION)


def _comparison_text(comparison: Comparison, kind: PolicyKind) -> str:
    """A comparison as its policy contains it, with its query: those who read the status can read the policy."""
    text = policy_rejection_reasons.comparison_text(comparison, kind)
    return text.replace(comparison.metric, comparison.query, 1) if comparison.query else text
