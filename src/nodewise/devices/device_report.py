"""What `nodewise devices` and the metrics report: states and taints of devices, and which claims still fit.

A claim of N devices fits a node if kube-scheduler would allocate N of its devices, without tolerations. Where devices
are shared or partitioned, its allocator is predicted (`device_allocation`); elsewhere free devices are counted.
Fragmentation is the share of the free devices that claims of a size cannot use, because too few are on one node.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from nodewise.devices.device_allocation import (
    DeviceUse,
    NotPredicted,
    blocked_devices,
    predict_devices,
)
from nodewise.devices.device_inventory import (
    DeviceHolder,
    DeviceInventory,
    NodeDevices,
    are_shares,
    consumed_capacity,
    device_use,
)
from nodewise.devices.device_selectors import device_matches
from nodewise.devices.device_taint_rules import DeviceTaintRule
from nodewise.devices.resource_claims import ClaimRequest, DeviceClass, DeviceRequest, ResourceClaim
from nodewise.devices.resource_slices import Amounts, Device, DeviceId, DeviceObjectMetadata, DeviceTaint

REPELLING: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep claims away."""
MOST_CLAIMS: Final = 128
"""The most claims that are counted on one node whose devices are shared or partitioned."""

ReportedState = Literal["free", "shared", "allocated", "blocked", "unknown"]
"""`blocked`: another partition has taken the counters of a free device."""


class ReportedTaint(NamedTuple):
    owner: str
    """Who maintains it: `driver`, `policy NAME`, or `rule NAME` for other DeviceTaintRules."""
    reason: str
    """Empty if it is not known."""
    taint: DeviceTaint


class ReportedDevice(NamedTuple):
    """A device with all that is known of it."""

    device: Device
    state: ReportedState
    holders: tuple[DeviceHolder, ...]
    taints: tuple[ReportedTaint, ...]
    """Those of the driver first."""
    is_tainted: bool
    """Whether a taint keeps claims without tolerations away."""
    is_selected: bool
    """Whether it matches the selected class; False if that is not known."""
    is_available: bool
    """Whether a new claim of the selected class can get it, or a part of it."""

    def free_capacity(self) -> Amounts:
        """The capacity that is left, by qualified name, in nano-units; nothing of a device that a claim has alone."""
        is_shared = self.device.allow_multiple_allocations and self.holders and are_shares(self.holders)
        if self.state not in ("free", "shared") and not is_shared:
            return dict.fromkeys(self.device.capacity, 0)
        consumed = consumed_capacity(self.holders)
        return {name: each.value - consumed.get(name, 0) for name, each in self.device.capacity.items()}


class NodeReport(NamedTuple):
    node: str
    devices: tuple[ReportedDevice, ...]
    problems: tuple[str, ...]
    """Why devices of pools are unknown."""
    node_devices: NodeDevices


def report_node(node: str, node_devices: NodeDevices, device_class: DeviceClass | None = None) -> NodeReport:
    """Report the devices of a node; with a class, only those that match it or may match it."""
    blocked: frozenset[DeviceId] = frozenset()
    if any(each.pool.counters.sets for each in node_devices.pools):
        blocked = frozenset(blocked_devices(node_devices.pools, device_use(node_devices)))
    devices = []
    for node_pool in node_devices.pools:
        for device in node_pool.devices:
            is_matching = _is_matching(device, device_class)
            if is_matching is not False:
                state: ReportedState = node_devices.state(node_pool, device)
                device_id = device.id
                state = "blocked" if state == "free" and device_id in blocked else state
                holders = node_devices.holders.get(device_id, ())
                rules = node_devices.taint_rules.get(device_id, ())
                devices.append(_report_device(device, state, holders, rules, is_selected=bool(is_matching)))
    problems = tuple(
        f"pool {each.pool.id.driver}/{each.pool.id.pool}: {each.pool.problem}"
        for each in node_devices.pools
        if each.pool.problem
    )
    return NodeReport(node, tuple(devices), problems, node_devices)


def _report_device(
    device: Device,
    state: ReportedState,
    holders: tuple[DeviceHolder, ...],
    rules: tuple[DeviceTaintRule, ...],
    *,
    is_selected: bool,
) -> ReportedDevice:
    own = (ReportedTaint("driver", "", taint) for taint in device.taints)
    of_rules = (
        ReportedTaint(
            f"policy {rule.policy_label}" if rule.policy_label else f"rule {rule.metadata.name}",
            rule.reason,
            rule.spec.taint,
        )
        for rule in rules
    )
    every = (*own, *of_rules)
    is_tainted = any(each.taint.effect in REPELLING for each in every)
    is_available = is_selected and state in ("free", "shared") and not is_tainted
    return ReportedDevice(device, state, holders, every, is_tainted, is_selected, is_available)


def _is_matching(device: Device, device_class: DeviceClass | None) -> bool | None:
    if device_class is None:
        return True
    results = [device_matches(expression, device) for expression in device_class.selectors]
    return False if False in results else None if None in results else True


class ClaimFit(NamedTuple):
    """How many claims of a size all nodes together can still get."""

    devices: int
    """The size of a claim."""
    claims: int
    nodes: int
    """The nodes that have room for at least one."""
    fragmentation: float
    """The share of the free devices that such claims cannot use: from 0 to 1."""


class ClaimCounter:
    """Counts the claims that fit nodes. Nodes with equal devices are counted once."""

    def __init__(self) -> None:
        self._counts: dict[tuple[object, ...], int] = {}

    def fitting(self, report: NodeReport, devices: int) -> int:
        """The number of claims of so many devices of one driver that the node can still get, one after another."""
        available = [each for each in report.devices if each.is_available]
        if not any(
            each.device.allow_multiple_allocations or each.device.consumes_counters for each in available
        ):
            by_driver = Counter(each.device.driver for each in available)
            return sum(count // devices for count in by_driver.values())
        # values of devices are shared objects, which live as long as the report
        key = (devices, *(_shape(each) for each in report.devices))
        if key not in self._counts:
            self._counts[key] = sum(
                self._predict(report, available, driver, devices)
                for driver in sorted({each.device.driver for each in available})
            )
        return self._counts[key]

    def _predict(
        self, report: NodeReport, available: Sequence[ReportedDevice], driver: str, devices: int
    ) -> int:
        allowed = frozenset(each.device.id for each in available)
        pools = [
            each._replace(devices=tuple(device for device in each.devices if device.id in allowed))
            for each in report.node_devices.pools
            if each.pool.id.driver == driver
        ]
        request = DeviceRequest("devices", "", count=devices)
        claim = ResourceClaim(
            metadata=DeviceObjectMetadata(""), requests=(ClaimRequest("devices", (request,)),)
        )
        classes = {"": DeviceClass(metadata=DeviceObjectMetadata(""))}
        use = device_use(report.node_devices)
        taken, shared = set(use.taken), dict(use.shared)
        for count in range(MOST_CLAIMS):
            predicted = predict_devices(pools, [claim], classes, DeviceUse(taken, shared), device_matches)
            if isinstance(predicted, NotPredicted) or not predicted:
                return count
            for each in predicted:
                if each.consumed is None:
                    taken.add(each.device.id)
                else:
                    shared[each.device.id] = Counter(shared.get(each.device.id, {})) + Counter(each.consumed)
        return MOST_CLAIMS

    def summarize(self, reports: Iterable[NodeReport], sizes: Iterable[int]) -> list[ClaimFit]:
        """The claims of these sizes that fit all nodes together."""
        of_nodes = list(reports)
        free = sum(each.is_available for report in of_nodes for each in report.devices)
        fits = []
        for size in sizes:
            counts = [self.fitting(report, size) for report in of_nodes]
            claims = sum(counts)
            usable = sum(
                min(count * size, sum(each.is_available for each in report.devices))
                for count, report in zip(counts, of_nodes, strict=True)
                if count
            )
            fits.append(ClaimFit(size, claims, sum(map(bool, counts)), 1 - usable / free if free else 0.0))
        return fits


def _shape(each: ReportedDevice) -> tuple[object, ...]:
    """What of a device the number of claims depends on."""
    counters = tuple((use.counter_set, id(use.counters)) for use in each.device.consumes_counters)
    left = tuple(sorted(each.free_capacity().items()))
    return each.device.driver, each.is_available, each.state, id(each.device.capacity), counters, left


def claim_sizes(reports: Iterable[NodeReport]) -> list[int]:
    """Powers of two up to the number of devices of the largest node."""
    largest = max((len(report.devices) for report in reports), default=0)
    return [1 << power for power in range(largest.bit_length())]


def count_states(reports: Iterable[NodeReport]) -> Mapping[str, int]:
    """The number of devices by state, and `tainted` ones; a free device that is tainted counts only as such."""
    counts: Counter[str] = Counter()
    for report in reports:
        for each in report.devices:
            counts["tainted"] += each.is_tainted
            counts[each.state] += not (each.is_tainted and each.state == "free")
    return counts


class DeviceGroup(NamedTuple):
    """The labels of a metric of devices."""

    driver: str
    """Empty for the devices of all drivers beyond the first ones."""
    device_class: str
    """Empty for devices that match no class."""
    state: ReportedState | Literal["tainted"]
    """A tainted device counts twice: by its state, and as tainted."""


_MOST_GROUPS: Final = 200


class DeviceCounter:
    """Counts devices by driver, class and state, for metrics. Only changed nodes are counted again."""

    def __init__(self) -> None:
        self._classes: tuple[DeviceClass, ...] = ()
        self._counted: dict[str, tuple[NodeDevices, Counter[DeviceGroup]]] = {}
        self._total: Counter[DeviceGroup] = Counter()

    def update(
        self, inventory: DeviceInventory, classes: Iterable[DeviceClass]
    ) -> Generator[None, None, Mapping[DeviceGroup, int]]:
        """The number of devices of all nodes; groups without devices are left out.

        A device counts for the first class by name that it matches, those without selectors last.
        """
        every = tuple(sorted(classes, key=lambda each: (not each.selectors, each.metadata.name)))
        if every != self._classes:
            self._classes, self._counted, self._total = every, {}, Counter()
        for node in self._counted.keys() - {*inventory.nodes, ""}:
            self._total.subtract(self._counted.pop(node)[1])
        for node, devices in [*inventory.nodes.items(), ("", inventory.network)]:
            yield
            before, counts = self._counted.get(node, (None, Counter[DeviceGroup]()))
            if before is not devices and before != devices:
                self._total.subtract(counts)
                counts = self._count(report_node(node, devices))
                self._counted[node] = devices, counts
                self._total.update(counts)
        self._total = +self._total
        return self._total

    def _count(self, report: NodeReport) -> Counter[DeviceGroup]:
        counts: Counter[DeviceGroup] = Counter()
        for each in report.devices:
            name = next(
                (known.metadata.name for known in self._classes if _is_matching(each.device, known)), ""
            )
            group = DeviceGroup(each.device.driver, name, each.state)
            if group not in self._total and group not in counts and len(self._total) >= _MOST_GROUPS:
                group = DeviceGroup("", "", each.state)
            counts[group] += 1
            counts[group._replace(state="tainted")] += each.is_tainted
        return counts
