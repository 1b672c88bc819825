"""Matches series of metrics with devices of DRA drivers. No I/O.

A series identifies a device by a label, whose value is that of an attribute in the device's ResourceSlice, or the name
of the device. A series of a node is compared with devices of this node only, because values such as an index or a PCI
address occur on every node. A series of a node without devices of the driver, or of no known node, counts only if the
values identify devices of all nodes, as UUIDs do. Several devices may have the value of one series: the partitions of a
GPU have its `parentUUID`.
"""

from collections import Counter
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.agent import NodeIndex
from nodewise.devices.device_taint_rules import comparable_identity, is_local_identity
from nodewise.devices.resource_slices import (
    DeviceId,
    ResourceSliceObject,
    SemanticVersion,
    parse_resource_slice,
    qualified_name,
)
from nodewise.metrics import aggregation
from nodewise.metrics.node_index import Numbers
from nodewise.metrics.series import NodeNames, Samples, Series, pack_samples
from nodewise.policies.placement_policy import Policy

_PART: Final = 256
"""Devices between two yields."""
_MAX_EXAMPLES: Final = 5
_Identity = tuple[str, str]
"""A node, empty for an unknown one, and a value of a label or an attribute."""

Attributes = Mapping[str, Sequence[str]]
"""By driver, the attributes that rules name."""


def attributes_of_rules(policies: Iterable[Policy]) -> dict[str, tuple[str, ...]]:
    """The attributes that the device rules of policies name, sorted."""
    drivers: dict[str, set[str]] = {}
    for policy in policies:
        for rule in policy.device_taints:
            drivers.setdefault(rule.driver, set()).update(filter(None, [rule.attribute]))
    return {driver: tuple(sorted(attributes)) for driver, attributes in sorted(drivers.items())}


class SliceDevices(msgspec.Struct, frozen=True, gc=False):
    """What is stored of a ResourceSlice."""

    metadata: Any
    driver: str
    pool: str
    generation: int
    names: tuple[str, ...] = ()
    """Of the devices; empty for drivers that no rule names."""
    nodes: tuple[str, ...] = ()
    """By device, its node; empty for a device of several nodes."""
    identities: tuple[tuple[str, ...], ...] = ()
    """By attribute that a rule names, in their order: its value in each device, comparable; empty without one."""
    attribute_names: frozenset[str] = frozenset()
    node: str = ""
    """The only node of the slice; empty for a slice of several nodes."""
    slice_count: int = 1
    """`ResourceSlice.slice_count`."""


def slice_devices(item: ResourceSliceObject, attributes: Attributes) -> SliceDevices:
    """What is stored of a slice."""
    parsed = parse_resource_slice(item)
    kept = SliceDevices(item.metadata, parsed.driver, parsed.pool, parsed.generation)
    if parsed.driver not in attributes:
        return kept
    names = {attribute for device in parsed.devices for attribute in device.attributes}
    return msgspec.structs.replace(
        kept,
        names=tuple(device.name for device in parsed.devices),
        nodes=tuple((device.scope or parsed.scope).node for device in parsed.devices),
        identities=tuple(
            tuple(
                _attribute_identity(device.attributes.get(qualified_name(parsed.driver, attribute)))
                for device in parsed.devices
            )
            for attribute in attributes[parsed.driver]
        ),
        attribute_names=frozenset(name.removeprefix(f"{parsed.driver}/") for name in names),
        node="" if parsed.has_scope_by_device else parsed.scope.node,
        slice_count=parsed.slice_count,
    )


def _attribute_identity(value: Any) -> str:
    """The value of an attribute as it is compared; empty for none, and for a type that identifies no device."""
    if isinstance(value, SemanticVersion):
        return value.text
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return comparable_identity(str(value))


class DeviceTable:
    """The devices of all drivers that rules name, by number, and those that are tainted and have no slice."""

    def __init__(self) -> None:
        self.index = NodeIndex()
        self.ids: list[DeviceId] = []
        self.nodes: list[str] = []
        self.present = 0
        """How many devices have a slice; these are the first ones."""
        self.is_present = np.zeros(1, bool)
        self.by_driver: dict[str, list[int]] = {}
        self._arrays: dict[str, Numbers] = {}
        self.identities: dict[tuple[str, str], list[str]] = {}
        """By driver and attribute, which is empty for the name: the values of the driver's devices, in their order."""
        self.is_global: dict[tuple[str, str], bool] = {}
        """Whether the values identify devices without their node."""
        self.attribute_names: dict[str, frozenset[str]] = {}
        """By driver, also of those that no rule names."""

    def numbers(self, driver: str) -> Numbers:
        """The devices of a driver that have a slice."""
        if driver not in self._arrays:
            self._arrays[driver] = np.array(self.by_driver.get(driver, ()), np.intp)
        return self._arrays[driver]

    def add_slice(self, item: SliceDevices, attributes: Sequence[str], known: set[DeviceId]) -> None:
        """Add the devices of a slice, without those in `known`, which are then added to it: a pool with two devices of
        one name is invalid.
        """
        ids = [DeviceId(item.driver, item.pool, name) for name in item.names]
        new = [at for at, device in enumerate(ids) if device not in known]
        known.update(ids)
        own = self.by_driver.setdefault(item.driver, [])
        own += range(len(self.ids), len(self.ids) + len(new))
        self.ids += [ids[at] for at in new]
        self.nodes += [item.nodes[at] for at in new]
        for attribute, values in zip(("", *attributes), (item.names, *item.identities), strict=True):
            self.identities.setdefault((item.driver, attribute), []).extend(values[at] for at in new)


class _Generations:
    """Which generation of a pool counts, by node. As in `PoolSlices.for_node` if each slice is for one node. A slice of
    several nodes counts as one of all nodes, because labels of nodes are not known here.
    """

    def __init__(self, listed: Iterable[SliceDevices]) -> None:
        self._newest: dict[tuple[str, str, str], int] = {}
        """By driver, pool and node, which is empty for slices of several nodes."""
        self._newest_of_pool: dict[tuple[str, str], int] = {}
        self._sizes: Counter[tuple[str, str, str, int]] = Counter()
        """The number of slices of a node and generation."""
        for item in listed:
            place, pool = (item.driver, item.pool, item.node), (item.driver, item.pool)
            self._newest[place] = max(self._newest.get(place, 0), item.generation)
            self._newest_of_pool[pool] = max(self._newest_of_pool.get(pool, 0), item.generation)
            self._sizes[*place, item.generation] += 1

    def counts(self, item: SliceDevices) -> bool:
        """Whether the slice is of the newest generation, or of a whole pool that its node sees without a newer one."""
        pool, place = (item.driver, item.pool), (item.driver, item.pool, item.node)
        if item.generation == self._newest_of_pool[pool]:
            return True
        newer = max(self._newest[place], self._newest.get((*pool, ""), 0)) > item.generation
        return not newer and self._sizes[*place, item.generation] == item.slice_count


def build_table(
    slices: Iterable[SliceDevices], attributes: Attributes, absent: Iterable[DeviceId]
) -> Generator[None, None, DeviceTable]:
    """The table of the generation of each pool that counts. `attributes` are those that rules name, by driver."""
    table = DeviceTable()
    # of a device in two generations, the newer one counts
    listed = sorted(slices, key=lambda item: -item.generation)
    generations = _Generations(listed)
    for item in listed:
        names = table.attribute_names.get(item.driver, frozenset())
        table.attribute_names[item.driver] = names | item.attribute_names
    yield
    known: set[DeviceId] = set()
    for item in listed:
        if item.driver in attributes and generations.counts(item):
            table.add_slice(item, attributes[item.driver], known)
            yield
    table.present = len(table.ids)
    table.ids += [device for device in absent if device not in known]
    table.nodes += [""] * (len(table.ids) - table.present)
    texts: list[str] = []
    for start in range(0, len(table.ids), _PART):
        texts += map(str, table.ids[start : start + _PART])
        yield
    table.index = NodeIndex(texts)
    table.is_present = np.arange(len(table.ids) + 1) < table.present
    yield
    for (driver, attribute), values in table.identities.items():
        table.is_global[driver, attribute] = yield from _identify_without_node(
            table, driver, attribute, values
        )
        yield
    return table


def _identify_without_node(
    table: DeviceTable, driver: str, attribute: str, values: Sequence[str]
) -> Generator[None, None, bool]:
    """Whether the values identify devices without their node. Names, indexes and PCI addresses do not, because those of
    few nodes may differ by chance. A device of no node, such as one of a fabric, is at the place of its pool.
    """
    numbers = table.by_driver[driver]
    if not attribute and any(table.nodes[number] for number in numbers):
        return False
    place_of: dict[str, str] = {}
    for position, (number, value) in enumerate(zip(numbers, values, strict=True)):
        place = table.nodes[number] or f"/{table.ids[number].pool}"
        if value and (is_local_identity(value) or place_of.setdefault(value, place) != place):
            return False
        if not position % _PART:
            yield
    return True


class SeriesMatch(NamedTuple):
    """Which sample of a series each device has."""

    names: NodeNames
    invalid: tuple[str, ...]
    """The names of the series without a valid value."""
    devices: NodeNames
    """The devices with a sample."""
    positions: Numbers
    """The samples of these devices."""
    rivals: Mapping[int, Sequence[int]]
    """By the first of them, several samples that identify the same device: those of an exporter that restarted with
    another address. The newest count."""
    devices_without: Mapping[str, str]
    """By name, the devices with a series without a valid value, and the name of that."""
    unmatched: tuple[str, ...]
    """Some values of the label that no device has, of nodes that have devices of the driver."""
    unmatched_count: int

    def by_device(  # complexity: steps in order, each with its pauses
        self, series: Series, aggregate: str
    ) -> Generator[None, None, Series]:
        """The series with the names of devices in place of those of samples. A device has no value if its newest
        samples are of one time and differ, unless the largest or the smallest one is requested.
        """
        samples = yield from pack_samples(series.samples)
        own, devices, positions = self.devices_without.items(), self.devices, self.positions
        invalid = {device: series.invalid[name] for device, name in own}
        differing = {device: series.differing[name] for device, name in own if name in series.differing}
        if self.rivals:
            counting = np.arange(len(samples.times))
            conflicts: dict[int, list[int]] = {}
            for number, (first, every) in enumerate(self.rivals.items()):
                newest = _newest_samples(samples, every)
                choose = min if aggregate == "min" else max
                counting[first] = choose(newest, key=samples.nano_values.__getitem__)
                if aggregate not in ("max", "min") and len(set(samples.nano_values[newest].tolist())) > 1:
                    conflicts[first] = newest
                if not number % _PART:
                    yield
            has_value = ~np.isin(positions, list(conflicts))
            for at in np.flatnonzero(~has_value).tolist():
                newest, device = conflicts[int(positions[at])], devices.names[at]
                entries = [samples[samples.names.names[position]] for position in newest]
                invalid[device] = aggregation.conflict_text(f"{len(newest)} series", "use a query")
                values = aggregation.differing_values(entries, aggregate)
                if values is not None:
                    differing[device] = values
                if not at % _PART:
                    yield
            if conflicts:
                devices = NodeNames(tuple(np.array(devices.names, object)[has_value].tolist()))
            positions = counting[positions[has_value]]
        return msgspec.structs.replace(
            series,
            samples=Samples(
                devices,
                samples.nano_values[positions],
                samples.times[positions],
                samples.windows_s[positions],
            ),
            invalid=invalid,
            differing=differing,
        )


def _newest_samples(samples: Samples, positions: Sequence[int]) -> list[int]:
    """The positions of the newest samples. One of an unknown time counts as just measured."""
    times = np.nan_to_num(samples.times[list(positions)], nan=np.inf, posinf=np.inf)
    return [position for position, time in zip(positions, times, strict=True) if time == times.max()]


def match_series(  # complexity: steps in order, each with its pauses
    names: NodeNames, invalid: tuple[str, ...], table: DeviceTable, driver: str, attribute: str
) -> Generator[None, None, SeriesMatch]:
    """Match the names of samples, and those of series without a valid value, with the devices of a driver."""
    all_names = (*names.names, *invalid)
    own_nodes = {table.nodes[number] for number in table.by_driver.get(driver, ())}
    positions, rivals = yield from _positions_by_identity(all_names, len(names.names), own_nodes)
    numbers: list[int] = []
    identities: list[_Identity] = []
    for number, identity in _identified_devices(positions, table, driver, attribute):
        numbers.append(number)
        identities.append(identity)
        if not len(numbers) % _PART:
            yield
    used = set(identities)
    yield
    left = [
        position
        for identity, position in positions.items()
        if identity not in used and (identity[0] or not used)
    ]
    yield
    found_at = [positions[identity] for identity in identities]
    yield
    of_devices, at = np.array(numbers, np.intp), np.array(found_at, np.intp)
    yield
    has_sample = at < len(names.names)
    devices = NodeNames(tuple(table.index.names[of_devices[has_sample]].tolist()))
    devices.set_numbers(table.index, of_devices[has_sample])
    without = zip(of_devices[~has_sample].tolist(), at[~has_sample].tolist(), strict=True)
    return SeriesMatch(
        names,
        invalid,
        devices,
        at[has_sample],
        rivals,
        {str(table.ids[number]): all_names[position] for number, position in without},
        tuple(all_names[position].partition("/")[2] for position in left[:_MAX_EXAMPLES]),
        len(left),
    )


def _positions_by_identity(
    names: Sequence[str], sample_count: int, own_nodes: Container[str]
) -> Generator[None, None, tuple[dict[_Identity, int], dict[int, list[int]]]]:
    """The positions of samples in `names`, and all positions of those that have one identity, by the first. A node
    without devices of the driver counts as unknown. From `sample_count` on, the names are of series without a valid
    value, which do not count beside a sample.
    """
    positions: dict[_Identity, int] = {}
    rivals: dict[int, list[int]] = {}
    for position, name in enumerate(names):
        node, _, value = name.partition("/")
        identity = node if node in own_nodes else "", comparable_identity(value)
        first = positions.setdefault(identity, position)
        if first != position < sample_count:
            rivals.setdefault(first, [first]).append(position)
        if not position % _PART:
            yield
    return positions, rivals


def _identified_devices(
    positions: Container[_Identity], table: DeviceTable, driver: str, attribute: str
) -> Iterator[tuple[int, _Identity]]:
    """The devices of a driver that a sample identifies: one of their node, or else one of no known node."""
    key = driver, attribute
    for number, value in zip(table.by_driver.get(driver, ()), table.identities.get(key, ()), strict=True):
        own, unknown = (table.nodes[number], value), ("", value)
        if value and own[0] and own in positions:
            yield number, own
        elif value and unknown in positions and table.is_global[key]:
            yield number, unknown
