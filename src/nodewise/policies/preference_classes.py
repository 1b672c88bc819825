"""Node labels with classes of preference, for native mode: a stock kube-scheduler ranks nodes by them. No I/O.

A policy with `prefer` divides the nodes by rank into five classes, of which 1 is the best. The admission policies of
`deploy/native.yaml` add a preferred term for each of the classes 1 to 4 to the pods that the policy selects.

Nodes with similar values have equal ranks, so that kube-scheduler spreads pods among them by their requests. Values are
similar that differ by less than a tenth of the distance from the tenth to the ninetieth percentile.

Ranks change with every value, and each change of a label is a write. So a node changes its class only if its place is
half a class beyond its own class, whether or not similar values count as equal. At most a tenth of the nodes change per
period, and all policies together change 60 classes a minute on average. Unused changes accumulate up to a tenth of the
nodes, so that a real change of the load takes effect at once. The nodes whose place differs most come first, so that
noise does not delay them for long. After an edit of the preferences only the limit per period applies, until the nodes
have their new classes.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.policies import rule_evaluation, rule_operators
from nodewise.policies.node_labels import LabelColumn, Labels
from nodewise.policies.placement_policy import Preference
from nodewise.policies.rule_evaluation import Ranks
from nodewise.policies.state import EvaluatedPreference, PolicyState
from nodewise.policies.verdict_labels import preference_label_key

CLASSES: Final = 5
HYSTERESIS: Final = 0.5
"""How far the place of a node must be beyond its class, in classes."""
SIMILAR_SHARE: Final = 0.1
"""The difference of similar values, as a share of the distance from the tenth to the ninetieth percentile."""
CHANGED_SHARE: Final = 0.1
"""The largest share of the nodes whose class a policy changes per period; at least one node."""
CHANGES_PER_S: Final = 1.0
"""Changes of classes by all policies on average; one per period if that is more."""
HELD_S: Final = 600.0
"""The time for which a node without values keeps its class."""

Floats = NDArray[np.float64]
Classes = NDArray[np.int16]
"""By node number, 1 to 5; 0 for no class."""

_T = TypeVar("_T")
CLASS_VALUES: Final = tuple(str(number + 1) for number in range(CLASSES))
"""The values of the labels, the best first."""
_NODES_PER_YIELD: Final = 100


class Places(NamedTuple):
    """The place of each node, by node number: from 0 for the best node to less than `CLASSES`, so that class 1 has the
    places below 1. NaN for a node without a value.
    """

    first: Floats
    """If similar values are equal. Equal nodes have equal places."""
    last: Floats
    """If they differ: at least the first."""


class RankedPolicy(NamedTuple):
    """A policy, and the places of the nodes by its preferences."""

    key: str
    """Of its label."""
    namespaces: frozenset[str]
    """Its namespace; none for a ClusterPlacementPolicy."""
    places: Places
    prefer: tuple[Preference, ...] = ()


def rank_policy(state: PolicyState, size: int) -> RankedPolicy:
    """The places by the values now; `size` is the number of nodes, with the unknown node.

    No node has a place before the first values, and while a preference has lost the values of most nodes at once.
    """
    places, preferences = np.full(size, np.nan), state.preferences
    first = places
    if preferences and not any(each.evaluation.rule in state.suspended for each in preferences):
        weights = [each.weight for each in preferences]
        places = _places([each.ranks for each in preferences], weights)
        similar = [_similar_ranks(each) for each in preferences]
        first = np.minimum(places, _places(similar, weights))
    policy = state.policy
    return RankedPolicy(
        preference_label_key(policy.uid), policy.namespaces, Places(first, places), policy.prefer
    )


def _similar_ranks(preference: EvaluatedPreference) -> Ranks:
    evaluation = preference.evaluation
    direction = rule_operators.sort_direction(evaluation.rule.operator)
    values = evaluation.inputs.column.values.astype(np.float64)
    return merge_similar(preference.ranks, values * direction)


def merge_similar(ranks: Ranks, values: Floats) -> Ranks:
    """The dense ranks of nodes if similar values are equal; small values are better. -1 for a node without a rank."""
    measured = np.flatnonzero(ranks >= 0)
    if not len(measured):
        return ranks
    low = np.quantile(values[measured], 0.1, method="lower")
    step = SIMILAR_SHARE * (np.quantile(values[measured], 0.9, method="higher") - low)
    if not 0 < step < math.inf:
        return ranks
    merged = ranks.copy()
    groups = np.floor((values[measured] - low) / step)
    merged[measured] = np.unique(groups, return_inverse=True)[1]
    return merged


def _places(ranks: Sequence[Ranks], weights: Sequence[int]) -> Floats:
    """The places by the weighted mean of dense ranks."""
    combined = rule_evaluation.combine_ranks(ranks, weights)
    better, count = rule_evaluation.count_better(combined)
    return np.where(combined >= 0, better * (CLASSES / max(count, 1)), np.nan)


def change_classes(places: Places, before: Classes, most: int) -> tuple[Classes, int]:
    """The classes after `before`, and how many nodes have changed, at most `most`. A node without a place keeps its
    class, and a node without a class gets one, which does not count.
    """
    measured = ~np.isnan(places.first)
    own = np.where(measured, np.floor(np.nan_to_num(places.first)) + 1, 0).astype(np.int16)
    classes = np.where(before == 0, own, before)
    worse, better = places.first - (before + HYSTERESIS), before - 1 - HYSTERESIS - places.last
    with_class = measured & (before > 0)
    down, up = np.flatnonzero(with_class & (worse >= 0)), np.flatnonzero(with_class & (better > 0))
    # The farthest first, and in turns, so that noise does not empty the best or the worst classes. A node that gets
    # worse precedes: pods are still placed there.
    down, up = down[np.argsort(-worse[down], kind="stable")], up[np.argsort(-better[up], kind="stable")]
    turns = np.concatenate([2 * np.arange(len(down)), 2 * np.arange(len(up)) + 1])
    moving = np.concatenate([down, up])[np.argsort(turns, kind="stable")[:most]]
    classes[moving] = own[moving]
    return classes, len(moving)


class _PolicyClasses(NamedTuple):
    nodes: NodeIndex
    classes: Classes
    missing_since_s: Floats
    """The monotonic time since which a node has no value; infinity if it has one."""
    period_began_s: float = -math.inf
    changes: int = 0
    """Since then."""
    prefer: tuple[Preference, ...] | None = None
    is_edited: bool = False
    """Whether some classes are those of earlier preferences."""


class PreferenceClasses:
    """The classes of all policies. Begin anew as the leader: classes are then those of the labels on the nodes."""

    def __init__(self) -> None:
        self._by_key: dict[str, _PolicyClasses] = {}
        self._changes_left = 0.0
        self._at_s = math.inf
        self._turn = 0

    def columns(
        self,
        policies: Iterable[RankedPolicy],
        nodes: NodeIndex,
        current_labels: Callable[[str], Labels],
        now_s: float,
        period_s: float,
        share: float = 1.0,
    ) -> Generator[None, None, dict[str, LabelColumn]]:
        """By key, the labels of the policies. Yields between nodes.

        `current_labels` are those of a node, by its name. `now_s` is monotonic. With shards, `share` is that of these
        nodes among all nodes.
        """
        earned = max(0.0, now_s - self._at_s) * max(CHANGES_PER_S, 1 / period_s) * share
        most_saved = max(CHANGED_SHARE * len(nodes), 1.0)
        self._changes_left, self._at_s = min(self._changes_left + earned, most_saved), now_s
        by_namespace: dict[str, list[RankedPolicy]] = {"": []}
        for policy in policies:
            by_namespace.setdefault(min(policy.namespaces, default=""), []).append(policy)
            yield
        self._turn += 1
        # those of ClusterPlacementPolicies come first, and namespaces share the rest
        order = ["", *_rotate(sorted(by_namespace.keys() - {""}), self._turn)]
        by_key: dict[str, _PolicyClasses] = {}
        columns: dict[str, LabelColumn] = {}
        for number, namespace in enumerate(order):
            left = math.ceil(self._changes_left / (len(order) - number)) if namespace else most_saved
            for key, namespaces, places, prefer in _rotate(by_namespace[namespace], self._turn):
                known = yield from self._known_classes(key, nodes, current_labels)
                if now_s - known.period_began_s >= period_s:
                    known = known._replace(period_began_s=now_s, changes=0)
                if prefer != known.prefer:
                    known = known._replace(prefer=prefer, is_edited=known.prefer is not None)
                in_period = int(most_saved) - known.changes
                most = in_period if known.is_edited else min(in_period, int(left), int(self._changes_left))
                by_key[key] = updated = _update_classes(known, places, max(0, most), now_s)
                changes = updated.changes - known.changes
                if not known.is_edited:
                    left -= changes
                    self._changes_left -= changes
                elif changes < most and not np.isnan(places.first).all():
                    by_key[key] = updated._replace(is_edited=False)
                hold = np.zeros(len(nodes) + 1, bool)
                columns[key] = LabelColumn(key, CLASS_VALUES, updated.classes, hold, namespaces=namespaces)
                yield
        self._by_key = by_key
        return columns

    def _known_classes(
        self, key: str, nodes: NodeIndex, current_labels: Callable[[str], Labels]
    ) -> Generator[None, None, _PolicyClasses]:
        """The classes by the numbers of `nodes`; a node that is new to this replica has that of its label."""
        known = self._by_key.get(key)
        if known is not None and known.nodes is nodes:
            return known
        classes, missing_since_s = np.zeros(len(nodes) + 1, np.int16), np.full(len(nodes) + 1, math.inf)
        if known is not None:
            earlier = known.nodes.numbers(nodes.known)
            classes[:-1], missing_since_s[:-1] = known.classes[earlier], known.missing_since_s[earlier]
        for number, name in enumerate(nodes.known):
            if number % _NODES_PER_YIELD == 0:
                yield
            if known is None or name not in known.nodes:
                value = current_labels(name).get(key, "")
                classes[number] = CLASS_VALUES.index(value) + 1 if value in CLASS_VALUES else 0
        return _PolicyClasses(nodes, classes, missing_since_s, *(known[3:] if known is not None else ()))


def _update_classes(known: _PolicyClasses, places: Places, most: int, now_s: float) -> _PolicyClasses:
    """The classes by the places now, of which at most `most` have changed."""
    classes, changes = change_classes(places, known.classes, most)
    missing_since_s = np.where(np.isnan(places.first), np.minimum(known.missing_since_s, now_s), math.inf)
    classes[now_s - missing_since_s >= HELD_S] = 0
    classes[-1] = 0  # the unknown node
    if np.array_equal(classes, known.classes):
        classes = known.classes
    return known._replace(classes=classes, missing_since_s=missing_since_s, changes=known.changes + changes)


def _rotate(items: Sequence[_T], turn: int) -> list[_T]:
    first = turn % max(len(items), 1)
    return [*items[first:], *items[:first]]
