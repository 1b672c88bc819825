"""The reasons why a node is rejected. Their texts appear in pod events, so they are short and few.

They never contain a node's name or value, which are in the decision, for `explain`.
"""

from typing import ClassVar, Final

import msgspec

from nodewise.agent.verdicts import OWN_REASON
from nodewise.base import clock, quantity
from nodewise.base.errors import truncate
from nodewise.metrics.missing_values import NEVER_FETCHED, Cause
from nodewise.policies import rule_operators
from nodewise.policies.placement_policy import Comparison, HoldTimes, PolicyKey, PolicyKind

_MAX_LENGTH: Final = 512
"""Characters of the text of several rules, which the response contains once for every node."""


def comparison_text(comparison: Comparison, kind: PolicyKind) -> str:
    """A comparison as text: `cpu_temp above 80`, or `cpu_temp GreaterThan 80` in a TASPolicy."""
    operator = rule_operators.written_operator(comparison.operator, kind)
    text = f"{comparison.metric_request().name} {operator} {quantity.nano_to_text(comparison.target)}"
    if comparison.release is None:
        return text
    return f"{text} (release {quantity.nano_to_text(comparison.release)})"


def times_text(times: HoldTimes) -> str:
    """The end of the text of a rule: ` for 2m, kept for 10m`; empty without times."""
    for_text = f" for {clock.format_duration(times.for_s)}" if times.for_s else ""
    return f"{for_text}, kept for {clock.format_duration(times.keep_for_s)}" if times.keep_for_s else for_text


class _PolicyReason(msgspec.Struct, frozen=True):
    """No eviction of pods removes a rejection by a policy."""

    is_failure: ClassVar[bool] = False
    is_unresolvable: ClassVar[bool] = True

    def remedy(self) -> str:
        return ""


class RuleBroken(_PolicyReason, frozen=True):
    """A rule rejects the node; this is the first one of the policy that does."""

    policy: PolicyKey
    parts: tuple[Comparison, ...]
    times: HoldTimes = HoldTimes()

    def text(self) -> str:
        text = " and ".join(comparison_text(part, self.policy.kind) for part in self.parts)
        return self.policy.reason(truncate(text + times_text(self.times), _MAX_LENGTH))

    def remedy(self) -> str:
        return "a node passes if it keeps at least one of these rules" if len(self.parts) > 1 else ""


class NoValue(_PolicyReason, frozen=True):
    """The node has no fresh value, and the rule rejects such nodes."""

    policy: PolicyKey
    rule: Comparison
    cause: Cause | None = None
    """Why there is none, on at least one node. The text, for pod events, does not contain it."""

    def text(self) -> str:
        return self.policy.reason(f"no fresh value of {self.rule.metric_request().name}")

    def remedy(self) -> str:
        why = f": {self.cause}" if self.cause else ""
        return f"find out why there is no fresh {self.rule.metric_request().name}{why}"


class NeverFetched(_PolicyReason, frozen=True):
    """No source returned a usable value of any node, so it is unknown whether a node breaks the rule."""

    policy: PolicyKey
    metric: str
    cause: Cause = NEVER_FETCHED
    """Why no node has a value."""
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return self.policy.reason(f"metric {self.metric} was never fetched: {self.cause.event_text()}")

    def remedy(self) -> str:
        return f"no node has a value of {self.metric}: {self.cause}"


class RuleUnusable(_PolicyReason, frozen=True):
    """The rule cannot be evaluated."""

    policy: PolicyKey
    why: str
    other_remedy: str = ""
    """The remedy if the policy itself is correct; empty otherwise."""
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        more = f" ({self.other_remedy})" if self.other_remedy else ""
        return self.policy.reason(f"{self.why}{more}")

    def remedy(self) -> str:
        return self.other_remedy or "correct the policy; nodewise policy lint lists all problems"


class PolicyMissing(_PolicyReason, frozen=True):
    """The pod names a policy that does not exist in its namespace."""

    policy: str
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return f"{OWN_REASON}policy {self.policy} does not exist"

    def remedy(self) -> str:
        return (
            f"create TASPolicy {self.policy}, or correct the pod's label; the namespace is always the pod's"
        )


class LabelEmpty(_PolicyReason, frozen=True):
    """The pod has the label with an empty value."""

    label: str
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return f"{OWN_REASON}pod label {self.label} is empty, it must name a policy"

    def remedy(self) -> str:
        return f"set the label {self.label} to the name of a policy, or remove it"


class PoliciesNotReady(_PolicyReason, frozen=True):
    """The pod names a policy, and policies or nodes have not been read yet."""

    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return f"{OWN_REASON}starting, policies are not read yet"

    def remedy(self) -> str:
        return "wait; /readyz on the admin port names what is missing, the log's kube_lost why"
