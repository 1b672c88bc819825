"""The devices that DRA drivers offer in ResourceSlices, and which of them a node can use.

A driver divides its devices into pools, and a pool into slices of one generation. A pool is complete if all slices of
its newest generation exist; kube-scheduler allocates nothing from an incomplete pool, so its devices are unknown, not
absent. Pools of two drivers may have the same name. Source: Kubernetes 1.37 `resource/v1/types.go`, and `GatherPools`
in `dynamic-resource-allocation/structured/internal/stable/pools_stable.go`.

Objects of the API (`ResourceSliceObject`) are decoded from v1, v1beta2 and v1beta1, and stored as `ResourceSlice`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import quantity
from nodewise.base.quantity import Quantity

Amounts = Mapping[str, int]
"""Nano-units by name."""
EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


class SemanticVersion(NamedTuple):
    """A value of the attribute type `version`."""

    text: str


AttributeValue = int | bool | str | SemanticVersion | tuple[Any, ...] | None
"""The value of an attribute; None if its type is newer than nodewise."""


class DeviceObjectMetadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The metadata of DRA objects that are read."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class NodeRequirement(msgspec.Struct, frozen=True, gc=False):
    """A requirement on a label or field of a node."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None

    def is_met(self, value: str | None) -> bool:
        """Whether the value of the label meets it; None if the node does not have the label."""
        values = self.values or ()
        match self.operator:
            case "In":
                return value in values
            case "NotIn":
                return value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                try:
                    number, limit = int(value or ""), int(values[0])
                except (ValueError, IndexError):
                    return False
                return number > limit if self.operator == "Gt" else number < limit
        return False


class NodeSelectorTerm(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    match_expressions: tuple[NodeRequirement, ...] | None = None
    match_fields: tuple[NodeRequirement, ...] | None = None


class NodeSelector(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Selects nodes of which one term matches; an empty term matches no node."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return any(
            (term.match_expressions or term.match_fields)
            and all(each.is_met(labels.get(each.key)) for each in term.match_expressions or ())
            and all(
                each.is_met(name if each.key == "metadata.name" else None) for each in term.match_fields or ()
            )
            for term in self.node_selector_terms or ()
        )


class NodeScope(NamedTuple):
    """The nodes that can use the devices of a slice, or one device."""

    node: str = ""
    """The only node."""
    is_all_nodes: bool = False
    selector: NodeSelector | None = None

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        if self.node:
            return self.node == name
        return self.is_all_nodes or (self.selector is not None and self.selector.matches(name, labels))


class DeviceTaint(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    key: str
    effect: str
    """`NoSchedule`, `NoExecute` or `None`."""
    value: str = ""


class CapacityPolicy(NamedTuple):
    """How much of a capacity one request can consume, in nano-units."""

    default: int | None = None
    """Of a request that does not name the capacity; None: all of it."""
    valid_values: tuple[int, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    step: int | None = None


class DeviceCapacity(NamedTuple):
    value: int
    """Nano-units."""
    policy: CapacityPolicy | None = None

    @property
    def smallest_request(self) -> int:
        """The least that a request consumes: 0 if the policy permits this."""
        policy = self.policy or CapacityPolicy()
        amounts = list(policy.valid_values or (1,)) if policy.minimum is None else [policy.minimum]
        return min(amounts if policy.default is None else [*amounts, policy.default])


class CounterConsumption(NamedTuple):
    """The counters of a counter set that an allocated device consumes."""

    counter_set: str
    counters: Amounts
    compatibility_groups: tuple[str, ...] = ()


class PoolId(NamedTuple):
    driver: str
    pool: str


class DeviceId(NamedTuple):
    """The identity of a device in the cluster."""

    driver: str
    pool: str
    device: str

    @property
    def pool_id(self) -> PoolId:
        return PoolId(self.driver, self.pool)

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class Device(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A device of a slice. Names of attributes and capacities are qualified: `gpu.example.com/uuid`."""

    driver: str
    pool: str
    name: str
    attributes: Mapping[str, AttributeValue] = EMPTY
    capacity: Mapping[str, DeviceCapacity] = EMPTY
    consumes_counters: tuple[CounterConsumption, ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    """Those that the driver sets; DeviceTaintRules add others."""
    allow_multiple_allocations: bool = False
    binding_conditions: tuple[str, ...] = ()
    binds_to_node: bool = False
    scope: NodeScope | None = None
    """With `ResourceSlice.has_scope_by_device`."""

    @property
    def id(self) -> DeviceId:
        return DeviceId(self.driver, self.pool, self.name)


class ResourceSlice(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A slice of a pool, as it is stored."""

    metadata: DeviceObjectMetadata
    driver: str
    pool: str
    generation: int
    slice_count: int
    """The number of slices of the pool's generation."""
    scope: NodeScope
    devices: tuple[Device, ...] = ()
    has_scope_by_device: bool = False
    counter_sets: Mapping[str, Amounts] = EMPTY
    """By counter set, the counters that devices of the pool share."""

    @property
    def pool_id(self) -> PoolId:
        return PoolId(self.driver, self.pool)


class PoolCounters(NamedTuple):
    """The counters of the slices of a pool that count together."""

    slices: tuple[ResourceSlice, ...] = ()
    """Those with counter sets, or with devices that consume counters; the other fields depend only on these."""
    sets: Mapping[str, Amounts] = EMPTY
    """By counter set, its counters."""
    consumers: Mapping[DeviceId, Sequence[Device]] = EMPTY
    """The devices that consume counters. Devices for several nodes may have one name."""
    problem: str = ""
    """Why kube-scheduler 1.37 allocates no devices of the pool; empty if it does."""


class DevicePool(NamedTuple):
    """The slices of a pool that count together: those of its newest generation, or those that count for one node."""

    id: PoolId
    generation: int
    problem: str = ""
    """Why kube-scheduler allocates no devices of the pool, such as `1 of 2 slices`; empty if it does."""
    has_binding_conditions: bool = False
    """Whether a slice for the node has a device with binding conditions, also one for another node."""
    counters: PoolCounters = PoolCounters()


class NodeDevicePool(NamedTuple):
    """The devices of a pool that one node can use."""

    pool: DevicePool
    devices: tuple[Device, ...]
    """In the order of the slices."""


class PoolSlices(NamedTuple):
    """All slices of one pool.

    Which of them count depends on the node. kube-scheduler first takes the slices for the node, of the newest
    generation among these. If they are as many as the pool has slices, it reads no others: the node then keeps devices
    of an older generation, and of a pool with several nodes whose driver counts the slices of each node. Source:
    Kubernetes 1.37, GatherPools in
    `dynamic-resource-allocation/structured/internal/incubating/pools_incubating.go`.
    """

    id: PoolId
    every: tuple[ResourceSlice, ...]
    """By name."""
    newest: DevicePool
    """The newest generation."""
    newest_count: int
    """The number of slices of the newest generation."""
    of_node: Mapping[str, tuple[ResourceSlice, ...]]
    """By node, the slices whose nodes are all named, with devices for this node."""
    of_several: tuple[ResourceSlice, ...]
    """The other slices."""

    def nodes(self) -> frozenset[str] | None:
        """The nodes that can use its devices; None if that depends on labels of nodes."""
        return None if self.of_several else frozenset(self.of_node)

    def changed_nodes(self, before: "PoolSlices") -> set[str]:
        """The named nodes for which the pool may count in another way than before."""
        nodes = {*before.of_node, *self.of_node}
        if (self.newest, self.newest_count) != (before.newest, before.newest_count):
            return nodes
        return {node for node in nodes if self.of_node.get(node) != before.of_node.get(node)}

    def newest_devices(self) -> tuple[Device, ...]:
        """The devices of the newest generation, in the order of the slices."""
        return tuple(
            device
            for item in self.every
            if item.generation == self.newest.generation
            for device in item.devices
        )

    def for_node(self, node: str, labels: Mapping[str, str]) -> NodeDevicePool | None:
        """The pool as it counts for a node; None if it does not concern the node."""
        own = self._newest_for(node, labels)
        if not own:
            return None
        # kube-scheduler lists the slices for only this node first
        first = min(own, key=lambda item: (not _is_for_one_node(item), _slice_name(item)))
        is_whole, is_newest = len(own) == first.slice_count, first.generation == self.newest.generation
        if is_newest and (not is_whole or len(own) == self.newest_count):
            count, counters = self.newest_count, self.newest.counters
        elif is_whole:
            count, counters = len(own), _gather_counters(own)
        else:
            return None
        pool = _build_pool(own, count, first.slice_count, counters)
        devices = tuple(device for item in own for device in _devices_for(item, node, labels))
        return NodeDevicePool(self.newest if pool == self.newest else pool, devices)

    def _newest_for(self, node: str, labels: Mapping[str, str]) -> list[ResourceSlice]:
        """The slices for a node of their newest generation, by name."""
        own = list(self.of_node.get(node, ()))
        for item in self.of_several:
            is_own = (
                _devices_for(item, node, labels)
                if item.has_scope_by_device
                else item.scope.matches(node, labels)
            )
            own += [item] if is_own else []
        generation = max((item.generation for item in own), default=0)
        return sorted((item for item in own if item.generation == generation), key=_slice_name)


def group_pool(slices: Iterable[ResourceSlice]) -> PoolSlices:
    """Group the slices of one pool; at least one slice."""
    every = tuple(sorted(slices, key=_slice_name))
    generation = max(item.generation for item in every)
    newest = [item for item in every if item.generation == generation]
    of_node: dict[str, list[ResourceSlice]] = {}
    of_several = []
    for item in every:
        scopes = _scopes(item)
        if all(scope.node for scope in scopes):
            for node in {scope.node for scope in scopes}:
                of_node.setdefault(node, []).append(item)
        else:
            of_several.append(item)
    # if the driver counts the slices of each node, no node reads the counters of all slices
    is_whole = any(item.slice_count == len(newest) for item in newest)
    counters = _gather_counters(newest) if is_whole else PoolCounters()
    pool = _build_pool(newest, len(newest), newest[0].slice_count, counters)
    by_node = {node: tuple(items) for node, items in of_node.items()}
    return PoolSlices(pool.id, every, pool, len(newest), by_node, tuple(of_several))


def _gather_counters(slices: Iterable[ResourceSlice]) -> PoolCounters:
    """The counters of slices that count together."""
    concerned = tuple(
        item
        for item in slices
        if item.counter_sets or any(device.consumes_counters for device in item.devices)
    )
    if not concerned:
        return PoolCounters()
    sets = {name: counters for item in concerned for name, counters in item.counter_sets.items()}
    devices = [device for item in concerned for device in item.devices if device.consumes_counters]
    consumers: dict[DeviceId, list[Device]] = {}
    for device in devices:
        consumers.setdefault(device.id, []).append(device)
    return PoolCounters(concerned, sets, consumers, _counter_problem(concerned, sets, devices))


def _counter_problem(
    slices: Iterable[ResourceSlice], sets: Mapping[str, Amounts], devices: Iterable[Device]
) -> str:
    """Why kube-scheduler 1.37 allocates no devices of a pool with these counters and consumers; empty if it does."""
    if len(sets) < sum(len(item.counter_sets) for item in slices):
        return "found two counter sets of one name"
    for device in devices:
        for each in device.consumes_counters:
            if each.compatibility_groups:
                return "found compatibility groups, which need an alpha feature"
            if not each.counters.keys() <= sets.get(each.counter_set, EMPTY).keys():
                return f"device {device.name} has a counter that the pool does not have"
    return ""


def _build_pool(
    own: Sequence[ResourceSlice], count: int, expected: int, counters: PoolCounters
) -> DevicePool:
    """The pool with `count` slices of one generation, of which `own` are for the node."""
    devices = [device.name for item in own for device in item.devices]
    if count != expected:
        problem = f"found {count} of {expected} slices of generation {own[0].generation}"
    elif len(set(devices)) < len(devices):
        problem = "found two devices of one name"
    else:
        problem = counters.problem
    is_conditional = any(device.binding_conditions for item in own for device in item.devices)
    return DevicePool(own[0].pool_id, own[0].generation, problem, is_conditional, counters)


def _slice_name(item: ResourceSlice) -> str:
    return item.metadata.name


def _is_for_one_node(item: ResourceSlice) -> bool:
    return bool(item.scope.node) and not item.has_scope_by_device


def _devices_for(item: ResourceSlice, node: str, labels: Mapping[str, str]) -> Iterable[Device]:
    """The devices of a slice for a node; all of them if the slice is for the node as a whole."""
    if not item.has_scope_by_device:
        return item.devices
    return [each for each in item.devices if each.scope and each.scope.matches(node, labels)]


def _scopes(item: ResourceSlice) -> list[NodeScope]:
    if item.has_scope_by_device:
        return [device.scope or NodeScope() for device in item.devices]
    return [item.scope]


# Objects of the API, with the fields of all versions


class _Attribute(msgspec.Struct, frozen=True, gc=False, rename="lower"):
    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None


class _PolicyRange(msgspec.Struct, frozen=True, gc=False):
    min: Quantity = None
    max: Quantity = None
    step: Quantity = None


class _CapacityPolicy(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    default: Quantity = None
    valid_values: tuple[Quantity, ...] | None = None
    valid_range: _PolicyRange | None = None


class _Amount(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A capacity or a counter."""

    value: Quantity = None
    request_policy: _CapacityPolicy | None = None


class _Consumption(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    counter_set: str = ""
    counters: dict[str, _Amount] | None = None
    compatibility_groups: tuple[str, ...] | None = None


class _CounterSet(msgspec.Struct, frozen=True, gc=False):
    name: str
    counters: dict[str, _Amount] | None = None


class _DeviceFields(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    attributes: dict[str, _Attribute] | None = None
    capacity: dict[str, _Amount] | None = None
    consumes_counters: tuple[_Consumption, ...] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] | None = None
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] | None = None
    allow_multiple_allocations: bool | None = None


class _Device(_DeviceFields, frozen=True, gc=False, kw_only=True, rename="camel"):
    name: str
    basic: _DeviceFields | None = None
    """All other fields, in v1beta1."""


class _PoolFields(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str
    generation: int = 0
    resource_slice_count: int = 1


class _SliceSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    driver: str
    pool: _PoolFields
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    devices: tuple[_Device, ...] | None = None
    per_device_node_selection: bool | None = None
    shared_counters: tuple[_CounterSet, ...] | None = None


class ResourceSliceObject(msgspec.Struct, frozen=True, gc=False):
    """A ResourceSlice of the API, of any version."""

    metadata: DeviceObjectMetadata
    spec: _SliceSpec


def parse_resource_slice(item: ResourceSliceObject, *, has_attributes: bool = True) -> ResourceSlice:
    """The slice as it is stored. Values that many devices share are one object in all of them.

    Without attributes, which only selectors and constraints read, this takes less time.
    """
    spec = item.spec
    driver, pool = intern(spec.driver), intern(spec.pool.name)
    return ResourceSlice(
        metadata=item.metadata,
        driver=driver,
        pool=pool,
        generation=spec.pool.generation,
        slice_count=spec.pool.resource_slice_count,
        scope=_scope(spec),
        devices=tuple(
            _parse_device(driver, pool, device, bool(spec.per_device_node_selection), has_attributes)
            for device in spec.devices or ()
        ),
        has_scope_by_device=bool(spec.per_device_node_selection),
        counter_sets={each.name: _amounts(each.counters) for each in spec.shared_counters or ()} or EMPTY,
    )


def _scope(fields: _SliceSpec | _DeviceFields) -> NodeScope:
    return NodeScope(intern(fields.node_name or ""), bool(fields.all_nodes), fields.node_selector)


def _parse_device(  # complexity: one expression for each field
    driver: str, pool: str, item: _Device, by_device: bool, has_attributes: bool
) -> Device:
    fields = item if item.basic is None else item.basic
    attributes = fields.attributes if has_attributes else None
    return Device(
        driver=driver,
        pool=pool,
        name=intern(item.name),
        attributes={
            _qualified(driver, name): _attribute_value(attribute) for name, attribute in attributes.items()
        }
        if attributes
        else EMPTY,
        capacity=_shared_map(
            tuple(
                (
                    _qualified(driver, name),
                    DeviceCapacity(parse_amount(amount.value), _policy(amount.request_policy)),
                )
                for name, amount in (fields.capacity or EMPTY).items()
            )
        ),
        consumes_counters=tuple(
            CounterConsumption(
                intern(each.counter_set), _amounts(each.counters), each.compatibility_groups or ()
            )
            for each in fields.consumes_counters or ()
        ),
        taints=fields.taints or (),
        allow_multiple_allocations=bool(fields.allow_multiple_allocations),
        binding_conditions=fields.binding_conditions or (),
        binds_to_node=bool(fields.binds_to_node),
        scope=_scope(fields) if by_device else None,
    )


def qualified_name(driver: str, name: str) -> str:
    """The name of an attribute or capacity with its domain, which is the driver's unless the name has another."""
    return intern(name if "/" in name else f"{driver}/{name}")


_qualified = lru_cache(4096)(qualified_name)


def _attribute_value(
    attribute: _Attribute,
) -> AttributeValue:  # complexity: one step for each type of a value
    value: AttributeValue = attribute.string
    if value is None:
        value = attribute.int_
    if value is None:
        value = attribute.bool_
    if value is None and attribute.version is not None:
        value = SemanticVersion(attribute.version)
    if value is None and attribute.versions is not None:
        value = tuple(map(SemanticVersion, attribute.versions))
    if value is None:
        lists = (attribute.strings, attribute.ints, attribute.bools)
        value = next((each for each in lists if each is not None), None)
    return _shared(value)


def _same(value: AttributeValue) -> AttributeValue:
    return value


_shared: Callable[[AttributeValue], AttributeValue] = lru_cache(4096, typed=True)(_same)
"""Returns the same object for equal values, which devices have in common."""


@lru_cache(4096)
def _shared_map(items: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    return MappingProxyType(dict(items)) if items else EMPTY


def _amounts(amounts: Mapping[str, _Amount] | None) -> Amounts:
    return _shared_map(
        tuple((intern(name), parse_amount(each.value)) for name, each in (amounts or EMPTY).items())
    )


def _policy(policy: _CapacityPolicy | None) -> CapacityPolicy | None:
    if policy is None:
        return None
    limits = policy.valid_range or _PolicyRange()
    default, minimum, maximum, step = (
        None if each is None else parse_amount(each)
        for each in (policy.default, limits.min, limits.max, limits.step)
    )
    values = tuple(parse_amount(value) for value in policy.valid_values or ())
    return CapacityPolicy(default, values, minimum, maximum, step)


@lru_cache(4096)
def parse_amount(amount: Quantity) -> int:
    """Nano-units without the limit of `quantity.nano`, since memory of devices is larger. 0 if it is invalid."""
    try:
        return quantity.parse(str(amount))
    except ValueError:
        return 0
