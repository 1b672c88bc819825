"""Writes node labels, the status of policies, and events. This runs in the leader only.

The values to write are computed elsewhere (`node_labels`, `node_label_ownership`, `taspolicy_status`).
"""

import asyncio
from functools import partial
from itertools import takewhile
from typing import Any, Final

import msgspec

from nodewise import cooperative_scheduling, quantity
from nodewise.agent import ObjectKey, Resource, Snapshot
from nodewise.agent_controller_interface import Controller, Handle
from nodewise.agents.telemetry import node_label_ownership, node_labels, taspolicy_status
from nodewise.agents.telemetry.node_label_ownership import FIELD_MANAGER
from nodewise.agents.telemetry.node_labels import Labels
from nodewise.agents.telemetry.options import TelemetryOptions
from nodewise.agents.telemetry.state import POLICIES, PolicyState, TelemetryState
from nodewise.agents.telemetry.taspolicy_parser import PolicyObject
from nodewise.agents.telemetry.taspolicy_status import PolicyStatus
from nodewise.clock import format_rfc3339
from nodewise.errors import Conflict, Refused, Unavailable
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.concurrent_calls import run_api_calls
from nodewise.kube.event_recorder import ObjectReference
from nodewise.kube.resource_kinds import NODES
from nodewise.observe import logs

_STEP_S: Final = 2.0
"""The longest time that labels, and then statuses, are written from one snapshot. Otherwise the last of thousands would
be minutes old, and policies of one namespace that change all the time would delay all node labels."""
_COUNTS_S: Final = 30.0
"""The shortest time between writes of a status of which only counts changed."""
_CONFLICT_S: Final = 60.0
"""The time after which a label of another owner, or a status that was refused, is tried again. A label is also tried
again when its node changes."""
_APPLY: Final = {"fieldManager": FIELD_MANAGER}


class TelemetryController(Controller):
    """Updates node labels and the status of policies from the snapshot."""

    def __init__(self, taspolicies: Resource, options: TelemetryOptions, handle: Handle) -> None:
        self._labels = LabelWriter(handle)
        self._statuses = StatusWriter(taspolicies, handle)
        self._advertiser = ResourceAdvertiser(options.advertise_resource, handle)
        if options.trust_all_namespaces:
            logs.emit("all_namespaces_trusted")
        if options.label_policies_from:
            instead = "kubectl label namespace NAME nodewise.io/trusted=true"
            logs.emit("option_deprecated", option="--label-policies-from", instead=instead)

    def begin(self) -> None:
        """Start as the leader. Labels and statuses that another leader wrote are read again."""
        self._labels.begin()
        self._statuses.begin()

    async def step(self, snapshot: Snapshot) -> None:
        """Write labels, status and the advertised resource. A failure of one does not affect the others."""
        agent_state: TelemetryState | None = snapshot.agent_states.get("telemetry")
        if agent_state is not None:
            parts = (partial(self._write, snapshot, agent_state), self._advertiser.step)
            await run_api_calls(part() for part in parts)

    async def _write(self, snapshot: Snapshot, agent_state: TelemetryState) -> None:
        """Write labels, and then the status, which reports conflicts of labels."""
        policies = {key: (state.policy, state.labels) for key, state in agent_state.items()}
        assignment = node_labels.combine_policy_labels(policies)
        conflicts = dict(assignment.conflicts)
        try:
            await self._labels.step(snapshot, assignment.columns)
        finally:
            for key, state in agent_state.items():
                conflicts.setdefault(key, self._labels.conflict(state))
            await self._statuses.step(agent_state, conflicts)


class LabelWriter:
    """Applies node labels by server-side apply, and owns no others.

    The labels that we own are known from our writes. A node is read again where that may be wrong: at the beginning,
    when a watch shows labels that we did not write or lacks labels that we wrote, and after a write without a response.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._owned: dict[str, Labels] = {}
        self._unconfirmed: set[str] = set()
        self._seen: dict[str, Any] = {}
        self._conflicts: dict[str, dict[str, float]] = {}
        self._remaining = 0

    def begin(self) -> None:
        self._owned, self._seen = {}, {}

    def conflict(self, state: PolicyState) -> str:
        """A message that names the nodes where another owner has a label of the policy; empty for none."""
        keys = {column.key for column in state.labels}
        nodes = sorted(node for node, conflicting in self._conflicts.items() if conflicting.keys() & keys)
        shown = ", ".join(nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")  # noqa: PLR2004
        return (
            f"another manager owns a label with that key on node {shown}; it is not changed" if nodes else ""
        )

    async def step(self, snapshot: Snapshot, columns: dict[str, node_labels.LabelColumn]) -> None:
        """Write the labels that differ, for `_STEP_S` at most; the next snapshot continues.

        A failure of one node does not affect the others; the first error is raised at the end.
        """
        await self._mark_unconfirmed_nodes()
        await asyncio.sleep(0)
        await run_api_calls(
            self._resync_owned_labels(node, frozenset(columns)) for node in sorted(self._unconfirmed)
        )
        await asyncio.sleep(0)
        wanted = node_labels.desired_labels(columns, snapshot.nodes, self._owned)
        self._expire_conflicts()
        allowed = {
            node: self._labels_without_conflict(node, wanted.get(node, {}))
            for node in wanted.keys() | self._owned.keys()
        }
        differing = {
            node: labels_ for node, labels_ in allowed.items() if labels_ != self._owned.get(node, {})
        }
        self._set_remaining(len(differing))
        until_s = self._handle.clock.monotonic() + _STEP_S
        due = takewhile(lambda _: self._handle.clock.monotonic() < until_s, differing.items())
        await run_api_calls(self._finish_node(node, labels_) for node, labels_ in due)

    async def _finish_node(self, node: str, wanted: Labels) -> None:
        await self._write(node, wanted)
        self._set_remaining(self._remaining - 1)

    def _set_remaining(self, count: int) -> None:
        """Set the number of nodes that are still to be written, and export it."""
        self._remaining = count
        self._handle.metrics_registry.set("nodes_to_label", count)

    def _labels_without_conflict(self, node: str, wanted: Labels) -> Labels:
        conflicting = self._conflicts.get(node)
        return (
            {key: value for key, value in wanted.items() if key not in conflicting} if conflicting else wanted
        )

    async def _mark_unconfirmed_nodes(self) -> None:
        """Mark changed nodes whose labels differ from those that we know to own; they are read again."""
        seen: dict[str, Any] = {}
        async for node in cooperative_scheduling.iterate_with_pauses(self._handle.nodes.values()):
            name = node.metadata.name
            seen[name] = node
            if self._seen.get(name) is node:
                continue
            self._conflicts.pop(name, None)
            owned = self._owned.get(name, {})
            labels = decode_node_labels(node)
            ours = {
                key: value
                for key, value in labels.items()
                if key in owned or node_label_ownership.may_be_managed_label(key, value)
            }
            if ours != owned:
                self._unconfirmed.add(name)
        self._seen = seen

    def _expire_conflicts(self) -> None:
        """Forget conflicts that are older than `_CONFLICT_S`, so that their labels are tried again."""
        now_s = self._handle.clock.monotonic()
        for node, conflicting in list(self._conflicts.items()):
            left = {key: until_s for key, until_s in conflicting.items() if until_s > now_s}
            if left:
                self._conflicts[node] = left
            else:
                del self._conflicts[node]

    async def _write(self, node: str, wanted: Labels) -> None:
        node_object = self._handle.nodes.get("", node)
        if node_object is None:
            self._owned.pop(node, None)
            return
        # with the uid, because an apply to a node that was just deleted would create it again
        metadata = {"name": node, "uid": node_object.metadata.uid, "labels": wanted}
        body = {"apiVersion": NODES.api_version, "kind": NODES.kind, "metadata": metadata}
        try:
            await self._handle.api.patch(NODES.path(name=node), body, "apply", _APPLY)
        except NotFound:
            self._owned.pop(node, None)
        except Conflict as error:
            await self._write_unconflicted_labels(node, wanted, error)
        except Unavailable:
            self._unconfirmed.add(node)  # the write may have succeeded
            raise
        else:
            self._handle.metrics_registry.count("label_writes_total")
            self._handle.node_writes.count += 1
            self._owned[node] = wanted
            if not wanted:
                del self._owned[node]

    async def _write_unconflicted_labels(self, node: str, wanted: Labels, error: Conflict) -> None:
        """Write the labels that no other manager owns."""
        conflicting = _conflicting_keys(error) & wanted.keys()
        if not conflicting:  # the node was recreated; the watch will show it
            self._owned.pop(node, None)
            return
        until_s = self._handle.clock.monotonic() + _CONFLICT_S
        self._conflicts.setdefault(node, {}).update(dict.fromkeys(conflicting, until_s))
        logs.emit("label_conflict", node=node, keys=sorted(conflicting), error=str(error))
        left = {key: value for key, value in wanted.items() if key not in conflicting}
        if left != self._owned.get(node, {}):
            await self._write(node, left)

    async def _resync_owned_labels(self, node: str, keys: frozenset[str]) -> None:
        """Read the labels that we own on a node, and take over those of the older system."""
        owned = await self._read_owned_labels(node, keys)
        if owned:
            self._owned[node] = owned
        else:
            self._owned.pop(node, None)
        self._unconfirmed.discard(node)

    async def _read_owned_labels(self, name: str, keys: frozenset[str]) -> Labels:
        path = NODES.path(name=name)
        try:
            metadata = msgspec.json.decode(await self._handle.api.get(path))["metadata"]
            inherited = node_label_ownership.inheritable_label_keys(metadata, keys)
            if inherited:
                entries = node_label_ownership.transfer_ownership(metadata, inherited, NODES.api_version)
                patch = [
                    {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
                    {"op": "replace", "path": "/metadata/managedFields", "value": entries},
                ]
                await self._handle.api.patch(path, patch, "json", _APPLY)
                logs.emit("labels_taken_over", node=name, keys=sorted(inherited))
                metadata = {**metadata, "managedFields": entries}
        except NotFound:
            return {}
        return node_label_ownership.owned_labels(metadata)


class StatusWriter:
    """Writes the status of policies, and records changes of conditions as events."""

    def __init__(self, taspolicies: Resource, handle: Handle) -> None:
        self._taspolicies = taspolicies
        self._handle = handle
        self._written: dict[ObjectKey, tuple[PolicyStatus, float]] = {}
        self._refused: dict[ObjectKey, float] = {}

    def begin(self) -> None:
        self._written, self._refused = {}, {}

    async def step(self, agent_state: TelemetryState, conflicts: dict[ObjectKey, str]) -> None:
        """Write the statuses that differ, for `_STEP_S` at most, in the order of their last write.

        The next snapshot continues. A policy that was deleted, or may not be written, does not affect the others.
        """
        self._written = {key: written for key, written in self._written.items() if key in agent_state}
        self._refused = {key: until_s for key, until_s in self._refused.items() if key in agent_state}
        suspended = sum(len(state.suspended) for state in agent_state.values())
        self._handle.metrics_registry.set("rules_suspended", suspended)
        oldest_first = sorted(agent_state, key=self._last_write_time)
        until_s = self._handle.clock.monotonic() + _STEP_S
        due = takewhile(lambda _: self._handle.clock.monotonic() < until_s, oldest_first)
        await run_api_calls(self._update_status(key, agent_state[key], conflicts.get(key, "")) for key in due)

    def _last_write_time(self, key: ObjectKey) -> float:
        return self._written[key][1] if key in self._written else float("-inf")

    async def _update_status(self, key: ObjectKey, state: PolicyState, conflict: str) -> None:
        policy_object: PolicyObject | None = self._handle.objects[POLICIES].get(*key)
        if policy_object is None:
            return
        before, written_s = self._written.get(
            key, (taspolicy_status.parse_status(policy_object.status), float("-inf"))
        )
        now_s = self._handle.clock.monotonic()
        now = format_rfc3339(self._handle.clock.now())
        wanted = taspolicy_status.desired_status(
            state, policy_object.metadata.generation, conflict, before, now
        )
        only_counts = wanted.conditions == before.conditions and (
            wanted.observed_generation == before.observed_generation
        )
        if wanted == before or (only_counts and now_s - written_s < _COUNTS_S):
            return
        if self._refused.get(key, now_s) > now_s:
            return
        if await self._write(policy_object, wanted):
            self._written[key] = (wanted, now_s)
            self._record_events(policy_object, before, wanted)
        else:
            self._refused[key] = now_s + _CONFLICT_S

    def _record_events(self, policy_object: PolicyObject, before: PolicyStatus, wanted: PolicyStatus) -> None:
        """Record an event for each condition that became bad or good."""
        known = before.conditions_by_type()
        metadata = policy_object.metadata
        about = ObjectReference(self._taspolicies, metadata.namespace, metadata.name, metadata.uid)
        for condition in wanted.conditions:
            old = known.get(condition.type)
            good = taspolicy_status.GOOD[condition.type]
            if condition.status != good and (
                old is None or old.status == good or old.message != condition.message
            ):
                self._handle.recorder.record(
                    about, "Warning", condition.reason, condition.message, condition.type
                )
            elif condition.status == good and old is not None and old.status != good:
                self._handle.recorder.record(about, "Normal", "AllWell", condition.message, condition.type)

    async def _write(self, policy_object: PolicyObject, wanted: PolicyStatus) -> bool:
        """Returns whether the API server accepted it. While it starts, it may refuse what it grants later."""
        metadata = policy_object.metadata
        path = self._taspolicies.path(metadata.namespace, metadata.name, "status")
        identity = {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid}
        resource = self._taspolicies
        body = taspolicy_status.status_apply_body(resource.api_version, resource.kind, identity, wanted)
        try:
            await self._handle.api.patch(path, body, "apply", {**_APPLY, "force": "true"})
        except (Conflict, Refused) as error:
            # deleted or replaced, or no right to write it; this must not affect other policies
            logs.emit("status_failed", policy=path, error=str(error))
            return False
        return True


class ResourceAdvertiser:
    """Keeps an extended resource on every node, also after a kubelet registers its node again."""

    def __init__(self, resource: str, handle: Handle) -> None:
        self._name, _, self._amount = resource.partition("=")
        self._handle = handle

    async def step(self) -> None:
        if not self._name:
            return
        lacking = [
            node.metadata.name
            for node in self._handle.nodes.values()
            if self._lacks_advertised_resource(node)
        ]
        await run_api_calls(self._advertise(name) for name in lacking)

    def _lacks_advertised_resource(self, node: Any) -> bool:
        amount = _decode_object(node.status.capacity).get(self._name)
        try:
            # the API server writes 1000 as 1k
            return quantity.parse(str(amount)) != quantity.parse(self._amount)
        except ValueError:
            return True

    async def _advertise(self, name: str) -> None:
        amounts = {self._name: self._amount}
        body = {"status": {"capacity": amounts, "allocatable": amounts}}
        try:
            await self._handle.api.patch(NODES.path(name=name, subresource="status"), body, "merge", _APPLY)
        except NotFound:
            return


def decode_node_labels(node: Any) -> dict[str, str]:
    """The labels of a node. They are decoded when needed, because few of thousands of nodes need them."""
    return {
        key: value for key, value in _decode_object(node.metadata.labels).items() if isinstance(value, str)
    }


def _decode_object(raw: msgspec.Raw) -> dict[str, Any]:
    document = msgspec.json.decode(raw)
    return document if isinstance(document, dict) else {}


def _conflicting_keys(error: Conflict) -> set[str]:
    """The label keys for which a server-side apply was refused."""
    start = ".metadata.labels."
    return {
        problem.field.removeprefix(start) for problem in error.problems if problem.field.startswith(start)
    }
