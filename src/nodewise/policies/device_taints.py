"""Which devices of DRA drivers the rules of `deviceTaints` taint: series are matched with devices (`device_matching`),
and each device has the states of `hysteresis` under each rule. No I/O.

A missing value changes no state: a device that no longer reports stays as it is, whether its exporter, Prometheus or
the device itself failed. So does a tainted device whose slice is gone, for `ABSENT_S`.

Only the leader evaluates. It writes the states into the status, and the taints are DeviceTaintRules, so a new leader
continues with both.
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec
import numpy as np

from nodewise.agent import NodeIndex
from nodewise.base.errors import closest_name, did_you_mean, list_first, visible
from nodewise.devices.device_taint_rules import (
    DeviceTaintRule,
    TaintOfPolicy,
    comparable_identity,
    policy_label,
)
from nodewise.devices.resource_slices import DeviceId
from nodewise.metrics import aggregation
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.node_index import Numbers
from nodewise.metrics.series import Series, ValueState, build_column, pack_samples
from nodewise.policies import (
    hysteresis,
    policy_rejection_reasons,
    policy_selection,
    policy_status_fields,
    rule_evaluation,
)
from nodewise.policies.device_matching import DeviceTable, SeriesMatch, match_series
from nodewise.policies.hysteresis import (
    FLAPPING,
    PASSING,
    REJECTED,
    UNKNOWN,
    FlapHistory,
    NodeStates,
    RulePart,
)
from nodewise.policies.options import MaxAges
from nodewise.policies.placement_policy import Canary, Comparison, DeviceRule, Policy, PolicyKey
from nodewise.policies.policy_status_fields import DeviceStateGroup, RuleCounts
from nodewise.policies.rule_evaluation import Mask
from nodewise.policies.rule_states import align

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
ABSENT_S: Final = 3600.0
"""How long a device without a slice stays tainted: a driver that restarts publishes its slices again."""

_MAX_NAMED: Final = 5
_MAX_LISTED: Final = 20
_MAX_TEXT: Final = 80
_MAX_COMPARED: Final = 100
"""Values of an attribute among which the closest one is looked for."""


class DeviceInputs(NamedTuple):
    """What rules are evaluated with."""

    table: DeviceTable
    metrics: MetricsSnapshot
    """With the series of `Policy.device_comparisons`."""
    max_ages: MaxAges
    own_rules: Sequence[DeviceTaintRule]
    """The DeviceTaintRules of nodewise."""
    recorded: Mapping[PolicyKey, Sequence[RuleCounts]]
    """The rules in the statuses of policies."""
    now: float


class DeviceReport(NamedTuple):
    """What the status of a policy contains about its device rules."""

    rules: tuple[RuleCounts, ...] = ()
    tainted: int | None = None
    """How many devices have a DeviceTaintRule of the policy, also if it has no device rules any more. None if the
    rules are not evaluated."""
    would_taint: int | None = None
    """How many more devices would be tainted without the mode and the step back of the policy."""
    unmatched: str = ""
    """Which values of labels match no device, and which devices have no valid value; empty for none."""
    inapplicable: str = ""
    """Which rules concern no device, because of their driver or attribute; empty for none. A part of `unmatched`."""
    limited: str = ""
    """Which rules would taint more devices than they may; empty for none."""
    flapping: str = ""
    refused: str = ""
    """Why DeviceTaintRules cannot be written; empty if they can."""


class DeviceTaints(NamedTuple):
    """The result of an evaluation."""

    wanted: dict[str, TaintOfPolicy]
    """By name of the DeviceTaintRule."""
    held: set[str]
    """The names of existing rules of policies with a problem, which stay."""
    reports: dict[PolicyKey, DeviceReport]
    with_values: dict[tuple[PolicyKey, DeviceRule], Mask]
    """By rule, and number of the device: whether it has a slice, and a value for the rule."""


class _Key(NamedTuple):
    """What identifies a rule. Its target, `release` and times may be edited."""

    policy: str
    uid: str
    rule_id: str
    occurrence: int


class _RuleState(NamedTuple):
    devices: NodeIndex
    states: NodeStates
    flaps: FlapHistory = FlapHistory()


def rule_id(rule: DeviceRule) -> str:
    """A short identity of a rule, without what may be edited while devices stay tainted."""
    parts = [
        (part.metric, part.query, part.aggregate, part.operator, part.device_label) for part in rule.parts
    ]
    return sha256(repr((parts, rule.driver, rule.attribute)).encode(errors="replace")).hexdigest()[:8]


def _identify(policy: Policy) -> Iterator[tuple[DeviceRule, _Key]]:
    counts: Counter[str] = Counter()
    for rule in policy.device_taints:
        identity = rule_id(rule)
        yield rule, _Key(policy.name, policy.uid, identity, counts[identity])
        counts[identity] += 1


def _devices_of_rule(own: Iterable[DeviceTaintRule], identity: str, index: NodeIndex) -> Numbers:
    """The devices that DeviceTaintRules of a policy taint because of one of its rules."""
    return index.numbers([str(each.device) for each in own if each.device and identity in each.rule_ids])


class DeviceRules:
    """The states of devices under all rules."""

    def __init__(self) -> None:
        self._known: dict[_Key, _RuleState] = {}
        self._matches: dict[tuple[str, str, str], SeriesMatch] = {}
        """By key of the metric, driver and attribute."""
        self._table: DeviceTable | None = None

    def evaluate(  # complexity: the rules of each policy, and what follows from them
        self, policies: Iterable[Policy], inputs: DeviceInputs
    ) -> Generator[None, None, DeviceTaints]:
        """Advance the states of all rules, and combine the rules of each policy."""
        if inputs.table is not self._table:
            self._matches, self._table = {}, inputs.table
        known: dict[_Key, _RuleState] = {}
        result = DeviceTaints({}, set(), {}, {})
        for policy in policies:
            label = policy_label(policy.name)
            own = [rule for rule in inputs.own_rules if rule.policy_label == label]
            taints: dict[int, list[DeviceRule]] = {}
            reports: list[DeviceReport] = []
            for number, (rule, key) in enumerate(_identify(policy)):
                place, before = (
                    f"deviceTaints[{number}]",
                    _devices_of_rule(own, key.rule_id, inputs.table.index),
                )
                evaluation = yield from self._evaluate_rule(place, rule, policy.key, key, before, inputs)
                known[key] = evaluation.state
                result.with_values[policy.key, rule] = evaluation.fresh
                for device in evaluation.tainted.tolist():
                    taints.setdefault(device, []).append(rule)
                reports.append(_report(place, rule, policy, evaluation, inputs))
                yield
            would_taint = 0
            for device, rules in taints.items():
                if _is_enforced_on(policy, inputs.table, device):
                    taint = _combine(policy, inputs.table.ids[device], rules)
                    result.wanted[taint.name] = taint
                else:
                    would_taint += 1
                yield
            if policy.problems and not (policy.only_observes or policy.not_enforced):
                result.held.update(rule.metadata.name for rule in own)
            result.reports[policy.key] = _merge_reports(reports, len(own), would_taint)
        self._known = known
        return result

    def _evaluate_rule(
        self,
        place: str,
        rule: DeviceRule,
        policy: PolicyKey,
        key: _Key,
        tainted_before: Numbers,
        inputs: DeviceInputs,
    ) -> "Generator[None, None, _Evaluation]":
        before = self._known.get(key)
        recorded = next((counts for counts in inputs.recorded.get(policy, ()) if counts.rule == place), None)
        table, now = inputs.table, inputs.now
        index, size = table.index, len(table.index) + 1
        states = _start_states(rule, before, recorded, tainted_before, table, now)
        flaps = before.flaps if before else FlapHistory()
        parts: list[RulePart] = []
        values, fresh, match, invalid = [], table.is_present.copy(), None, ""
        for part in rule.parts:
            request = part.metric_request()
            series = inputs.metrics.series.get(request.key)
            if series is None:
                parts, fresh = [], np.zeros(size, bool)
                break
            match = yield from self._match_series(rule, part, series, table)
            renamed = yield from match.by_device(series, request.aggregate)
            column = yield from build_column(renamed, index)
            max_age_s = inputs.max_ages.of_rule(part, column.sample_distance_s)
            rule_inputs = rule_evaluation.rule_inputs(part, column, now, max_age_s)
            evaluation = rule_evaluation.evaluate_rule(
                part, rule_inputs, reject_missing=False, max_age_s=max_age_s
            )
            parts.append(_rule_part(part, evaluation, table.is_present))
            fresh &= evaluation.known
            invalid = invalid or _invalid_text(renamed, table, evaluation.known)
            values.append(evaluation.broken & table.is_present)
            yield
        meeting = np.logical_and.reduce(values) if parts else np.zeros(size, bool)
        if parts:
            rejected_before = hysteresis.rejects(states)
            sample = hysteresis.levels(parts)
            sample[~table.is_present] = UNKNOWN
            states = hysteresis.advance(states, sample, rule.times, now)
            if before is not None:
                flaps = flaps.update(rejected_before, hysteresis.rejects(states), index, now)
        rejected = np.flatnonzero(hysteresis.rejects(states)[:-1])
        total = len(table.numbers(rule.driver))
        absent, rejected = rejected[~table.is_present[rejected]], rejected[table.is_present[rejected]]
        most = max(int(Fraction(rule.max_share) * total), 1)
        is_new = ~np.isin(rejected, tainted_before)
        in_order = rejected[np.lexsort((rejected, states.since[rejected], is_new))]
        tainted = np.concatenate([absent, in_order[:most]])
        withheld = max(len(in_order) - most, 0)
        return _Evaluation(
            _RuleState(index, states, flaps), tainted, withheld, most, total, meeting, fresh, match, invalid
        )

    def _match_series(
        self, rule: DeviceRule, part: Comparison, series: Series, table: DeviceTable
    ) -> Generator[None, None, SeriesMatch]:
        """The match, computed again only if the labels of the series or the devices changed."""
        samples = yield from pack_samples(series.samples)
        key = part.metric_request().key, rule.driver, rule.attribute
        match, invalid = self._matches.get(key), tuple(series.invalid)
        if match is None or match.names is not samples.names or match.invalid != invalid:
            match = yield from match_series(samples.names, invalid, table, rule.driver, rule.attribute)
            self._matches[key] = match
        return match


class _Evaluation(NamedTuple):
    """A rule over all devices."""

    state: _RuleState
    tainted: Numbers
    """The devices that it taints, within its limit."""
    withheld: int
    """How many more devices it would taint without the limit."""
    most: int
    total: int
    meeting: Mask
    fresh: Mask
    match: SeriesMatch | None
    """None without a response."""
    invalid: str
    """Which devices have no valid value, such as several series of different values; empty for none."""


def _start_states(
    rule: DeviceRule,
    before: _RuleState | None,
    recorded: RuleCounts | None,
    tainted_before: Numbers,
    table: DeviceTable,
    now: float,
) -> NodeStates:
    """The states before a sample: those of the last evaluation, or after a start those of the status and the taints."""
    index = table.index
    if before is not None:
        return NodeStates(
            align(before.states.phases, PASSING, before.devices, index),
            align(before.states.since, np.uint32(0), before.devices, index),
        )
    states = hysteresis.initial_states(len(index) + 1)
    if recorded is not None and recorded.device_states and recorded.expression == _expression(rule):
        groups = [
            hysteresis.NodeStateGroup(group.state, group.since, group.devices)
            for group in recorded.device_states
        ]
        with contextlib.suppress(ValueError):  # a status that somebody else wrote
            states = hysteresis.decode(groups, 0, index).states
    phases, since = states.phases.copy(), states.since.copy()
    tainted = tainted_before[phases[tainted_before] < REJECTED]
    phases[tainted], since[tainted] = REJECTED, math.ceil(now)
    phases[-1], since[-1] = PASSING, 0
    return NodeStates(phases, since)


def _rule_part(part: Comparison, evaluation: rule_evaluation.RuleEvaluation, is_present: Mask) -> RulePart:
    """One sample of a part; a missing value never releases a device."""
    known = evaluation.known & is_present
    broken = held = evaluation.broken & known
    if part.release is not None:
        fresh = evaluation.inputs.states == ValueState.FRESH
        held = fresh & rule_evaluation.compare(part.operator, evaluation.inputs.column.values, part.release)
        held = held if evaluation.agreeing is None else held | evaluation.agreeing
    return RulePart(known, broken, held, np.array(False))


def rule_text(rule: DeviceRule) -> str:
    """The whole rule: `temp above 90: NoSchedule for gpu.example.com by UUID = uuid, maxTaintedShare 0.25`."""
    attribute = f" = {rule.attribute}" if rule.attribute else ""
    return (
        f"{_expression(rule)}: {rule.effect} for {rule.driver} by {rule.parts[0].device_label}{attribute},"
        f" maxTaintedShare {rule.max_share}"
    )


def _expression(rule: DeviceRule) -> str:
    text = " and ".join(
        policy_status_fields.comparison_expression(part, "ClusterPlacementPolicy") for part in rule.parts
    )
    return policy_status_fields.short_expression(text + policy_rejection_reasons.times_text(rule.times))


def _report(
    place: str, rule: DeviceRule, policy: Policy, evaluation: _Evaluation, inputs: DeviceInputs
) -> DeviceReport:
    table, state = inputs.table, evaluation.state
    groups, _ = hysteresis.encode(
        state.states, state.devices, hysteresis.MAX_NODES // len(policy.device_taints)
    )
    of_driver = table.numbers(rule.driver)
    counts = RuleCounts(
        place,
        _expression(rule),
        devices=int(np.count_nonzero(evaluation.meeting)),
        missing=int(np.count_nonzero(~evaluation.fresh[of_driver])),
        flaps_per_hour=len(state.flaps.recent(inputs.now)),
        device_states=tuple(DeviceStateGroup(group.state, group.since, group.nodes) for group in groups),
    )
    limited = ""
    if evaluation.withheld:
        limited = (
            f"{evaluation.withheld + evaluation.most} devices meet {place}, which may taint {evaluation.most} of"
            f" {evaluation.total} by maxTaintedShare {rule.max_share}"
        )
    inapplicable = _inapplicable_text(place, rule, evaluation, table)
    unmatched = inapplicable or _unmatched_text(place, rule, evaluation, table)
    invalid = f"{place}: {evaluation.invalid}" if evaluation.invalid else ""
    return DeviceReport(
        (counts,),
        0,
        0,
        "; ".join(filter(None, (unmatched, invalid))),
        inapplicable,
        limited,
        _flapping_text(place, rule, state.flaps, inputs.now),
    )


def _inapplicable_text(place: str, rule: DeviceRule, evaluation: _Evaluation, table: DeviceTable) -> str:
    """Why the rule concerns no device, with the closest valid name."""
    driver, attribute = rule.driver, rule.attribute
    if evaluation.total and any(table.identities.get((driver, attribute), ())):
        return ""
    if evaluation.total:
        problem = (
            f"no device of the driver {driver} has the attribute {attribute} as a text or a whole number"
        )
        name, names = attribute.removeprefix(f"{driver}/"), sorted(table.attribute_names.get(driver, ()))
    else:
        problem = f"no ResourceSlice has devices of the driver {driver}"
        name, names = driver, sorted(table.attribute_names)
    # a driver without devices, or an attribute of another type
    names = [each for each in names if each != name]
    listed = f": found {', '.join(names[:_MAX_LISTED])}" if names else ""
    return f"{place}: {problem}{listed}{did_you_mean(name, names)}"


def _invalid_text(by_device: Series, table: DeviceTable, known: Mask) -> str:
    """Why devices with a series have no valid value."""
    devices = list(by_device.invalid)
    without = [
        device
        for device, is_known in zip(devices, known[table.index.numbers(devices)], strict=True)
        if not is_known
    ]
    if not without:
        return ""
    more = f" and {len(without) - 1} more devices have" if len(without) > 1 else " has"
    why = aggregation.conflict_of_device(by_device.invalid[without[0]])
    return f"{without[0]}{more} no valid value: {why}"


def _unmatched_text(place: str, rule: DeviceRule, evaluation: _Evaluation, table: DeviceTable) -> str:
    """Why values of the label match no device, with the closest valid ones."""
    driver, attribute, match = rule.driver, rule.attribute, evaluation.match
    if match is None or not match.unmatched_count:
        return ""
    label = rule.parts[0].device_label
    where = f"the attribute {attribute}" if attribute else "the name"
    example = match.unmatched[0]
    hint = _hint(table, rule, comparable_identity(example))
    count = match.unmatched_count
    values_of, such_as, are = ("value", "", "is") if count == 1 else ("values", "such as ", "are")
    return (
        f"{place}: {count} {values_of} of the label {_quoted(label)}, {such_as}{_quoted(example)}, {are}"
        f" {where} of no device of the driver {driver}{hint}"
    )


def _hint(table: DeviceTable, rule: DeviceRule, identity: str) -> str:
    """The other attribute that has a value which no device has, or else a value that devices have."""
    for (driver, attribute), others in table.identities.items():
        if driver == rule.driver and attribute != rule.attribute and identity in others:
            return f"; devices have it as {f'the attribute {attribute}' if attribute else 'the name'}"
    values = table.identities[rule.driver, rule.attribute]
    # UUIDs are random: a similar one says nothing
    examples = [] if _UUID.search(identity) else [value for value in values[:_MAX_COMPARED] if value]
    if closest := closest_name(identity, examples):
        return f"; the closest value is {_quoted(closest)}"
    return f"; a device has {_quoted(next(filter(None, values)))}"


def _quoted(text: str) -> str:
    return f'"{visible(text)[:_MAX_TEXT]}"'


def _flapping_text(place: str, rule: DeviceRule, history: FlapHistory, now: float) -> str:
    flaps = history.recent(now)
    if len(flaps) < FLAPPING:
        return ""
    devices = list_first(sorted({flap.node for flap in flaps}), _MAX_NAMED)
    remedy = "release" if rule.parts[0].release is None and not rule.times.keep_for_s else "a longer for"
    times = f"at least {FLAPPING} times in the last hour"
    return f"{place} tainted devices again {times} ({devices}); consider {remedy}"


def _is_enforced_on(policy: Policy, table: DeviceTable, device: int) -> bool:
    """Whether the policy taints a device that meets its rules. A device without a slice was tainted before; its node
    is not known.
    """
    if device >= table.present and policy.canary is not None and policy.canary.pods is None:
        policy = msgspec.structs.replace(policy, canary=Canary(percent=100))
    return policy_selection.taints_devices_of(policy, table.nodes[device] or table.ids[device].pool)


def _merge_reports(reports: Sequence[DeviceReport], tainted: int, would_taint: int) -> DeviceReport:
    def join(texts: Iterable[str]) -> str:
        return "; ".join(filter(None, texts))

    return DeviceReport(
        tuple(counts for report in reports for counts in report.rules),
        tainted,
        would_taint if reports else None,
        join(report.unmatched for report in reports),
        join(report.inapplicable for report in reports),
        join(report.limited for report in reports),
        join(report.flapping for report in reports),
    )


def _combine(policy: Policy, device: DeviceId, rules: Sequence[DeviceRule]) -> TaintOfPolicy:
    """One taint for all rules of a policy that a device meets; the stronger effect applies."""
    texts = [
        " and ".join(policy_rejection_reasons.comparison_text(part, policy.key.kind) for part in rule.parts)
        + policy_rejection_reasons.times_text(rule.times)
        for rule in rules
    ]
    effect = "NoExecute" if any(rule.effect == "NoExecute" for rule in rules) else "NoSchedule"
    ids = tuple(sorted({rule_id(rule) for rule in rules}))
    return TaintOfPolicy(policy.name, policy.uid, device, effect, ids, "; ".join(texts))
