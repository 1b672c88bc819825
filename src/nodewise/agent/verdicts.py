"""Results of an agent's plugin: verdicts and scores, with their evidence. Part of the public contract."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.metrics.series import States, Values

MAX_SCORE: Final = 10
"""kube-scheduler's MaxExtenderPriority (k8s.io/kube-scheduler v0.36 extender/v1); it does not clamp."""

COMPARISONS: Final[Mapping[str, np.ufunc]] = {
    "above": np.greater,
    "atLeast": np.greater_equal,
    "below": np.less,
    "atMost": np.less_equal,
    "equals": np.equal,
    "notEquals": np.not_equal,
    "LessThan": np.less,
    "GreaterThan": np.greater,
    "Equals": np.equal,
}
"""The operators of evidence: a rule is violated where `value operator target` is true. Comparisons are exact.

The last three are the names in a TASPolicy. Evidence keeps the name that the user wrote.
"""

Joined = Literal["any", "all"]
"""How many of its rules a node must violate to be rejected; `any`: all rules of any group (`Evidence.group`)."""


OWN_REASON: Final = "nodewise: "
"""The beginning of reasons that name neither a policy nor a device."""


class Reason(Protocol):
    """Why a node is rejected. A value; its texts are made when they are read.

    A reason that no eviction of pods can remove also has the attribute `is_unresolvable = True` (see
    `is_unresolvable`).
    """

    @property
    def is_failure(self) -> bool:
        """Whether the agent cannot decide, so that it rejects every node: not the nodes' fault."""
        ...

    def text(self) -> str:
        """The text that kube-scheduler shows on the pod. Use few distinct texts, because events group nodes by text."""
        ...

    def remedy(self) -> str:
        """How to resolve it, for `explain`; empty if values and targets make it clear."""
        ...


def is_unresolvable(reason: Reason) -> bool:
    """Whether the node stays rejected whichever of its pods are evicted: kube-scheduler's UnschedulableAndUnresolvable.

    This is the attribute `is_unresolvable` of the reason, False without it. kube-scheduler leaves such a node out of
    preemption, so the attribute is True only if `FilterPlugin.preempt` rejects the node for every set of victims. The
    priorities of pods do not matter: kube-scheduler chooses the victims by priority.
    """
    return bool(getattr(reason, "is_unresolvable", False))


class Evidence(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The measured values of one rule, by candidate."""

    metric: str
    operator: str
    target: int | None
    """Nano-units; None where the rule only ranks."""
    values: Values
    """Nano-units; meaningless where the state is not FRESH or STALE."""
    states: States
    """`ValueState` of each."""
    ages_s: NDArray[np.float64]
    """NaN where unknown."""
    rejects_missing: bool = False
    """Whether the rule rejects a node that has no fresh value."""
    policy: str = ""
    """The policy that has the rule, as texts name it: `placement policy web/cool`; empty for an agent without policies.
    """
    group: int = -1
    """Rules of one policy with the same number reject a node together, if it violates all of them. -1: alone."""
    weight: float = 1.0
    """Its weight in the mean of all rules that only rank."""


class DeferredEvidence(Sequence[Evidence]):
    """Evidence that is gathered when it is first read, which is after the response: kube-scheduler does not wait."""

    __slots__ = ("_evidence", "_gather")

    def __init__(self, gather: Callable[[], Sequence[Evidence]]) -> None:
        self._gather: Callable[[], Sequence[Evidence]] | None = gather
        self._evidence: Sequence[Evidence] = ()

    def _gathered(self) -> Sequence[Evidence]:
        if self._gather is not None:
            self._evidence, self._gather = self._gather(), None
        return self._evidence

    def __len__(self) -> int:
        return len(self._gathered())

    @overload
    def __getitem__(self, at: int) -> Evidence: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Evidence]: ...

    def __getitem__(self, at: int | slice) -> Evidence | Sequence[Evidence]:
        return self._gathered()[at]


class Details(Protocol):
    """Additional information about each candidate. Texts are made when they are read."""

    @property
    def nbytes(self) -> int:
        """The memory of these details."""
        ...

    def text(self, candidate: int) -> str:
        """What the pod gets on the node, or what is missing there; empty if there is nothing to add."""
        ...

    def distances(self) -> NDArray[np.float64]:
        """By candidate, how far a rejected one is from passing: from 0, nearly, to 1."""
        ...

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """The numbers of one candidate, as JSON takes them, NaN becomes null; empty if there are none."""
        ...


class PolicyRejections(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What one of a pod's policies rejects."""

    policy: str
    """As in the `Evidence` of its rules."""
    rejected: NDArray[np.bool_]
    """By candidate."""
    joined: Joined | None = None
    """As `Verdict.joined`, for the rules of this policy."""
    not_enforced: str = ""
    """Why the policy has no effect although it selects the pod; empty if it has."""
    would_reject: NDArray[np.bool_] | None = None
    """By candidate, what a policy that only observes would reject; None for other policies."""


class Verdict(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Which candidates an agent rejects, and why."""

    codes: NDArray[np.int16]
    """By candidate: 0 passes, k is rejected for `reasons[k - 1]`."""
    reasons: tuple[Reason, ...]
    evidence: Sequence[Evidence] = ()
    joined: Joined | None = None
    """How the verdict follows from the evidence, for counterfactuals in `explain`.

    None where more than the evidence decides. With `policies`, their own values count.
    """
    details: Details | None = None
    policies: tuple[PolicyRejections, ...] = ()
    """All policies that select the pod; a node is rejected if any of them rejects it. Empty for an agent without
    policies.
    """

    @property
    def only_observes(self) -> bool:
        """Whether all of the policies only observe, so that the response is that of an agent without a verdict."""
        return bool(self.policies) and all(policy.would_reject is not None for policy in self.policies)

    def unresolvable(self) -> NDArray[np.bool_]:
        """By candidate, whether it is rejected for a reason that no eviction removes."""
        by_reason = [*map(is_unresolvable, self.reasons)]
        if all(by_reason):  # the usual case, and faster
            return np.not_equal(self.codes, 0)
        mask: NDArray[np.bool_] = np.array([False, *by_reason])[self.codes]
        return mask


class Scores(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An agent's scores of the candidates."""

    points: NDArray[np.int64]
    """By candidate, whole numbers from 0 to `MAX_SCORE`."""
    evidence: Sequence[Evidence] = ()
    details: Details | None = None
    label: str = ""
    """Which of the agent's priorities this is; empty for an agent without named priorities. Set by the chain."""
    weight: float = 1.0
    """Its weight in the mean. Set by the chain."""
