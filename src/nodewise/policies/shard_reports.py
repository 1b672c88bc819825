"""What the replicas of a sharded controller tell each other about the policies, in annotations of their Leases. No I/O.

Each replica evaluates the policies for the nodes of its own shards. The leader adds up the reports of all shards for
the status of policies, their guards, and the events of waiting pods. While a shard has no report, the leader changes
none of these: it would count too few nodes.

A report is bounded, because a Lease is written every second: it has no node names except those that a status lists, and
counts the nodes by the set of reasons for which policies reject them.
"""

import base64
import math
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import ClassVar, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Reason
from nodewise.agent.controller_interface import NodeOwnership
from nodewise.base.errors import UNREADABLE
from nodewise.policies import hysteresis
from nodewise.policies.hysteresis import NodeStateGroup
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_status_fields import RuleCounts
from nodewise.policies.rule_evaluation import AvoidVerdict
from nodewise.policies.state import PolicyState

ANNOTATION: Final = "nodewise.io/shard-report"
"""The annotation of the Lease of one of a replica's shards with its report, compressed JSON in Base64."""
_MAX_BYTES: Final = 160 * 1024
"""All annotations of an object may have 256 KiB."""
_MAX_JSON: Final = 32 * 1024 * 1024
_MOST_POLICIES: Final = (50, 5)
"""Policies of a namespace in a report that would be too long with all."""
_MAX_PATTERNS: Final = 256
"""Sets of reasons that are counted separately. Of nodes with rarer ones, only the number that each policy rejects is
known, and several policies count as rejecting the same ones."""


class PolicyShardReport(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One policy on the nodes of a replica."""

    generation: int = 0
    awaits_metrics: bool = False
    messages: dict[str, str] = {}
    """By type of condition that depends on nodes, why it is not good."""
    unavailability: str = ""
    """The reason of the condition MetricsAvailable."""
    missing_metrics: tuple[str, ...] = ()
    violating_nodes: int = 0
    rejected_nodes: int = 0
    rules: tuple[RuleCounts, ...] = ()
    labelled_s: float = -1.0
    """For how long all nodes have had the label of native mode; negative if some node lacks it."""
    excluded_nodes: tuple[str, ...] = ()
    refusal: str = ""
    """Which nodes refuse the label, and why."""


class ReportedReason(msgspec.Struct, frozen=True, rename="camel", array_like=True):
    """A reason of another replica for rejecting nodes (`agent.Reason`)."""

    uid: str
    """Of the policy."""
    reason: str
    is_failure: bool = False
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return ""


class Pattern(msgspec.Struct, frozen=True, array_like=True):
    """Nodes that policies reject for the same reasons."""

    count: int
    reasons: tuple[int, ...]
    """Indexes of `ShardReport.reasons`."""


class ShardReport(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The report of a replica."""

    shards: tuple[int, ...] = ()
    nodes: int = 0
    metrics: dict[str, bool] = {}
    """By `MetricRequest.key`, whether one of the nodes has a fresh value. Metrics without a response are left out."""
    policies: dict[str, PolicyShardReport] = {}
    """By uid."""
    reasons: tuple[ReportedReason, ...] = ()
    patterns: tuple[Pattern, ...] = ()


def encode(report: ShardReport, namespaces: Mapping[str, str] = MappingProxyType({})) -> str:
    """The report as an annotation. If it is too long, it lists no nodes, then no rules, and then only some policies of
    each namespace: who creates many policies does not stop those of others. `namespaces` are those of policies by uid.
    """
    shorter: Sequence[tuple[Callable[[RuleCounts], RuleCounts | None], float]] = (
        (lambda rule: rule, math.inf),
        (
            lambda rule: msgspec.structs.replace(
                rule,
                node_states=None if rule.node_states is None else (),
                unlisted_nodes=rule.unlisted_nodes + len(rule.rejected_nodes()),
            ),
            math.inf,
        ),
        *((lambda _: None, most) for most in (math.inf, *_MOST_POLICIES)),
    )
    for shorten, most in shorter:
        counts: Counter[str] = Counter()
        policies: dict[str, PolicyShardReport] = {}
        for uid, policy in report.policies.items():
            namespace = namespaces.get(uid, "")
            counts[namespace] += 1
            if counts[namespace] <= most:
                rules = tuple(filter(None, map(shorten, policy.rules)))
                policies[uid] = msgspec.structs.replace(policy, rules=rules)
        reasons = tuple(
            reason if reason.uid in policies else ReportedReason("", "") for reason in report.reasons
        )
        data = msgspec.json.encode(msgspec.structs.replace(report, policies=policies, reasons=reasons))
        text = base64.b64encode(zlib.compress(data)).decode()
        if len(text) <= _MAX_BYTES:
            return text
    return ""


def decode(text: str) -> ShardReport | None:
    """The report in an annotation; None if there is none, or if it cannot be read."""
    if not text:
        return None
    try:
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(base64.b64decode(text), _MAX_JSON)
        return msgspec.json.decode(data, type=ShardReport) if decompressor.eof else None
    except (*UNREADABLE, zlib.error):
        return None


def add(
    own: int, reports: Sequence[PolicyShardReport], count: Literal["rejected_nodes", "violating_nodes"]
) -> int:
    """A count of this replica and those in the reports of a policy."""
    return own + sum(int(getattr(report, count)) for report in reports)


def add_rule_counts(own: Sequence[RuleCounts], reports: Sequence[PolicyShardReport]) -> list[RuleCounts]:
    """The counts of rules on all nodes. The status lists at most `hysteresis.MAX_NODES` nodes of the whole policy."""
    if not reports:
        return list(own)
    elsewhere = [*chain.from_iterable(report.rules for report in reports)]
    space = hysteresis.MAX_NODES
    added = []
    for counts in own:
        whole = _add_counts([counts, *(other for other in elsewhere if other.rule == counts.rule)], space)
        space -= sum(len(group.nodes) for group in whole.node_states or ())
        added.append(whole)
    return added


def _add_counts(parts: Sequence[RuleCounts], space: int) -> RuleCounts:
    """The counts of one rule on the nodes of all parts, with the states of at most so many nodes."""
    nodes, missing = (
        [count for part in parts if (count := getattr(part, name)) is not None]
        for name in ("nodes", "missing")
    )
    groups = [part.node_states for part in parts if part.node_states is not None]
    states, unlisted = _merge_groups([*chain.from_iterable(groups)], space)
    return msgspec.structs.replace(
        parts[0],
        nodes=sum(nodes) if nodes else None,
        missing=sum(missing) if missing else None,
        suspended=any(part.suspended for part in parts),
        flaps_per_hour=sum(part.flaps_per_hour for part in parts),
        node_states=states if groups else None,
        unlisted_nodes=unlisted + sum(part.unlisted_nodes for part in parts),
    )


def _merge_groups(groups: Sequence[NodeStateGroup], space: int) -> tuple[tuple[NodeStateGroup, ...], int]:
    """Groups with different states or times and at most so many nodes, and the number of rejected nodes beyond that."""
    merged: dict[tuple[str, str], NodeStateGroup] = {}
    unlisted = 0
    for group in sorted(groups, key=lambda group: (group.state == "Pending", group.since, group.nodes)):
        nodes = group.nodes[:space]
        space -= len(nodes)
        unlisted += 0 if group.state == "Pending" else len(group.nodes) - len(nodes)
        before = merged.get((group.state, group.since))
        if nodes:
            listed = (*(before.nodes if before else ()), *nodes)
            merged[group.state, group.since] = msgspec.structs.replace(group, nodes=listed)
    return tuple(merged.values()), unlisted


class ShardReports:
    """The reports of the other replicas."""

    def __init__(self, ownership: NodeOwnership) -> None:
        self._ownership = ownership
        self._decoded: dict[str, ShardReport | None] = {}
        """By annotation."""
        self.at = math.inf
        """The time of the snapshot that the reports complete, in seconds since 1970."""

    def others(self) -> list[ShardReport] | None:
        """The reports of all other shards; None while one of them has none, or the snapshot lacks nodes of own ones."""
        if not self._ownership.is_whole(self.at):
            return None
        own = self._ownership.own_shards()
        live = self._ownership.live_annotations()
        texts = {live[shard].get(ANNOTATION, "") for shard in live.keys() - own}
        self._decoded = {
            text: self._decoded[text] if text in self._decoded else decode(text) for text in texts
        }
        reports = list(filter(None, self._decoded.values()))
        covered = [*own, *chain.from_iterable(report.shards for report in reports)]
        # two replicas report on a shard that has just been handed over
        return reports if sorted(covered) == list(range(self._ownership.shards)) else None

    def has_values(self, metric: str) -> bool | None:
        """Whether a node of another shard has a fresh value of a metric; None if that is not known yet."""
        reports = self.others()
        if reports is None:
            return None
        values = [report.metrics.get(metric) for report in reports]
        if any(values):
            return True
        return None if None in values else False


def count_rejections(
    states: Iterable[PolicyState],
) -> Generator[None, None, tuple[tuple[ReportedReason, ...], tuple[Pattern, ...]]]:
    """The reasons of policies, and how many nodes have which of them, without policies that reject every node for one
    reason: there may be thousands. Yields between policies.
    """
    reasons: list[ReportedReason] = []
    patterns: list[tuple[int, ...]] = [()]
    """By number in `numbers`, the reasons."""
    numbers: NDArray[np.int64] | None = None
    """By node."""
    for state in states:
        yield
        if state.verdict is None or not state.policy.uid or not (own := state.verdict.codes[:-1]).any():
            continue
        size = len(state.verdict.reasons) + 1
        indexes: dict[int, tuple[int, ...]] = {0: ()}
        for code in np.unique(own[own > 0]).tolist():
            reason = state.verdict.reasons[code - 1]
            indexes[code] = (len(reasons),)
            reasons.append(ReportedReason(state.policy.uid, reason.text(), reason.is_failure))
        if len(indexes) == 2 and own.all():  # noqa: PLR2004 - one reason for every node, as of an unusable policy
            continue
        before = np.zeros(len(own), np.int64) if numbers is None else numbers
        combined, numbers = np.unique(before * size + own, return_inverse=True)
        patterns = [patterns[number // size] + indexes[number % size] for number in combined.tolist()]
    if numbers is None:
        return tuple(reasons), ()
    counted = list(map(Pattern, np.bincount(numbers, minlength=len(patterns)).tolist(), patterns))
    counted.sort(key=lambda pattern: (-pattern.count, pattern.reasons))
    return tuple(reasons), tuple(counted[:_MAX_PATTERNS])


def extend_states(
    states: Mapping[PolicyKey, PolicyState], reports: Sequence[ShardReport]
) -> Generator[None, None, dict[PolicyKey, PolicyState]]:
    """The states with verdicts over the nodes of all shards: first those of this replica, then those in the reports, in
    any order. Other fields stay as they are. Yields between policies.
    """
    reasons: list[dict[str, list[tuple[int, ReportedReason]]]] = []
    """By report and uid of a policy, its reasons with their indexes."""
    for report in reports:
        reasons.append({})
        for number, reason in enumerate(report.reasons):
            reasons[-1].setdefault(reason.uid, []).append((number, reason))
    extended: dict[PolicyKey, PolicyState] = {}
    for key, state in states.items():
        yield
        extended[key] = state
        if state.verdict is not None:
            uid, not_reported = state.policy.uid, PolicyShardReport(awaits_metrics=True)
            awaits = any(report.policies.get(uid, not_reported).awaits_metrics for report in reports)
            extended[key] = state._replace(
                verdict=_extend_verdict(
                    state.verdict, uid, [*zip(reports, (each.get(uid, []) for each in reasons), strict=True)]
                ),
                awaits_metrics=state.awaits_metrics or awaits,
            )
    return extended


def _extend_verdict(
    verdict: AvoidVerdict,
    uid: str,
    reports: Sequence[tuple[ShardReport, Sequence[tuple[int, ReportedReason]]]],
) -> AvoidVerdict:
    """The verdict of a policy over the nodes of all shards: of each report with its reasons and their indexes."""
    reasons: list[Reason] = list(verdict.reasons)
    known = {reasons[code - 1].text(): code for code in range(len(reasons), 0, -1)}
    """The first code of each text."""
    parts = [verdict.codes[:-1]]
    for report, reported in reports:
        codes: dict[int, int] = {}
        for number, reason in reported:
            if reason.reason not in known:
                reasons.append(reason)
                known[reason.reason] = len(reasons)
            codes[number] = known[reason.reason]
        parts.append(_codes_of_nodes(report, uid, codes))
    return verdict._replace(codes=np.concatenate([*parts, verdict.codes[-1:]]), reasons=tuple(reasons))


def _codes_of_nodes(report: ShardReport, uid: str, codes: Mapping[int, int]) -> NDArray[np.int16]:
    """The code of a policy for each node of a report, in any order; `codes` are those of its reasons."""
    rejected = report.policies[uid].rejected_nodes if uid in report.policies else 0
    if len(codes) == 1 and rejected == report.nodes:
        return np.full(report.nodes, next(iter(codes.values())), np.int16)
    of_patterns = [next(filter(None, map(codes.get, each.reasons)), 0) for each in report.patterns]
    counts = [each.count for each in report.patterns]
    rest = max(0, report.nodes - sum(counts))
    counted = sum(count for count, code in zip(counts, of_patterns, strict=True) if code)
    # the first ones for each policy, so that no node that all accept seems to be rejected
    beyond = min(rest, max(0, rejected - counted)) if codes else 0
    all_codes = [*of_patterns, min(codes.values(), default=0), 0]
    return np.repeat(np.array(all_codes, np.int16), [*counts, beyond, rest - beyond])
