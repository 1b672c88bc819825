"""`nodewise devices`: lists the devices of DRA drivers, who has them, and which claims still fit."""

import asyncio
import gc
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple

import click
import msgspec

from nodewise.agent import ObjectKey, Watched
from nodewise.agents.gpu import watched_devices
from nodewise.base import cooperative_scheduling, quantity
from nodewise.base.errors import BadSettings, Problem, Refused, counted, did_you_mean, shown
from nodewise.base.option import Argument, Option
from nodewise.cli import terminal_output
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, settings_command
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.cli.terminal_output import Progress
from nodewise.devices import device_report, resource_claims, resource_slices
from nodewise.devices.device_inventory import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceHolder,
    DeviceInventory,
    DeviceInventoryBuilder,
    NodeDevices,
)
from nodewise.devices.device_report import ClaimCounter, ClaimFit, NodeReport, ReportedDevice, ReportedTaint
from nodewise.devices.resource_claims import DeviceClass
from nodewise.engine import object_feed
from nodewise.kube import object_files, resource_kinds
from nodewise.kube.api_client_creation import open_api
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.http_client import HttpApi
from nodewise.kube.resource_kinds import NODES, selector
from nodewise.kube.store import Change
from nodewise.observe import logs

_NODES: Final = "nodes"
_NETWORK: Final = "(network)"  # instead of a node, for the devices that several nodes can use
_UNREADABLE: Final[Mapping[ObjectKey, Any]] = MappingProxyType({})
_LISTED: Final = 200  # nodes in a table; -o json and -o wide list all


class DevicesOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise devices`."""

    node: Annotated[str, Argument(metavar="[NODE]", is_required=False)] = ""

    objects_from: Annotated[tuple[str, ...], Option("--objects-from", metavar="FILE")] = ()
    """File or folder with ResourceSlices, ResourceClaims, DeviceClasses and DeviceTaintRules, instead of a cluster;
    - is standard input."""

    claim: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Show which nodes still have room for a claim of so many devices."""

    device_class: Annotated[str, Option("--class", metavar="NAME")] = ""
    """Only devices of this DeviceClass."""

    output: Annotated[Literal["table", "wide", "json"], Option("-o --output")] = "table"
    """Output format; wide has one row for each device."""


class NodeLabels(msgspec.Struct, frozen=True, gc=False):
    """The metadata of a node that selectors of devices read."""

    name: str
    namespace: str = ""
    labels: dict[str, str] | None = None


class NodeWithLabels(msgspec.Struct, frozen=True, gc=False):
    """A node without spec and status."""

    metadata: NodeLabels


_WATCHED: Final = (
    *(
        watched._replace(is_optional=False)
        for watched in watched_devices()
        if watched.name != RESOURCE_CLAIMS
    ),
    Watched(
        RESOURCE_CLAIMS,
        resource_kinds.RESOURCE_CLAIMS,
        resource_claims.AllocatedClaimObject,
        resource_claims.parse_allocated_claim,
    ),
    Watched(_NODES, NODES, NodeWithLabels),
)
"""A kind that is not served or refused is reported here."""

Objects = Mapping[str, Mapping[ObjectKey, Any]]
"""By the name in `Watched`."""


class DeviceList(NamedTuple):
    """What the command prints."""

    reports: Sequence[NodeReport]
    """By name of the node."""
    fits: Sequence[ClaimFit]
    claims: Mapping[str, int]
    """With --claim, by node, how many such claims fit."""


@settings_command(
    "devices",
    DevicesOptions,
    ClusterOptions,
    short_help="List devices of DRA drivers, their holders and taints, and the claims that fit.",
)
def command(command_line: CommandLine) -> None:
    """List the devices of drivers for Dynamic Resource Allocation (DRA): how many each node has, which are free, which
    claims have the others, and their taints.

    The last lines count the claims that still fit, by size, and which share of the free devices such claims cannot use,
    because too few of them are on one node. With NODE, or -o wide, each device is listed, with its claims, pods, free
    capacity and taints. Devices of an incomplete pool are unknown: kube-scheduler allocates none of them. Devices that
    several nodes can use are listed under (network). Devices of a device plugin are not listed. Nothing is written.

    \b
    Examples:
      nodewise devices
      nodewise devices gpu-node-7
      nodewise devices --claim 4 --class gpu.example.com
      kubectl get resourceslices,resourceclaims,deviceclasses -A -o json |
        nodewise devices --objects-from - -o json

    \b
    Exit codes:
      0  listed
      1  a file or the cluster cannot be read
      2  the command line is invalid
      3  NODE has no devices, or with --claim, no node has room for the claim
    """
    logs.configure("error", "messages")
    own = command_line.settings(DevicesOptions)
    gc.disable()  # devices are no garbage until the command ends, and collections take a fifth of its time
    try:
        objects = (
            _read_files(own.objects_from)
            if own.objects_from
            else cooperative_scheduling.run_event_loop(
                _read_cluster(command_line.settings(ClusterOptions), own)
            )
        )
        listed = _list_devices(own, objects)
        if not objects[RESOURCE_SLICES] and not own.node and own.output != "json":
            terminal_output.print_line("found no devices: no DRA driver has published a ResourceSlice")
        _PRINTERS[own.output](listed, own)
    finally:
        gc.enable()
    if not listed.reports or (own.claim and not any(listed.claims.values())):
        click.get_current_context().exit(terminal_output.NO)


def _read_files(paths: Sequence[str]) -> Objects:
    files = object_files.read(paths)
    return {
        watched.name: {
            (item.metadata.namespace, item.metadata.name): item
            for item in object_feed.select_watched_file_objects(files, watched)
        }
        for watched in _WATCHED
    }


async def _read_cluster(options: ClusterOptions, own: DevicesOptions) -> Objects:
    """All kinds; of nodes only the named one, whose labels select devices of the network, or all if it is unknown."""
    kinds, node = list(_WATCHED[:-1]), own.node
    if not own.device_class and own.output != "json":  # nothing reads attributes, which take time
        keep = partial(resource_slices.parse_resource_slice, has_attributes=False)
        kinds = [each._replace(keep=keep) if each.name == RESOURCE_SLICES else each for each in kinds]
    async with open_api(options.kube) as api:
        with Progress() as progress:
            progress.say("reading devices and claims")
            lists = await asyncio.gather(*(_list(api, watched) for watched in kinds))
            objects = {watched.name: items for watched, items in zip(kinds, lists, strict=True)}
            if node:
                with_labels = api.with_metadata_only()
                objects[_NODES] = await _list(with_labels, _WATCHED[-1], selector("metadata.name", node))
                if not objects[_NODES] and objects[_NODES] is not _UNREADABLE:
                    objects[_NODES] = await _list(with_labels, _WATCHED[-1])
    return objects


async def _list(api: HttpApi, watched: Watched, fields: str = "") -> Mapping[ObjectKey, Any]:
    """The objects of a kind; none if the API server does not serve the kind. Only slices must be readable."""
    try:
        return await object_feed.list_once(api, watched, fields=fields)
    except NotFound:
        return {}
    except Refused as error:
        if watched.name == RESOURCE_SLICES:
            raise
        terminal_output.print_message(
            f"{watched.resource.plural} cannot be read and count as absent: {error}"
        )
        return _UNREADABLE


def _list_devices(own: DevicesOptions, objects: Objects) -> DeviceList:
    device_class = _find_class(own.device_class, objects[DEVICE_CLASSES]) if own.device_class else None
    every = (
        device_report.report_node(node, devices, device_class)
        for node, devices in _devices_by_node(own.node, objects).items()
    )
    reports = [report for report in every if report.devices or report.problems]
    if device_class is not None:
        _warn_of_class(device_class, objects[RESOURCE_SLICES], reports)
    counter = ClaimCounter()
    fits = counter.summarize(reports, sorted({*device_report.claim_sizes(reports), own.claim} - {0}))
    claims = {report.node: counter.fitting(report, own.claim) for report in reports} if own.claim else {}
    return DeviceList(reports, fits, claims)


def _warn_of_class(
    device_class: DeviceClass, slices: Mapping[ObjectKey, Any], reports: Sequence[NodeReport]
) -> None:
    """Say if no device matches a class, or if its selectors cannot be evaluated for some devices."""
    name = device_class.metadata.name
    devices = [each for report in reports for each in report.devices]
    unknown = sum(not each.is_selected for each in devices)
    if slices and not devices:
        terminal_output.print_message(f"found no devices of DeviceClass {name}")
    elif unknown:
        count = counted(unknown, "device")
        terminal_output.print_message(
            f"the selectors of DeviceClass {name} cannot be evaluated for {count}, which count as not available"
        )


def _devices_by_node(node: str, objects: Objects) -> Mapping[str, NodeDevices]:
    """The devices of a node; without one, those of all nodes and those that several nodes can use."""
    added = [
        ((key, Change(None, item)) for key, item in objects[name].items())
        for name in (RESOURCE_SLICES, RESOURCE_CLAIMS, DEVICE_TAINT_RULES)
    ]
    inventory: DeviceInventory = cooperative_scheduling.run_without_pauses(
        DeviceInventoryBuilder().update(*added)
    )
    if not node:
        of_nodes = {name: inventory.nodes[name] for name in sorted(inventory.nodes)}
        return of_nodes | ({_NETWORK: inventory.network} if inventory.network_pools else {})
    return _devices_of_node(node, inventory, objects.get(_NODES, {}))


def _devices_of_node(
    node: str, inventory: DeviceInventory, nodes: Mapping[ObjectKey, Any]
) -> Mapping[str, NodeDevices]:
    """Empty, with a message, for a node that does not exist; without nodes that is not known."""
    known = nodes.get(("", node))
    if nodes and known is None and node not in inventory.nodes:
        similar = did_you_mean(node, sorted({*inventory.nodes, *(name for _, name in nodes)}))
        terminal_output.print_message(f"found no node {node}{similar}")
        return {}
    devices = inventory.of(node, (known.metadata.labels if known is not None else None) or {})
    if not devices.pools:
        similar = "" if known is not None else did_you_mean(node, sorted(inventory.nodes))
        terminal_output.print_message(f"found no devices of node {node}{similar}")
    return {node: devices}


def _find_class(name: str, classes: Mapping[ObjectKey, DeviceClass]) -> DeviceClass:
    if ("", name) not in classes:
        known = sorted(name for _, name in classes)
        expected = (
            f"the name of a DeviceClass{did_you_mean(name, known)}"
            if known
            else "a DeviceClass; there is none"
        )
        raise BadSettings("settings", [Problem("--class", shown(name), expected)])
    return classes["", name]


def _print_table(listed: DeviceList, own: DevicesOptions) -> None:
    if own.node:
        _print_devices(listed, own)
        return
    reports = list(listed.reports)
    if own.claim:
        reports.sort(key=lambda report: -listed.claims[report.node])
    head = ["NODE", "DRIVERS", "DEVICES", "FREE", "SHARED", "ALLOCATED", "BLOCKED", "UNKNOWN", "TAINTED"]
    head += [f"CLAIMS OF {own.claim}"] if own.claim else []
    rows = [_node_row(report, listed, own) for report in reports[:_LISTED]]
    if not rows:
        return
    rare = ("SHARED", "BLOCKED", "UNKNOWN", "TAINTED", "PROBLEM")
    terminal_output.print_table(*terminal_output.drop_empty_columns(rare, [*head, "PROBLEM"], rows))
    if len(reports) > _LISTED:
        terminal_output.print_line(f"{len(reports) - _LISTED:,} more nodes: -o json and -o wide list all")
    _print_fits(listed)


def _node_row(report: NodeReport, listed: DeviceList, own: DevicesOptions) -> list[str]:
    drivers = dict.fromkeys(each.device.driver for each in report.devices)
    counts = device_report.count_states([report])
    cells = [report.node, ", ".join(drivers) or "-", f"{len(report.devices):,}", f"{counts['free']:,}"]
    cells += [f"{counts[state]:,}" if counts[state] else "-" for state in ("shared",)]
    cells += [f"{counts['allocated']:,}"]
    cells += [f"{counts[state]:,}" if counts[state] else "-" for state in ("blocked", "unknown", "tainted")]
    cells += [f"{listed.claims[report.node]:,}"] if own.claim else []
    return [*cells, "; ".join(report.problems) or "-"]


def _print_fits(listed: DeviceList) -> None:
    counts = device_report.count_states(listed.reports)
    total = sum(len(report.devices) for report in listed.reports)
    parts = [
        f"{counts[state]:,} {state}"
        for state in ("free", "shared", "allocated", "blocked", "unknown", "tainted")
        if counts[state]
    ]
    nodes = sum(report.node != _NETWORK for report in listed.reports)
    where = counted(nodes, "node") + " and the network" * (nodes < len(listed.reports))
    devices = counted(total, "device")
    terminal_output.print_line(f"{devices} on {where}: {', '.join(parts) or 'none'}")
    rows = [
        [f"{fit.devices:,}", f"{fit.claims:,}", f"{fit.nodes:,}", f"{fit.fragmentation:.0%}"]
        for fit in listed.fits
    ]
    terminal_output.print_line("")
    terminal_output.print_table(
        ("CLAIM SIZE", "CLAIMS THAT FIT", "ON NODES", "FREE DEVICES OUT OF REACH"), rows
    )


def _print_devices(listed: DeviceList, own: DevicesOptions) -> None:
    """One row for each device."""
    head = ["NODE", "DEVICE", "DRIVER", "POOL", "STATE", "CLAIMS", "PODS", "FREE CAPACITY", "TAINTS"]
    rows = [_device_row(report, each) for report in listed.reports for each in report.devices]
    if rows:
        hidden = ("CLAIMS", "PODS", "FREE CAPACITY", "TAINTS")
        terminal_output.print_table(*terminal_output.drop_empty_columns(hidden, head, rows))
    for report in listed.reports:
        for problem in report.problems:
            terminal_output.print_line(
                f"{report.node}: {problem}: kube-scheduler allocates none of its devices"
            )
    if own.node and listed.reports:
        _print_fits(listed)


def _device_row(report: NodeReport, each: ReportedDevice) -> list[str]:
    device = each.device
    pods = dict.fromkeys(f"{holder.claim[0]}/{pod}" for holder in each.holders for pod in holder.pods)
    return [
        report.node,
        device.name,
        device.driver,
        device.pool,
        each.state,
        ", ".join("/".join(holder.claim) for holder in each.holders) or "-",
        ", ".join(pods) or "-",
        _format_capacity(each) or "-",
        "; ".join(map(_format_taint, each.taints)) or "-",
    ]


def _format_capacity(each: ReportedDevice) -> str:
    """`memory 30Gi of 80Gi`; names of the driver's domain without it."""
    free, parts = each.free_capacity(), []
    for name, capacity in each.device.capacity.items():
        short = name.removeprefix(f"{each.device.driver}/")
        left, total = format_amount(free[name]), format_amount(capacity.value)
        parts.append(f"{short} {total}" if left == total else f"{short} {left} of {total}")
    return ", ".join(parts)


def format_amount(nano: int) -> str:
    """A quantity with the largest binary suffix that divides it: `80Gi`; otherwise a decimal number."""
    units, rest = divmod(nano, quantity.NANO)
    for suffix, power in (("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if not rest and units and units % (1 << power) == 0:
            return f"{units >> power}{suffix}"
    return quantity.nano_to_text(nano)


def _format_taint(each: ReportedTaint) -> str:
    value = f"={each.taint.value}" if each.taint.value else ""
    reason = f": {each.reason}" if each.reason else ""
    return f"{each.taint.key}{value}:{each.taint.effect} ({each.owner}{reason})"


def _print_json(listed: DeviceList, own: DevicesOptions) -> None:
    """Print node by node: the document of 40,000 devices is large."""
    sys.stdout.write('{"nodes":[')
    for number, report in enumerate(listed.reports):
        document: dict[str, Any] = {
            "node": report.node,
            "problems": report.problems,
            "devices": [_device_document(each) for each in report.devices],
        }
        if own.claim:
            document["claims"] = listed.claims[report.node]
        sys.stdout.write(("," if number else "") + msgspec.json.encode(document).decode())
    fits = msgspec.json.encode([fit._asdict() for fit in listed.fits]).decode()
    sys.stdout.write(f'],"fits":{fits}}}\n')


def _device_document(each: ReportedDevice) -> dict[str, Any]:
    device, free = each.device, each.free_capacity()
    return {
        "driver": device.driver,
        "pool": device.pool,
        "device": device.name,
        "state": each.state,
        "available": each.is_available,
        "attributes": {name: _attribute_document(value) for name, value in device.attributes.items()},
        "capacity": {
            name: {"value": format_amount(capacity.value), "free": format_amount(free[name])}
            for name, capacity in device.capacity.items()
        },
        "holders": [_holder_document(holder) for holder in each.holders],
        "taints": [
            {
                "key": taint.taint.key,
                "value": taint.taint.value,
                "effect": taint.taint.effect,
                "owner": taint.owner,
                "reason": taint.reason,
            }
            for taint in each.taints
        ],
    }


def _attribute_document(value: resource_slices.AttributeValue) -> Any:
    if isinstance(value, resource_slices.SemanticVersion):
        return value.text
    return [_attribute_document(each) for each in value] if isinstance(value, tuple) else value


def _holder_document(holder: DeviceHolder) -> dict[str, Any]:
    consumed = holder.allocated.consumed_capacity
    return {
        "namespace": holder.claim[0],
        "claim": holder.claim[1],
        "request": holder.allocated.request,
        "pods": holder.pods,
        "consumed": {name: format_amount(amount) for name, amount in consumed.items()},
    }


_PRINTERS: Final = {"table": _print_table, "wide": _print_devices, "json": _print_json}
