"""Which devices rules of `deviceTaints` taint, by values of series, states, limits and earlier taints."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.devices.device_taint_rules import (
    DeviceTaintRule,
    RuleOwner,
    TaintOfPolicy,
    comparable_identity,
    policy_label,
)
from nodewise.devices.resource_slices import ResourceSliceObject
from nodewise.kube.resource_kinds import DEVICE_TAINT_RULES
from nodewise.metrics import aggregation
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import DifferingValues, Sample, Series
from nodewise.policies import device_matching, placement_policy_parser
from nodewise.policies.device_matching import SliceDevices
from nodewise.policies.device_taints import DeviceInputs, DeviceReport, DeviceRules, DeviceTaints
from nodewise.policies.options import MaxAges
from nodewise.policies.placement_policy import Policy
from nodewise.policies.policy_objects import PolicyObject

NANO = 10**9
START = 1_700_000_000.0
DRIVER = "gpu.example.com"
HOT = {"metric": "temp", "above": 90, "driver": DRIVER, "deviceLabel": "UUID", "deviceAttribute": "uuid"}


def policy(*rules: Mapping[str, Any], name: str = "gpus", **spec: Any) -> Policy:
    body = {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"deviceTaints": rules, **spec}}
    item = msgspec.json.decode(msgspec.json.encode(body), type=PolicyObject)
    parsed = placement_policy_parser.parse_policy(item, "ClusterPlacementPolicy")
    assert not parsed.problems or "unknown" in spec, parsed.problems
    return parsed


def slices(
    *nodes: str, count: int = 4, attribute: str = "uuid", values: Sequence[str] | None = None
) -> list[SliceDevices]:
    """A slice of each node; the attribute of device i is `<node>-i`, or one of the values."""
    names = tuple(f"gpu-{number}" for number in range(count))
    return [
        SliceDevices(
            None,
            DRIVER,
            node,
            1,
            names,
            (node,) * count,
            (tuple(values) if values else tuple(f"{node}-{number}" for number in range(count)),),
            frozenset({attribute, "model"}),
        )
        for node in nodes
    ]


def without_node(item: SliceDevices) -> SliceDevices:
    return msgspec.structs.replace(item, nodes=("",) * len(item.names))


class Evaluator:
    """Evaluates policies at one time after another, with the DeviceTaintRules of the last time."""

    def __init__(self, *policies: Policy, listed: Sequence[SliceDevices] = ()) -> None:
        self.policies = policies
        self.slices = list(listed or slices("n1", "n2"))
        self.rules = DeviceRules()
        self.own_rules: list[DeviceTaintRule] = []
        self.wanted: Mapping[str, TaintOfPolicy] = {}
        self.reports: Mapping[Any, DeviceReport] = {}
        self.values: dict[str, float] = {}
        self.ages_s: dict[str, float] = {}
        """By name, the age of values that are not new."""
        self.differing: dict[str, tuple[int, int]] = {}
        self.now = START

    def restart(self) -> None:
        """Another leader, which knows the status and the DeviceTaintRules."""
        self.rules = DeviceRules()

    def step(self, values: Mapping[str, float | None] = {}, after_s: float = 5.0) -> dict[str, str]:
        """The effects by device, after more values; None ends a series."""
        self.now += after_s
        merged = {**self.values, **values}
        self.values = {name: value for name, value in merged.items() if value is not None}
        attributes = device_matching.attributes_of_rules(self.policies)
        absent = [device for rule in self.own_rules if (device := rule.device)]
        table = cooperative_scheduling.run_without_pauses(
            device_matching.build_table(self.slices, attributes, absent)
        )
        samples = {
            name: Sample(int(value * NANO), self.now - self.ages_s.get(name, 0))
            for name, value in self.values.items()
        }
        series = {}
        for each in self.policies:
            for part in each.device_comparisons():
                request = part.metric_request()
                invalid = dict.fromkeys(self.differing, aggregation.conflict_text("2 series", "use a query"))
                differing = {
                    name: DifferingValues(low * NANO, high * NANO, self.now)
                    for name, (low, high) in self.differing.items()
                }
                series[request.key] = Series(request.key, "test", self.now, samples, invalid, differing)
        inputs = DeviceInputs(
            table,
            MetricsSnapshot(series),
            MaxAges(60.0, follows_samples=False),
            self.own_rules,
            {key: report.rules for key, report in self.reports.items()},
            self.now,
        )
        result = cooperative_scheduling.run_without_pauses(self.rules.evaluate(self.policies, inputs))
        return self._apply(result)

    def _apply(self, result: DeviceTaints) -> dict[str, str]:
        self.reports, self.wanted = result.reports, result.wanted
        kept = [rule for rule in self.own_rules if rule.metadata.name in result.held - result.wanted.keys()]
        bodies = [taint.body(DEVICE_TAINT_RULES) for taint in result.wanted.values()]
        self.own_rules = [*kept, *(msgspec.convert(body, DeviceTaintRule) for body in bodies)]
        return {"/".join(rule.device[1:]): rule.spec.taint.effect for rule in self.own_rules if rule.device}

    def report(self, number: int = 0) -> DeviceReport:
        return self.reports[self.policies[number].key]


def test_only_the_device_above_the_value_is_tainted() -> None:
    evaluator = Evaluator(policy(HOT))
    assert evaluator.step({"n1/n1-0": 95, "n1/n1-1": 90, "n2/n2-0": 20}) == {"n1/gpu-0": "NoSchedule"}
    assert evaluator.step({"n1/n1-0": 80}) == {}


@pytest.mark.parametrize(
    ("label", "attribute"),
    [
        ("GPU-4F", "GPU-4f"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("3", "3"),
        ("df6e7a7c-7314-46f8-abc4-b88b36dcf3aa", "GPU-df6e7a7c-7314-46f8-abc4-b88b36dcf3aa"),
    ],
)
def test_identities_are_compared_in_one_form(label: str, attribute: str) -> None:
    assert comparable_identity(label) == comparable_identity(attribute)


def test_index_is_compared_on_the_node_of_the_series_only() -> None:
    evaluator = Evaluator(policy(HOT), listed=slices("n1", "n2", values=["0", "1", "2", "3"]))
    assert evaluator.step({"n1/2": 95}) == {"n1/gpu-2": "NoSchedule"}
    assert evaluator.step({"n1/2": 20, "/1": 95, "unknown/3": 95}) == {}


@pytest.mark.parametrize("values", [["0", "1", "2", "3"], ["0000:3b:00.0", "", "", ""], []])
@pytest.mark.parametrize("node", ["n2", "unknown", ""])
def test_index_address_or_name_of_another_node_identifies_no_device(values: list[str], node: str) -> None:
    """Also if only one node has devices of the driver, so that the values do not differ between nodes."""
    rule = HOT if values else {name: value for name, value in HOT.items() if name != "deviceAttribute"}
    listed = (
        slices("n1", values=values) if values else [msgspec.structs.replace(slices("n1")[0], identities=())]
    )
    evaluator = Evaluator(policy(rule), listed=listed)
    value = "00000000:3B:00.0" if ":" in "".join(values) else values[0] if values else "gpu-0"
    assert evaluator.step({f"{node}/{value}": 95}) == {}
    assert evaluator.step({f"n1/{value}": 95}) == {"n1/gpu-0": "NoSchedule"}


@pytest.mark.parametrize("values", [["0", "1"], ["serial-a", "serial-b"], ["12345678", "12345679"]])
def test_value_of_devices_in_several_pools_without_node_identifies_none(values: list[str]) -> None:
    listed = slices("fabric-1", "fabric-2", values=values, count=2)
    evaluator = Evaluator(policy(HOT), listed=[without_node(item) for item in listed])
    assert evaluator.step({f"n9/{values[0]}": 95, f"/{values[1]}": 95}) == {}


def test_device_of_no_node_is_identified_by_a_value_of_one_pool() -> None:
    listed = [without_node(item) for item in slices("fabric-1", "fabric-2")]
    expected = {"fabric-2/gpu-1": "NoSchedule"}
    assert Evaluator(policy(HOT), listed=listed).step({"n9/fabric-2-1": 95}) == expected


def test_index_of_a_device_whose_node_is_its_own_is_compared_on_that_node() -> None:
    devices = [
        {"name": f"gpu-{at}", "nodeName": f"n{at // 2}", "attributes": {"uuid": {"int": at % 2}}}
        for at in range(4)
    ]
    pool = {"name": "rack", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "pool": pool, "perDeviceNodeSelection": True, "devices": devices}
    item = msgspec.convert({"metadata": {"name": "rack"}, "spec": spec}, ResourceSliceObject)
    listed = [device_matching.slice_devices(item, {DRIVER: ("uuid",)})]
    evaluator = Evaluator(policy(HOT | {"maxTaintedShare": "0.9"}), listed=listed)
    expected = {"rack/gpu-1": "NoSchedule", "rack/gpu-2": "NoSchedule"}
    assert evaluator.step({"n0/1": 95, "n1/0": 95}) == expected


@pytest.mark.parametrize("node", ["n3", "n1", ""])
@pytest.mark.parametrize("is_old_slice_left", [True, False])
def test_device_that_moves_is_tainted_on_its_new_node(node: str, is_old_slice_left: bool) -> None:
    """With the old slice, the device has two places, so a series without the node of one identifies neither."""
    evaluator = Evaluator(policy(HOT | {"maxTaintedShare": "0.9"}), listed=slices("n1", "n2"))
    assert evaluator.step({"n1/n1-0": 95}) == {"n1/gpu-0": "NoSchedule"}
    moved = slices("n3", values=["n1-0", "", "", ""])
    evaluator.slices = [*slices("n1", "n2")[0 if is_old_slice_left else 1 :], *moved]
    tainted = evaluator.step({"n1/n1-0": None, f"{node}/n1-0": 95})
    is_known = node == "n3" or not is_old_slice_left
    assert tainted == {"n1/gpu-0": "NoSchedule"} | ({"n3/gpu-0": "NoSchedule"} if is_known else {})


def test_renamed_slice_and_pool_of_another_driver_with_the_same_name_change_no_taint() -> None:
    evaluator = Evaluator(policy(HOT))
    assert evaluator.step({"n1/n1-0": 95}) == {"n1/gpu-0": "NoSchedule"}
    other = msgspec.structs.replace(slices("n1")[0], driver="nic.example.com")
    for listed in ([*slices("n1", "n1", "n2"), other], [other, *slices("n2", "n1")]):
        evaluator.slices = listed
        assert evaluator.step() == {"n1/gpu-0": "NoSchedule"}
    assert [str(rule.device) for rule in evaluator.own_rules] == [f"{DRIVER}/n1/gpu-0"]


@pytest.mark.parametrize("name", ["/n2-3", "exporter/n2-3"])
def test_uuid_identifies_a_device_without_a_known_node(name: str) -> None:
    assert Evaluator(policy(HOT)).step({name: 95}) == {"n2/gpu-3": "NoSchedule"}


@pytest.mark.parametrize("ended", ["10.0.0.5", "10.0.0.9"])
def test_newest_series_counts_after_an_exporter_restarted_with_another_address(ended: str) -> None:
    evaluator = Evaluator(policy(HOT))
    evaluator.ages_s = {f"{ended}/n2-3": 30}
    values = dict.fromkeys(("10.0.0.5/n2-3", "10.0.0.9/n2-3"), 95) | {f"{ended}/n2-3": 20}
    assert evaluator.step(values) == {"n2/gpu-3": "NoSchedule"}
    evaluator.differing = {"10.0.0.7/n2-3": (20, 99)}
    assert evaluator.step({f"{ended}/n2-3": 95, **dict.fromkeys(values.keys() - {f"{ended}/n2-3"}, 20)}) == {}


@pytest.mark.parametrize(
    ("values", "aggregate", "tainted"),
    [((20, 95), "", False), ((95, 20), "", False), ((91, 95), "", True), ((95, 95), "", True),
     ((20, 95), "max", True), ((95, 20), "min", False), ((91, 95), "min", True), ((20, 95), "avg", False)],
)  # fmt: skip
def test_newest_series_of_one_time_that_differ_have_no_value_without_aggregation(
    values: tuple[int, int], aggregate: str, tainted: bool
) -> None:
    evaluator = Evaluator(policy(HOT | ({"aggregate": aggregate} if aggregate else {})))
    evaluator.ages_s = {"10.0.0.7/n2-3": 30}
    names = "10.0.0.5/n2-3", "10.0.0.9/n2-3"
    actual = evaluator.step(dict(zip(names, values, strict=True)) | {"10.0.0.7/n2-3": 99, "n1/n1-0": 99})
    assert actual == {"n1/gpu-0": "NoSchedule"} | ({"n2/gpu-3": "NoSchedule"} if tainted else {})
    assert evaluator.step(dict.fromkeys(names, 95)) == dict.fromkeys(("n1/gpu-0", "n2/gpu-3"), "NoSchedule")
    kept = evaluator.step(dict(zip(names, (20, 95), strict=True)))
    assert ("n2/gpu-3" in kept) == (aggregate != "min"), "without a value, it stays tainted"
    reasons = str(evaluator.report())
    assert ("n2/gpu-3 has no valid value: 2 series of one device differ" in reasons) == (
        aggregate in ("", "avg")
    )


def test_device_without_attribute_is_identified_by_its_name() -> None:
    rule = {name: value for name, value in HOT.items() if name != "deviceAttribute"}
    listed = [msgspec.structs.replace(item, identities=()) for item in slices("n1", "n2")]
    assert Evaluator(policy(rule), listed=listed).step({"n2/gpu-1": 95}) == {"n2/gpu-1": "NoSchedule"}


def test_all_partitions_of_a_gpu_have_the_value_of_its_series() -> None:
    listed = slices("n1", values=["gpu-a", "gpu-a", "gpu-b", "gpu-b"])
    rule = HOT | {"maxTaintedShare": "0.9"}
    expected = {"n1/gpu-2": "NoSchedule", "n1/gpu-3": "NoSchedule"}
    assert Evaluator(policy(rule), listed=[listed[0]]).step({"n1/GPU-a": 1, "n1/GPU-b": 95}) == expected


def test_missing_value_changes_nothing() -> None:
    evaluator = Evaluator(policy(HOT | {"release": 80}))
    assert evaluator.step({"n1/n1-0": 95}) == {"n1/gpu-0": "NoSchedule"}
    for _ in range(3):
        assert evaluator.step({"n1/n1-0": None}, after_s=600) == {"n1/gpu-0": "NoSchedule"}
    assert evaluator.step({"n1/n1-0": 85}) == {"n1/gpu-0": "NoSchedule"}
    assert evaluator.step({"n1/n1-0": 79}) == {}


def test_no_series_heals_where_it_means_healthy() -> None:
    rule = {name: value for name, value in HOT.items() if name != "metric"}
    evaluator = Evaluator(policy(rule | {"query": "xid > 0", "emptyMeans": "Healthy"}))
    assert evaluator.step({"n1/n1-0": 95}) == {"n1/gpu-0": "NoSchedule"}
    assert evaluator.step({"n1/n1-0": None}) == {}


def test_device_whose_series_differ_is_tainted_if_all_meet_the_rule() -> None:
    evaluator = Evaluator(policy(HOT))
    evaluator.differing = {"n1/n1-0": (91, 99), "n1/n1-1": (20, 99)}
    assert evaluator.step({"n2/n2-0": 20}) == {"n1/gpu-0": "NoSchedule"}


def test_device_without_slice_stays_tainted() -> None:
    evaluator = Evaluator(policy(HOT))
    evaluator.step({"n1/n1-0": 95, "n2/n2-0": 95})
    evaluator.slices = slices("n2")
    assert evaluator.step({"n1/n1-0": None}) == {"n1/gpu-0": "NoSchedule", "n2/gpu-0": "NoSchedule"}
    evaluator.slices = []
    assert evaluator.step() == {"n1/gpu-0": "NoSchedule", "n2/gpu-0": "NoSchedule"}
    evaluator.slices = slices("n1", "n2")
    assert evaluator.step({"n1/n1-0": 20}) == {"n2/gpu-0": "NoSchedule"}


def test_times_count_on_in_a_new_leader() -> None:
    evaluator = Evaluator(policy(HOT | {"for": "1m", "keepFor": "2m"}))
    for _ in range(11):
        assert evaluator.step({"n1/n1-0": 95}) == {}
        evaluator.restart()
    assert evaluator.report().rules[0].device_states[0].state == "Pending"
    assert evaluator.step(after_s=10) == {"n1/gpu-0": "NoSchedule"}
    for _ in range(11):
        assert evaluator.step({"n1/n1-0": 20}, after_s=10) == {"n1/gpu-0": "NoSchedule"}
        evaluator.restart()
    assert evaluator.step(after_s=20) == {}


def test_new_leader_without_status_continues_with_the_taints() -> None:
    evaluator = Evaluator(policy(HOT | {"release": 80}))
    evaluator.step({"n1/n1-0": 95})
    evaluator.restart()
    evaluator.reports = {}
    assert evaluator.step({"n1/n1-0": 85, "n1/n1-1": 85}) == {"n1/gpu-0": "NoSchedule"}


def test_edit_of_the_value_applies_to_tainted_devices() -> None:
    evaluator = Evaluator(policy(HOT))
    evaluator.step({"n1/n1-0": 95, "n1/n1-1": 85})
    evaluator.policies = (policy(HOT | {"above": 96}),)
    assert evaluator.step() == {}
    evaluator.policies = (policy(HOT | {"above": 80, "effect": "NoExecute", "maxTaintedShare": "0.9"}),)
    assert evaluator.step() == {"n1/gpu-0": "NoExecute", "n1/gpu-1": "NoExecute"}


def test_share_of_tainted_devices_is_limited_and_the_first_ones_stay() -> None:
    evaluator = Evaluator(policy(HOT | {"maxTaintedShare": "0.25"}))
    assert evaluator.step({"n2/n2-3": 95}) == {"n2/gpu-3": "NoSchedule"}
    many = {f"{node}/{node}-{number}": 95.0 for node in ("n1", "n2") for number in range(4)}
    expected = {"n2/gpu-3": "NoSchedule", "n1/gpu-0": "NoSchedule"}
    assert evaluator.step(many) == expected
    assert evaluator.report().limited == (
        "8 devices meet deviceTaints[0], which may taint 2 of 8 by maxTaintedShare 0.25"
    )
    evaluator.restart()
    assert evaluator.step() == expected


def test_devices_without_slice_do_not_count_in_the_limit() -> None:
    evaluator = Evaluator(policy(HOT | {"maxTaintedShare": "0.34"}))
    assert len(evaluator.step({"n2/n2-0": 95, "n2/n2-1": 95})) == 2
    evaluator.slices = slices("n1")
    tainted = evaluator.step({"n1/n1-0": 95, "n1/n1-1": 95})
    assert sorted(tainted) == ["n1/gpu-0", "n2/gpu-0", "n2/gpu-1"]
    assert "2 devices meet deviceTaints[0], which may taint 1 of 4" in evaluator.report().limited


def test_edit_of_the_value_is_in_the_reason() -> None:
    evaluator = Evaluator(policy(HOT))
    evaluator.step({"n1/n1-0": 95})
    (rule,) = evaluator.own_rules
    for above, is_written in ((90, True), (80, False)):
        evaluator.policies = (policy(HOT | {"above": above}),)
        evaluator.step()
        (taint,) = evaluator.wanted.values()
        assert taint.is_written(rule) == is_written


def test_owner_of_others_stays() -> None:
    evaluator = Evaluator(policy(HOT))
    evaluator.step({"n1/n1-0": 95})
    (taint,), (rule,) = evaluator.wanted.values(), evaluator.own_rules
    owners = (RuleOwner("ConfigMap", "others", "uid-others"), *(rule.metadata.owner_references or ()))
    replace = msgspec.structs.replace
    assert taint.is_written(replace(rule, metadata=replace(rule.metadata, owner_references=owners)))


def test_one_device_of_few_may_be_tainted() -> None:
    evaluator = Evaluator(policy(HOT), listed=slices("n1", count=2))
    assert evaluator.step({"n1/n1-0": 95, "n1/n1-1": 95}) == {"n1/gpu-0": "NoSchedule"}


CANARY_PODS = {"podSelector": {"matchLabels": {"track": "canary"}}}


@pytest.mark.parametrize("spec", [{"mode": "Shadow"}, {"mode": "Canary", "canary": CANARY_PODS}])
def test_no_device_is_tainted_by_a_policy_that_observes(spec: Mapping[str, Any]) -> None:
    evaluator = Evaluator(policy(HOT, **spec))
    assert evaluator.step({"n1/n1-0": 95}) == {}
    assert (evaluator.report().tainted, evaluator.report().would_taint) == (0, 1)


def test_canary_taints_devices_of_its_share_of_the_nodes() -> None:
    nodes = [f"n{number}" for number in range(200)]
    hot = {f"{node}/{node}-0": 95.0 for node in nodes}
    tainted = {}
    for percent in (20, 60):
        canary = policy(HOT | {"maxTaintedShare": "0.9"}, mode="Canary", canary={"percent": percent})
        evaluator = Evaluator(canary, listed=slices(*nodes, count=2))
        tainted[percent] = evaluator.step(hot)
        assert 0.7 * percent < len(tainted[percent]) / 2 < 1.3 * percent
        evaluator.step(hot)
        report = evaluator.report()
        assert (report.tainted, report.would_taint) == (len(tainted[percent]), 200 - len(tainted[percent]))
    assert tainted[20].keys() < tainted[60].keys()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"mode": "Canary", "canary": {"percent": 1}}, 1),
        ({"mode": "Canary", "canary": CANARY_PODS}, 0),
        ({"mode": "Shadow"}, 0),
    ],
)
def test_device_without_slice_stays_tainted_in_the_canary_only(
    spec: Mapping[str, Any], expected: int
) -> None:
    evaluator = Evaluator(policy(HOT))
    evaluator.step({"n1/n1-0": 95})
    evaluator.policies, evaluator.slices = (policy(HOT, **spec),), slices("n2")
    assert len(evaluator.step()) == expected


def test_two_policies_taint_one_device_with_a_rule_each() -> None:
    evaluator = Evaluator(policy(HOT), policy(HOT | {"above": 50}, name="others"))
    evaluator.step({"n1/n1-0": 95})
    names = {rule.metadata.name for rule in evaluator.own_rules}
    assert {rule.policy_label for rule in evaluator.own_rules} == {"gpus", "others"}
    assert len(names) == 2
    evaluator.step({"n1/n1-0": 60})
    assert [rule.policy_label for rule in evaluator.own_rules] == ["others"]


def test_two_rules_of_a_policy_give_one_taint_with_the_stronger_effect() -> None:
    worse = HOT | {"above": 99, "effect": "NoExecute", "maxTaintedShare": "0.5"}
    evaluator = Evaluator(policy(HOT, worse))
    assert evaluator.step({"n1/n1-0": 95}) == {"n1/gpu-0": "NoSchedule"}
    assert evaluator.step({"n1/n1-0": 100}) == {"n1/gpu-0": "NoExecute"}
    assert evaluator.own_rules[0].reason == "temp above 90; temp above 99"


def test_taints_stay_while_the_policy_has_a_problem() -> None:
    evaluator = Evaluator(policy(HOT))
    evaluator.step({"n1/n1-0": 95})
    evaluator.policies = (policy(HOT | {"abvoe": 1}, unknown=1),)
    assert evaluator.policies[0].problems
    assert evaluator.step({"n1/n1-0": 20}) == {"n1/gpu-0": "NoSchedule"}


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        (
            {},
            {"n1/n1-0": 1, "n1/n1-9": 1},
            'deviceTaints[0]: 1 value of the label "UUID", "n1-9", is the attribute uuid of no device',
        ),
        ({}, {"n1/n1-0": 1, "n9/other": 1}, ""),
        (
            {"driver": "gpu.exmaple.com"},
            {"n1/n1-0": 1},
            'of the driver gpu.exmaple.com: found gpu.example.com; did you mean "gpu.example.com"?',
        ),
        ({}, {"n1/n1-0\x1b[31m": 1}, '"n1-0\\x1b[31m"'),
    ],
)
def test_unmatched_series_are_reported_with_the_closest_value(
    rule: Mapping[str, Any], values: Mapping[str, float], expected: str
) -> None:
    evaluator = Evaluator(policy(HOT | rule))
    evaluator.step(values)
    assert expected in evaluator.report().unmatched
    assert bool(expected) == bool(evaluator.report().unmatched)
    assert bool(evaluator.report().inapplicable) == ("driver" in rule)


def test_attribute_that_has_an_unmatched_uuid_is_reported_and_no_similar_one() -> None:
    """The series of a GPU with MIG devices has the UUID of the GPU, which is another attribute of its parts."""
    whole, parent, unknown = (f"df6e7a7c-7314-46f8-abc4-b88b36dcf3a{at}" for at in range(3))
    listed = msgspec.structs.replace(slices("n1", count=2)[0], identities=(("", parent), (whole, "mig-1")))
    evaluator = Evaluator(policy(HOT, HOT | {"deviceAttribute": "parentUUID"}), listed=[listed])
    evaluator.step({f"n1/GPU-{whole}": 1, f"n1/GPU-{parent}": 1})
    of_uuid, of_parent = evaluator.report().unmatched.split("; deviceTaints[1]")
    assert of_uuid.endswith("; devices have it as the attribute parentUUID")
    assert of_parent.endswith("; devices have it as the attribute uuid")
    evaluator.step({f"n1/GPU-{parent}": None, f"n1/GPU-{unknown}": 1})
    assert f'; a device has "{whole}"' in evaluator.report().unmatched


def test_devices_with_several_series_of_different_values_are_reported() -> None:
    """DCGM has a series with the UUID of the GPU for each of its parts."""
    evaluator = Evaluator(policy(HOT))
    evaluator.differing = {"n1/n1-0": (60, 92), "n1/n1-1": (91, 92)}
    evaluator.step({"n1/n1-2": 50})
    assert evaluator.report().unmatched == (
        f"deviceTaints[0]: {DRIVER}/n1/gpu-0 has no valid value: 2 series of one device differ: set aggregate: max or"
        " use a query"
    )
    evaluator.differing["n1/n1-3"] = (60, 92)
    evaluator.step()
    assert f"{DRIVER}/n1/gpu-0 and 1 more devices have no valid value" in evaluator.report().unmatched


def test_missing_attribute_is_reported_with_the_closest_one() -> None:
    listed = slices("n1", values=["", "", "", ""])
    evaluator = Evaluator(policy(HOT | {"deviceAttribute": "uid"}), listed=listed)
    evaluator.step({"n1/x": 1})
    assert evaluator.report().unmatched == (
        "deviceTaints[0]: no device of the driver gpu.example.com has the attribute uid as a text or a whole number:"
        ' found model, uuid; did you mean "uuid"?'
    )


@pytest.mark.parametrize(
    ("attribute", "listed", "problem"),
    [
        (
            "healthy",
            slices("n1", attribute="healthy", values=[""] * 4),
            "healthy as a text or a whole number",
        ),
        (
            f"{DRIVER}/healthy",
            slices("n1", attribute="healthy", values=[""] * 4),
            "as a text or a whole number",
        ),
        ("uuid", slices("n1", count=0), f"no ResourceSlice has devices of the driver {DRIVER}"),
    ],
)
def test_no_name_is_suggested_in_place_of_itself(
    attribute: str, listed: Sequence[SliceDevices], problem: str
) -> None:
    """The attribute has another type, or the slices of the driver have no devices."""
    evaluator = Evaluator(policy(HOT | {"deviceAttribute": attribute}), listed=listed)
    evaluator.step({"n1/x": 1})
    assert problem in evaluator.report().inapplicable
    assert evaluator.report().inapplicable.endswith((": found model", DRIVER))


def test_flapping_device_is_reported() -> None:
    evaluator = Evaluator(policy(HOT))
    for number in range(24):
        evaluator.step({"n1/n1-0": 95 if number % 2 else 20}, after_s=60)
    assert "deviceTaints[0] tainted devices again" in evaluator.report().flapping
    assert evaluator.report().flapping.endswith("(gpu.example.com/n1/gpu-0); consider release")


def test_labels_of_long_names_of_policies_differ() -> None:
    long = "a" * 250
    assert len(policy_label(long)) <= 63
    assert policy_label(long) != policy_label(long + "b")


def test_older_generation_of_a_pool_does_not_count() -> None:
    older, newer = slices("n1")[0], slices("n1", count=1)[0]
    evaluator = Evaluator(policy(HOT), listed=[older, msgspec.structs.replace(newer, generation=2)])
    assert evaluator.step({"n1/n1-0": 20, "n1/n1-1": 95}) == {}


def test_generation_counts_by_node_for_a_driver_with_one_pool() -> None:
    first, second, third = (
        msgspec.structs.replace(item, pool="gpus", node=node, names=item.identities[0])
        for item, node in zip(slices("n1", "n2", "n3"), ("n1", "n2", "n3"), strict=True)
    )
    listed = [
        first,
        msgspec.structs.replace(second, generation=2),
        msgspec.structs.replace(third, slice_count=2),
    ]
    rule = HOT | {"maxTaintedShare": "0.9"}
    tainted = Evaluator(policy(rule), listed=listed).step(
        dict.fromkeys(("n1/n1-0", "n2/n2-0", "n3/n3-0"), 95)
    )
    # the pool of n3 is incomplete, and kube-scheduler reads its newer generation instead
    assert tainted == {"gpus/n1-0": "NoSchedule", "gpus/n2-0": "NoSchedule"}


def test_taint_follows_the_newest_generation_of_a_pool() -> None:
    evaluator = Evaluator(policy(HOT | {"release": 80}), listed=slices("n1"))
    assert evaluator.step({"n1/n1-3": 95}) == {"n1/gpu-3": "NoSchedule"}
    for count, value, expected in (
        (4, 85, True),
        (1, 85, True),
        (1, 20, True),
        (4, 85, True),
        (4, 79, False),
    ):
        newest = evaluator.slices[-1].generation + 1
        evaluator.slices.append(msgspec.structs.replace(slices("n1", count=count)[0], generation=newest))
        assert (evaluator.step({"n1/n1-3": value}) == {"n1/gpu-3": "NoSchedule"}) == expected
