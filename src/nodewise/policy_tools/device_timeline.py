"""Evaluates the device rules of policies at one time after another, with the code of the leader, and compares those of
two sides. No I/O.

`policy test`, `policy diff` and `policy backtest` use `DeviceTimeline`. Taints are written at once, and slices do not
change.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final, NamedTuple

import msgspec

from nodewise.agent import Watched
from nodewise.base import cooperative_scheduling
from nodewise.devices.device_taint_rules import NAME_PREFIX, DeviceTaintRule
from nodewise.devices.resource_slices import ResourceSliceObject
from nodewise.kube.resource_kinds import DEVICE_TAINT_RULES, RESOURCE_SLICES
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.policies import device_matching, device_taints
from nodewise.policies.device_taints import DeviceInputs, DeviceRules, DeviceTaints
from nodewise.policies.options import MaxAges
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policies.policy_status_fields import RuleCounts
from nodewise.policy_tools.policy_timeline import Objects

WATCHED: Final = (
    Watched("resourceslices", RESOURCE_SLICES, ResourceSliceObject, is_optional=True),
    Watched(
        "devicetaintrules",
        DEVICE_TAINT_RULES,
        DeviceTaintRule,
        lambda rule: rule if rule.policy_label and rule.metadata.name.startswith(NAME_PREFIX) else None,
        is_optional=True,
    ),
)
"""What `DeviceObjects` are read from."""


class DeviceObjects(NamedTuple):
    """The objects that device rules read beside their policies."""

    slices: Collection[ResourceSliceObject] = ()
    own_rules: Collection[DeviceTaintRule] = ()
    """The DeviceTaintRules of nodewise that exist before the first evaluation."""

    @classmethod
    def of(cls, objects: Objects) -> "DeviceObjects":
        """Those among the objects of `WATCHED`."""
        return cls(*(objects.get(watched.name, {}).values() for watched in WATCHED))


class DeviceTimeline:
    """The device rules of some policies at one time after another."""

    def __init__(
        self,
        policies: Collection[Policy],
        objects: DeviceObjects,
        recorded: Mapping[PolicyKey, Sequence[RuleCounts]] = {},
    ) -> None:
        """`recorded` are the rules in the statuses of policies, with the states of devices."""
        self.taints = DeviceTaints({}, set(), {}, {})
        """Of the last time."""
        self._policies = policies
        self._recorded = recorded
        self._rules = DeviceRules()
        self._own_rules = list(objects.own_rules)
        attributes = device_matching.attributes_of_rules(policies)
        kept = [device_matching.slice_devices(item, attributes) for item in objects.slices]
        absent = sorted(device for rule in self._own_rules if (device := rule.device) is not None)
        self.table = cooperative_scheduling.run_without_pauses(
            device_matching.build_table(kept, attributes, absent)
        )

    def advance(self, metrics: MetricsSnapshot, max_ages: MaxAges, at: float) -> DeviceTaints:
        """Evaluate all rules at a time later than the one before, and write the taints."""
        inputs = DeviceInputs(self.table, metrics, max_ages, self._own_rules, self._recorded, at)
        taints = cooperative_scheduling.run_without_pauses(self._rules.evaluate(self._policies, inputs))
        self.taints = taints
        held = [rule for rule in self._own_rules if rule.metadata.name in taints.held - taints.wanted.keys()]
        bodies = (taint.body(DEVICE_TAINT_RULES) for taint in taints.wanted.values())
        self._own_rules = [*held, *(msgspec.convert(body, DeviceTaintRule) for body in bodies)]
        return taints

    def unknown_devices(self, other: "DeviceTimeline") -> frozenset[str]:
        """The devices that are not tainted, and have no value for a rule that the other side lacks, at the last
        time.
        """
        unknown: set[int] = set()
        for key, has_value in self.taints.with_values.items():
            if key not in other.taints.with_values:
                numbers = self.table.numbers(key[1].driver)
                unknown.update(numbers[~has_value[numbers]].tolist())
        return frozenset(str(self.table.ids[number]) for number in unknown) - effects(self.taints).keys()


class DeviceState(NamedTuple):
    """What policies do to one device."""

    effect: str = ""
    """The stronger effect of several taints; empty without a taint."""
    reason: str = ""
    """The rules that the device meets."""

    def text(self) -> str:
        return f"{self.effect}: {self.reason}" if self.effect else self.reason or "not tainted"


_PENDING: Final = "not tainted yet, because of for"


def device_states(taints: DeviceTaints) -> dict[str, DeviceState]:
    """The state of each device that is tainted, or meets a rule for less than its `for`, by `DRIVER/POOL/DEVICE`."""
    states: dict[str, DeviceState] = {}
    for report in taints.reports.values():
        for group in (group for counts in report.rules for group in counts.device_states or ()):
            if group.state == "Pending":
                states |= dict.fromkeys(group.devices, DeviceState("", _PENDING))
    # of the taints of several policies, the stronger effect, which is the first one, applies
    in_order = sorted(taints.wanted.values(), key=lambda taint: taint.effect, reverse=True)
    return states | {str(taint.device): DeviceState(taint.effect, taint.reason) for taint in in_order}


def effects(taints: DeviceTaints) -> dict[str, str]:
    """The effects by tainted device."""
    return {device: state.effect for device, state in device_states(taints).items() if state.effect}


class DeviceChange(NamedTuple):
    device: str
    before: DeviceState
    after: DeviceState


def device_changes(before: DeviceTaints, after: DeviceTaints) -> list[DeviceChange]:
    """The devices that are tainted before or after only, or with another effect, sorted."""
    old, new = device_states(before), device_states(after)
    changes = (
        DeviceChange(device, old.get(device, DeviceState()), new.get(device, DeviceState()))
        for device in sorted({*old, *new})
    )
    return [
        change
        for change in changes
        if change.before.effect != change.after.effect
        or (not change.before.reason) != (not change.after.reason)
    ]


class DeviceRuleChange(NamedTuple):
    """A device rule of a policy before and after; empty for none."""

    policy: PolicyKey
    before: str
    after: str


def device_rule_changes(
    old: Mapping[PolicyKey, Policy], new: Mapping[PolicyKey, Policy]
) -> Iterator[DeviceRuleChange]:
    """The device rules that differ, by policy."""
    for key in sorted({*old, *new}):
        before, after = (
            [device_taints.rule_text(rule) for rule in side[key].device_taints] if key in side else []
            for side in (old, new)
        )
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag != "equal":
                pairs = zip_longest(before[i1:i2], after[j1:j2], fillvalue="")
                yield from (DeviceRuleChange(key, *pair) for pair in pairs)
