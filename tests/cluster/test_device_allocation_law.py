"""The predicted devices are those that the allocator of Kubernetes 1.37 allocates, for any slices and claims."""

import json
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.devices import device_allocation, device_inventory
from nodewise.devices.device_allocation import NotPredicted
from nodewise.devices.device_inventory import DeviceInventory, DeviceInventoryBuilder
from nodewise.devices.device_selectors import device_matches
from nodewise.devices.resource_claims import (
    DeviceClassObject,
    ResourceClaim,
    ResourceClaimObject,
    parse_device_class,
    parse_resource_claim,
)
from nodewise.devices.resource_slices import (
    EMPTY,
    ResourceSlice,
    ResourceSliceObject,
    parse_resource_slice,
)
from nodewise.kube.store import Key, difference
from tests import short_and_long_case_counts
from tests.cluster import program_cache
from tests.cluster.conftest import get_or_skip

Object = dict[str, Any]
CASES: Final = short_and_long_case_counts.of(300, 6_000)
LIFE_CYCLES: Final = short_and_long_case_counts.of(40, 1_000)
STEPS: Final = 8
"""Changes of slices in each life cycle."""
DRIVERS: Final = ("b.example.com", "a.example.com")
NODES: Final[list[Object]] = [
    {"metadata": {"name": name, "labels": {"zone": zone}}}
    for name, zone in (("n1", "z1"), ("n2", "z1"), ("n3", "z2"))
]
SELECTORS: Final = (
    'device.driver == "a.example.com"',
    'device.attributes["a.example.com"].model == "X"',
    "device.attributes[device.driver].?index.orValue(9) < 3",
    'device.capacity[device.driver].memory.isGreaterThan(quantity("10Gi"))',
    '"c.example.com" in device.attributes || device.allowMultipleAllocations',
    'has(device.attributes["z.example.com"].x)',
    'device.attributes[device.driver].version.compareTo(semver("1.2.0")) >= 0',
    "true",
)
CLASSES: Final = [
    {"metadata": {"name": "any"}, "spec": {}},
    {"metadata": {"name": "of-a"}, "spec": {"selectors": [{"cel": {"expression": SELECTORS[0]}}]}},
]
CONSTRAINED: Final = ("a.example.com/model", "b.example.com/index", "c.example.com/numa")


def _term(zone: str) -> Object:
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}


SCOPES: Final[list[Object]] = [
    *[{"nodeName": "n1"}] * 5,
    {"allNodes": True},
    {"nodeName": "n2"},
    *[{"nodeSelector": {"nodeSelectorTerms": [_term(zone)]}} for zone in ("z1", "z2")],
]


class Cases:
    """Builds random cases."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def maybe(self, share: float) -> bool:
        return self._random.random() < share

    def device(self, name: str, counters: bool) -> Object:
        pick = self._random.choice
        device: Object = {"name": name, "attributes": {}, "capacity": {}}
        if self.maybe(0.8):
            device["attributes"]["model"] = {"string": pick(["X", "Y"])}
        if self.maybe(0.8):
            device["attributes"]["index"] = {"int": pick([0, 1, 2, 5])}
        if self.maybe(0.6):
            device["attributes"]["c.example.com/numa"] = pick([{"int": 0}, {"int": 1}, {"bool": True}])
        device["attributes"]["version"] = {"version": pick(["1.2.3", "1.1.0", "1.2.0-rc.1"])}
        device["capacity"]["memory"] = {"value": pick(["8Gi", "16Gi", "80Gi"])}
        if self.maybe(0.3):
            device["allowMultipleAllocations"] = True
            policy = pick(
                [
                    None,
                    {"default": "1Gi", "validRange": {"min": "1Gi", "step": "2Gi"}},
                    {"default": "2Gi", "validValues": ["2Gi", "4Gi", "8Gi"]},
                    {"default": "1Gi", "validRange": {"min": "1Gi", "max": "6Gi"}},
                    {"default": "0", "validRange": {"min": "0", "step": "1Gi"}},
                ]
            )
            if policy:
                device["capacity"]["memory"]["requestPolicy"] = policy
        if self.maybe(0.2):
            effect = pick(["NoSchedule", "NoExecute", "None"])
            device["taints"] = [{"key": "sick", "value": pick(["", "a"]), "effect": effect}]
        if self.maybe(0.05):
            device["bindingConditions"], device["bindingFailureConditions"] = ["ready"], ["failed"]
        if counters and self.maybe(0.8):
            amount = {"units": {"value": pick(["1", "2", "4"])}}
            device["consumesCounters"] = [{"counterSet": "set", "counters": amount}]
        return device

    def slices(self) -> list[Object]:
        slices = []
        for driver in DRIVERS:
            for pool in self._random.sample(["p2", "p1"], self._random.randint(0, 2)):
                has_counters = self.maybe(0.3)
                parts = self._random.randint(1, 2)
                count = parts + has_counters + self.maybe(0.05)
                base = {
                    "driver": driver,
                    "pool": {"name": pool, "generation": 2, "resourceSliceCount": count},
                }
                for part in range(parts):
                    by_device = self.maybe(0.1)
                    devices = [
                        self.device(f"d{part}{at}", has_counters) for at in range(self._random.randint(1, 4))
                    ]
                    scope = self._random.choice(SCOPES)
                    if has_counters and self.maybe(0.3):
                        scope = {"nodeName": self._random.choice(["n1", "n2"])}
                    if by_device:
                        scope = {"perDeviceNodeSelection": True}
                        for device in devices:
                            device["nodeName"] = self._random.choice(["n1", "n2"])
                            # kube-scheduler evaluates selectors for devices of other nodes as well
                            device["attributes"]["model"] = {"string": "X"}
                    slices.append(
                        _slice(f"{driver[0]}-{pool}-{9 - part}", {**base, **scope, "devices": devices})
                    )
                if has_counters:
                    shared = [{"name": "set", "counters": {"units": {"value": "5"}}}]
                    slices.append(
                        _slice(f"{driver[0]}-{pool}-c", {**base, "nodeName": "n1", "sharedCounters": shared})
                    )
        self._random.shuffle(slices)
        return slices

    def form(self, *, is_alternative: bool) -> Object:
        pick = self._random.choice
        form: Object = {"deviceClassName": pick(["any", "any", "of-a"]), "allocationMode": "ExactCount"}
        if self.maybe(0.1):
            form["allocationMode"] = "All"
        else:
            form["count"] = pick([1, 1, 1, 2, 3])
        if self.maybe(0.4):
            form["selectors"] = [{"cel": {"expression": pick(SELECTORS)}}]
        if self.maybe(0.3):
            form["tolerations"] = [
                {"key": "sick", "operator": "Exists"},
                {"operator": "Equal", "value": "a"},
            ][: pick([1, 2])]
        if self.maybe(0.3):
            form["capacity"] = {"requests": {"memory": pick(["1Gi", "3Gi", "4Gi", "12Gi"])}}
        if not is_alternative and self.maybe(0.1):
            form["adminAccess"] = True
        return form

    def claim(self, number: int) -> Object:
        requests: list[Object] = []
        for at in range(self._random.choice([1, 1, 2, 3])):
            if self.maybe(0.25):
                alternatives: list[Object] = [
                    {"name": f"s{n}", **self.form(is_alternative=True)} for n in range(2)
                ]
                requests.append({"name": f"r{at}", "firstAvailable": alternatives})
            else:
                requests.append({"name": f"r{at}", "exactly": self.form(is_alternative=False)})
        constraints: list[Object] = []
        if self.maybe(0.3):
            kind = self._random.choice(["matchAttribute", "distinctAttribute"])
            names = self._random.choice([[], ["r0"], ["r0", "r1"], ["r0/s1", "r1"]])
            constraints.append({kind: self._random.choice(CONSTRAINED), "requests": names})
        meta = {"name": f"c{number}", "namespace": "default", "uid": f"u{number}"}
        return {"metadata": meta, "spec": {"devices": {"requests": requests, "constraints": constraints}}}

    def allocated(self, slices: list[Object]) -> list[Object]:
        results: list[Object] = []
        for item in slices:
            spec = item["spec"]
            for device in spec.get("devices", ()):
                if self.maybe(0.3):
                    result: Object = {"request": "r", "driver": spec["driver"], "pool": spec["pool"]["name"]}
                    result["device"] = device["name"]
                    if device.get("allowMultipleAllocations"):
                        result["shareID"] = f"00000000-0000-0000-0000-{len(results):012}"
                        if self.maybe(0.8):
                            result["consumedCapacity"] = {"memory": self._random.choice(["1Gi", "6Gi"])}
                    elif self.maybe(0.1):
                        result["adminAccess"] = True
                    results.append(result)
        meta = {"name": "others", "namespace": "default", "uid": "others"}
        return [{"metadata": meta, "status": {"allocation": {"devices": {"results": results}}}}]

    def case(self) -> Object:
        slices = self.slices()
        claims = [self.claim(number) for number in range(self._random.choice([1, 1, 2]))]
        return {
            "Node": NODES[0],
            "Slices": slices,
            "Classes": CLASSES,
            "Claims": claims,
            "Allocated": self.allocated(slices),
        }


class LifeCycle(Cases):
    """Drivers that add, replace and delete slices one after another, some of them with wrong counts of slices."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._slices: dict[str, Object] = {}

    def _new_slice(self) -> Object:
        pick = self._random.choice
        counts = {"generation": pick([1, 1, 1, 2]), "resourceSliceCount": pick([1, 1, 2, 3])}
        spec: Object = {"driver": pick(DRIVERS), "pool": {"name": pick(["p1", "p2"]), **counts}}
        if self.maybe(0.15):
            shared = {"name": pick(["set", "set", "set2"]), "counters": {"units": {"value": "5"}}}
            return {**spec, **pick(SCOPES), "sharedCounters": [shared]}
        names = self._random.sample(range(7), self._random.randint(0, 3))
        devices = [self.device(f"d{number}", self.maybe(0.2)) for number in names]
        for device in devices:
            device["attributes"].setdefault("model", {"string": "X"})
        scope = pick([*SCOPES, {"nodeName": "n3"}])
        if self.maybe(0.15):
            scope = {"perDeviceNodeSelection": True}
            for device in devices:
                device.update(pick([{"nodeName": "n1"}, {"nodeName": "n2"}, {"allNodes": True}]))
        return {**spec, **scope, "devices": devices}

    def _change(self) -> None:
        action, pick = self._random.random(), self._random.choice
        if action < 0.5 or not self._slices:
            self._slices[f"s{self._random.randint(0, 30):02}"] = self._new_slice()
            return
        name = pick(sorted(self._slices))
        spec = self._slices.pop(name)
        if action < 0.85:
            replaced = {"generation": spec["pool"]["generation"] + 1}
        else:
            replaced = {"resourceSliceCount": pick([1, 2])}
        if action >= 0.65:
            self._slices[name] = {**spec, "pool": {**spec["pool"], **replaced}}

    def step(self) -> Object:
        """The next case, whose node is to be added."""
        for _ in range(self._random.randint(1, 3)):
            self._change()
        slices = [_slice(name, spec) for name, spec in sorted(self._slices.items())]
        claims = [self.claim(number) for number in range(self._random.choice([1, 1, 2]))]
        allocated = self.allocated(slices)
        return {"Slices": slices, "Classes": CLASSES, "Claims": claims, "Allocated": allocated}


def _slice(name: str, spec: Object) -> Object:
    return {"metadata": {"name": name}, "spec": spec}


class FollowedObjects:
    """The inventory of slices and claims that change."""

    def __init__(self) -> None:
        self._builder = DeviceInventoryBuilder()
        self._slices: dict[Key, ResourceSlice] = {}
        self._claims: dict[Key, ResourceClaim] = {}

    def update(self, case: Object) -> DeviceInventory:
        slices = [parse_resource_slice(msgspec.convert(each, ResourceSliceObject)) for each in case["Slices"]]
        claims = [
            parse_resource_claim(msgspec.convert(each, ResourceClaimObject)) for each in case["Allocated"]
        ]
        before = self._slices, self._claims
        self._slices = {("", item.metadata.name): item for item in slices}
        self._claims = {("", f"{number}"): claim for number, claim in enumerate(claims)}
        changes = difference(before[0], self._slices).items(), difference(before[1], self._claims).items()
        return cooperative_scheduling.run_without_pauses(self._builder.update(*changes))


def predicted(case: Object, inventory: DeviceInventory) -> Any:
    """The request and device of each claim; the reason if they are not predicted; None if the claims do not fit."""
    node = case["Node"]["metadata"]
    of_node = inventory.of(node["name"], node["labels"])
    classes = [parse_device_class(msgspec.convert(each, DeviceClassObject)) for each in case["Classes"]]
    claims = [parse_resource_claim(msgspec.convert(each, ResourceClaimObject)) for each in case["Claims"]]
    by_name = {each.metadata.name: each for each in classes}
    use = device_inventory.device_use(of_node)
    prediction = device_allocation.predict_devices(of_node.pools, claims, by_name, use, device_matches)
    if prediction is None or isinstance(prediction, NotPredicted):
        return prediction
    listed: list[list[Any]] = [[] for _ in claims]
    for each in prediction:
        consumed = {name.partition("/")[2]: nano for name, nano in (each.consumed or EMPTY).items()}
        listed[each.claim].append((each.request, *each.device.id, each.is_admin_access, consumed))
    return listed


def allocated(answer: Object) -> Any:
    """The same of the Go program: the error, None, or the devices."""
    if answer["Error"]:
        return answer["Error"]
    if answer["Results"] is None:
        return None
    object_ = {"metadata": {"name": "c"}}
    claims = [
        parse_resource_claim(
            msgspec.convert({**object_, "status": {"allocation": each}}, ResourceClaimObject)
        )
        for each in answer["Results"]
    ]
    return [
        [
            (
                each.request,
                *each.device,
                each.is_admin_access,
                {name.partition("/")[2]: nano for name, nano in each.consumed_capacity.items()},
            )
            for each in claim.devices
        ]
        for claim in claims
    ]


def compared(actual: Any, ours: Any) -> tuple[str, bool]:
    """The kind of a result, and whether the prediction equals it."""
    if isinstance(actual, str):
        return "error", ours is None or isinstance(ours, NotPredicted)
    if isinstance(ours, NotPredicted):
        # an incomplete pool may still get the device that fits
        is_unknown = actual is None and ours.reason.startswith("pool ")
        return "not predicted", is_unknown or ours.reason.startswith("the search takes")
    return "does not fit" if actual is None else "fits", bool(ours == actual)


@pytest.fixture(scope="module")
def upstream(request: pytest.FixtureRequest) -> Iterator[Callable[[Object], Object]]:
    """Sends a case to the allocator of Kubernetes."""
    program = get_or_skip(request, program_cache.device_allocator)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def ask(case: Object) -> Object:
            stdin.write(json.dumps(case) + "\n")
            stdin.flush()
            answer: Object = json.loads(stdout.readline())
            return answer

        yield ask
        stdin.close()


def test_prediction_is_the_allocation_of_kubernetes(upstream: Callable[[Object], Object]) -> None:
    different, counts = [], Counter[str]()
    for seed in range(CASES):
        case = Cases(seed).case()
        actual, ours = allocated(upstream(case)), predicted(case, FollowedObjects().update(case))
        kind, is_equal = compared(actual, ours)
        counts[kind] += 1
        if not is_equal:
            different.append((seed, actual, ours))
    assert not different, f"{len(different)} of {CASES}, such as {different[:3]}"
    assert counts["fits"] > CASES // 4
    assert counts["does not fit"] > CASES // 8


def test_prediction_follows_pools_whose_slices_change(upstream: Callable[[Object], Object]) -> None:
    different, counts = [], Counter[str]()
    for seed in range(LIFE_CYCLES):
        life_cycle, followed = LifeCycle(seed), FollowedObjects()
        for step in range(STEPS):
            case = life_cycle.step()
            inventory = followed.update(case)
            for node in NODES:
                case["Node"] = node
                actual, ours = allocated(upstream(case)), predicted(case, inventory)
                kind, is_equal = compared(actual, ours)
                counts[kind] += 1
                if not is_equal:
                    different.append((seed, step, node["metadata"]["name"], actual, ours))
    assert not different, f"{len(different)} of {sum(counts.values())}, such as {different[:3]}"
    assert counts["fits"] > LIFE_CYCLES // 2
    assert counts["does not fit"] > LIFE_CYCLES
