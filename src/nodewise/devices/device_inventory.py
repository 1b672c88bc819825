"""The devices of all nodes and who holds them, kept up to date by changes of slices, claims and
DeviceTaintRules.

Only the nodes of changed pools and claims are computed again. The inventory equals one that is built from scratch, and
never changes once it was returned. An incomplete pool keeps the devices that are known, with its problem.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from nodewise.devices.device_allocation import DeviceUse
from nodewise.devices.device_taint_rules import DeviceTaintRule
from nodewise.devices.resource_claims import AllocatedDevice, ResourceClaim
from nodewise.devices.resource_slices import (
    EMPTY,
    Amounts,
    Device,
    DeviceId,
    NodeDevicePool,
    PoolId,
    PoolSlices,
    ResourceSlice,
    group_pool,
)
from nodewise.kube.store import Change, Key

DEVICE_CLASSES: Final = "device_classes"
RESOURCE_CLAIMS: Final = "resource_claims"
RESOURCE_SLICES: Final = "resource_slices"
DEVICE_TAINT_RULES: Final = "device_taint_rules"
"""Keys of `ClusterState.objects` in agents that read these kinds."""

DeviceState = Literal["free", "shared", "allocated", "unknown"]
"""`shared`: claims have a part of it, and others can have more; `unknown`: its pool is incomplete or invalid."""


class DeviceHolder(NamedTuple):
    """A claim that has a device, or a part of it."""

    claim: Key
    allocated: AllocatedDevice
    pods: tuple[str, ...]
    """The pods of the claim's namespace that may use the claim."""


class NodeDevices(NamedTuple):
    """The devices that one node can use."""

    pools: tuple[NodeDevicePool, ...] = ()
    """By driver and name."""
    holders: Mapping[DeviceId, tuple[DeviceHolder, ...]] = EMPTY
    """By device, the claims that have it; claims with admin access do not count as having it. Also of devices of other
    nodes that share a counter set with devices of this node."""
    taint_rules: Mapping[DeviceId, tuple[DeviceTaintRule, ...]] = EMPTY
    """By device, the DeviceTaintRules that taint it; by name."""

    def devices(self) -> list[Device]:
        """All of them, also those of incomplete pools."""
        return [device for each in self.pools for device in each.devices]

    def state(self, node_pool: NodeDevicePool, device: Device) -> DeviceState:
        holders = self.holders.get(device.id, ()) if self.holders else ()
        if not holders:
            return "unknown" if node_pool.pool.problem else "free"
        if not device.allow_multiple_allocations or not are_shares(holders):
            return "allocated"
        consumed = consumed_capacity(holders)
        is_full = any(
            consumed.get(name, 0) + each.smallest_request > each.value > 0
            for name, each in device.capacity.items()
        )
        return "allocated" if is_full else "shared"


def are_shares(holders: Iterable[DeviceHolder]) -> bool:
    """Whether all holders share the device. A claim that got it before its driver permitted this has it alone."""
    return all(each.allocated.share_id for each in holders)


def consumed_capacity(holders: Iterable[DeviceHolder]) -> Amounts:
    """The capacity of a device that its holders consume together, by qualified name."""
    consumed: Counter[str] = Counter()
    for holder in holders:
        consumed.update(holder.allocated.consumed_capacity)
    return consumed


def device_use(devices: NodeDevices) -> DeviceUse:
    """Which devices of a node are not free, and the taints of rules."""
    taken: set[DeviceId] = set()
    shared: dict[DeviceId, Amounts] = {}
    for device, holders in devices.holders.items():
        if are_shares(holders):
            shared[device] = consumed_capacity(holders)
        else:
            taken.add(device)
    taints = {
        device: tuple(rule.spec.taint for rule in rules) for device, rules in devices.taint_rules.items()
    }
    return DeviceUse(taken, shared, taints)


class DeviceInventory(NamedTuple):
    """The devices of all nodes."""

    nodes: Mapping[str, NodeDevices] = EMPTY
    """By node, the devices that only this node can use."""
    network_pools: tuple[PoolSlices, ...] = ()
    """Pools whose nodes are selected by labels, or all nodes."""
    network_holders: Mapping[DeviceId, tuple[DeviceHolder, ...]] = EMPTY
    """The holders of their devices."""
    network_taint_rules: Mapping[DeviceId, tuple[DeviceTaintRule, ...]] = EMPTY
    generation: int = 0
    """Grows with every change."""
    pools_generation: int = 0
    """Grows with every change of slices."""

    @property
    def network(self) -> NodeDevices:
        """The devices that several nodes can use."""
        pools = (NodeDevicePool(pool.newest, pool.newest_devices()) for pool in self.network_pools)
        return NodeDevices(tuple(pools), self.network_holders, self.network_taint_rules)

    def of(self, node: str, labels: Mapping[str, str] = EMPTY) -> NodeDevices:
        """All devices that a node can use."""
        own = self.nodes.get(node, _NO_DEVICES)
        pools = list(filter(None, (pool.for_node(node, labels) for pool in self.network_pools)))
        if not pools:
            return own
        ordered = sorted((*own.pools, *pools), key=lambda each: each.pool.id)
        return NodeDevices(
            tuple(ordered),
            {**own.holders, **self.network_holders},
            {**own.taint_rules, **self.network_taint_rules},
        )


_NO_DEVICES: Final = NodeDevices()
NO_INVENTORY: Final = DeviceInventory()


class _TaintRules:
    """The DeviceTaintRules, by device. Nearly all rules select one device."""

    def __init__(self) -> None:
        self._rules: dict[str, DeviceTaintRule] = {}
        """By name."""
        self._of_device: dict[DeviceId, tuple[DeviceTaintRule, ...]] = {}
        self._broad: tuple[DeviceTaintRule, ...] = ()
        """Rules that may select several devices, or have no selector and taint nothing."""

    def apply(self, changes: Iterable[tuple[Key, Change[DeviceTaintRule]]]) -> set[DeviceId] | None:
        """Apply changes; returns the devices that they concern. None: any, because a rule selects several."""
        changed: set[DeviceId | None] = set()
        for (_, name), change in changes:
            self._rules.pop(name, None)
            if change.new is not None:
                self._rules[name] = change.new
            changed |= {rule.device for rule in change if rule is not None}
        if not changed:
            return set()
        by_device: dict[DeviceId | None, list[DeviceTaintRule]] = {}
        for name in sorted(self._rules):
            by_device.setdefault(self._rules[name].device, []).append(self._rules[name])
        self._broad = tuple(by_device.pop(None, ()))
        self._of_device = {device: tuple(rules) for device, rules in by_device.items() if device is not None}
        devices = {device for device in changed if device is not None}
        return devices if len(devices) == len(changed) else None

    def by_device(self, devices: Iterable[DeviceId]) -> Mapping[DeviceId, tuple[DeviceTaintRule, ...]]:
        """The rules of these devices, without devices that no rule taints."""
        if not self._rules:
            return EMPTY
        rules = {
            device: (
                *self._of_device.get(device, ()),
                *(
                    rule
                    for rule in self._broad
                    if rule.spec.device_selector is not None and rule.spec.device_selector.selects(device)
                ),
            )
            for device in devices
        }
        return {device: of_device for device, of_device in rules.items() if of_device}


class DeviceInventoryBuilder:
    """Follows slices, claims and DeviceTaintRules. An update without changes costs nothing."""

    def __init__(self) -> None:
        self._slices: dict[PoolId, dict[str, ResourceSlice]] = {}
        self._pools: dict[PoolId, PoolSlices] = {}
        self._nodes_of_pool: dict[PoolId, frozenset[str] | None] = {}
        """None: pools of the network."""
        self._pools_of_node: dict[str, set[PoolId]] = {}
        self._consumers: dict[PoolId, Mapping[str, frozenset[DeviceId]]] = {}
        """By pool, `_consumers_elsewhere`."""
        self._holders: dict[PoolId, dict[DeviceId, tuple[DeviceHolder, ...]]] = {}
        self._rules = _TaintRules()
        self._nodes: dict[str, NodeDevices] = {}
        self._inventory = NO_INVENTORY

    def update(
        self,
        slices: Iterable[tuple[Key, Change[ResourceSlice]]],
        claims: Iterable[tuple[Key, Change[ResourceClaim]]],
        rules: Iterable[tuple[Key, Change[DeviceTaintRule]]] = (),
    ) -> Generator[None, None, DeviceInventory]:
        """Apply changes; the result is the same object if nothing changed."""
        pools = yield from self._apply_slices(slices)
        devices = yield from self._apply_claims(claims)
        tainted = self._rules.apply(rules)
        if not pools and not devices and tainted == set():
            return self._inventory
        nodes = {*self._nodes} if tainted is None else set()
        nodes |= self._nodes_of_devices(devices | (tainted or set()))
        for pool in pools:
            nodes |= self._rebuild_pool(pool)
            yield
        for node in nodes:
            self._rebuild_node(node)
            yield
        self._inventory = self._build_inventory(is_new_pools=bool(pools))
        return self._inventory

    def _build_inventory(self, *, is_new_pools: bool) -> DeviceInventory:
        network = sorted(pool for pool, of_pool in self._nodes_of_pool.items() if of_pool is None)
        pools = tuple(self._pools[pool] for pool in network)
        devices = (device.id for pool in pools for item in pool.every for device in item.devices)
        return DeviceInventory(
            dict(self._nodes),
            pools,
            {device: each for pool in network for device, each in self._holders.get(pool, {}).items()},
            self._rules.by_device(devices),
            self._inventory.generation + 1,
            self._inventory.pools_generation + is_new_pools,
        )

    def _apply_slices(
        self, changes: Iterable[tuple[Key, Change[ResourceSlice]]]
    ) -> Generator[None, None, set[PoolId]]:
        """The pools whose slices changed."""
        changed: set[PoolId] = set()
        for (_, name), change in changes:
            if change.old is not None:
                self._slices.get(change.old.pool_id, {}).pop(name, None)
                changed.add(change.old.pool_id)
            if change.new is not None:
                self._slices.setdefault(change.new.pool_id, {})[name] = change.new
                changed.add(change.new.pool_id)
            yield
        return changed

    def _apply_claims(
        self, changes: Iterable[tuple[Key, Change[ResourceClaim]]]
    ) -> Generator[None, None, set[DeviceId]]:
        """The devices whose holders changed."""
        changed: set[DeviceId] = set()
        for key, change in changes:
            for allocated in change.old.devices if change.old is not None else ():
                of_pool = self._holders.get(allocated.device.pool_id, {})
                left = tuple(each for each in of_pool.pop(allocated.device, ()) if each.claim != key)
                if left:
                    of_pool[allocated.device] = left
                changed.add(allocated.device)
            if change.new is not None:
                changed |= self._add_holders(key, change.new)
            yield
        return changed

    def _add_holders(self, key: Key, claim: ResourceClaim) -> set[DeviceId]:
        pods = tuple(each.name for each in claim.reserved_for if each.resource == "pods")
        held = [each for each in claim.devices if not each.is_admin_access]
        for allocated in held:
            of_pool = self._holders.setdefault(allocated.device.pool_id, {})
            holder = DeviceHolder(key, allocated, pods)
            of_pool[allocated.device] = (*of_pool.get(allocated.device, ()), holder)
        return {each.device for each in held}

    def _nodes_of_devices(self, devices: Iterable[DeviceId]) -> set[str]:
        """The nodes whose own devices include one of these."""
        names: dict[PoolId, set[str]] = {}
        for device in devices:
            names.setdefault(device.pool_id, set()).add(device.device)
        nodes: set[str] = set()
        for pool, of_pool in names.items():
            every = self._nodes_of_pool.get(pool) or frozenset()
            if len(every) <= 1:
                nodes |= every
                continue
            for item in self._pools[pool].every:
                nodes.update((each.scope or item.scope).node for each in item.devices if each.name in of_pool)
            for node, consumers in self._consumers.get(pool, EMPTY).items():
                if any(DeviceId(*pool, name) in consumers for name in of_pool):
                    nodes.add(node)
        return nodes

    def _rebuild_pool(self, pool: PoolId) -> set[str]:
        """The nodes whose devices of the pool may be different."""
        nodes_before = self._nodes_of_pool.pop(pool, None) or frozenset()
        for node in nodes_before:
            self._pools_of_node[node].discard(pool)
        slices, before = self._slices.get(pool), self._pools.pop(pool, None)
        if not slices:
            self._slices.pop(pool, None)
            self._consumers.pop(pool, None)
            return set(nodes_before)
        current = group_pool(slices.values())
        if before is not None and current.newest == before.newest:
            # nodes are compared with what they had, which is fast for one object
            current = current._replace(newest=before.newest)
        self._pools[pool], self._nodes_of_pool[pool] = current, current.nodes()
        nodes = self._nodes_of_pool[pool] or frozenset()
        self._consumers[pool] = _consumers_elsewhere(current.every)
        for node in nodes:
            self._pools_of_node.setdefault(node, set()).add(pool)
        # the holders of a node also depend on whether it is the only one
        if before is None or len(nodes_before) <= 1 or len(nodes) <= 1:
            return {*nodes_before, *nodes}
        return current.changed_nodes(before)

    def _rebuild_node(self, node: str) -> None:
        pools = sorted(self._pools_of_node.get(node, ()))
        if not pools:
            self._pools_of_node.pop(node, None)
        of_node = tuple(filter(None, (self._pools[pool].for_node(node, EMPTY) for pool in pools)))
        if not of_node:
            self._nodes.pop(node, None)
            return
        devices = [device.id for each in of_node for device in each.devices]
        holders = self._holders_of(node, pools, devices)
        rebuilt = NodeDevices(of_node, holders, self._rules.by_device(devices))
        if rebuilt != self._nodes.get(node):
            self._nodes[node] = rebuilt

    def _holders_of(
        self, node: str, pools: Iterable[PoolId], devices: Sequence[DeviceId]
    ) -> Mapping[DeviceId, tuple[DeviceHolder, ...]]:
        """The holders of the devices of a node, which are of these pools, and of devices whose counters it shares."""
        holders: dict[DeviceId, tuple[DeviceHolder, ...]] = {}
        for pool in pools:
            of_pool = self._holders.get(pool, {})
            # a claim keeps a device that its driver does not offer any more
            names = of_pool if len(self._nodes_of_pool[pool] or ()) == 1 else devices
            elsewhere = self._consumers.get(pool, EMPTY).get(node, ())
            holders |= {device: of_pool[device] for device in (*names, *elsewhere) if device in of_pool}
        return holders or EMPTY


def _consumers_elsewhere(slices: Sequence[ResourceSlice]) -> Mapping[str, frozenset[DeviceId]]:
    """By node, the devices that share a counter set with its own ones, for sets of devices of several nodes."""
    if not any(item.counter_sets for item in slices):
        return EMPTY
    nodes: dict[str, set[str]] = {}
    consumers: dict[str, set[DeviceId]] = {}
    for item in slices:
        for device in item.devices:
            for consumption in device.consumes_counters:
                nodes.setdefault(consumption.counter_set, set()).add((device.scope or item.scope).node)
                consumers.setdefault(consumption.counter_set, set()).add(device.id)
    by_node: dict[str, frozenset[DeviceId]] = {}
    for counter_set, of_set in nodes.items():
        devices = frozenset(consumers[counter_set])
        for node in of_set if len(of_set) > 1 else ():
            # nodes with one set have the same object, so that memory does not grow with the square of their number
            by_node[node] = by_node[node] | devices if node in by_node else devices
    return by_node
