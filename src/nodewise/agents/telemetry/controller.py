"""The telemetry agent's hand on the API server: node labels, policies' status, events. Only here does the agent touch
it, and only in the leader. What is to be written is computed elsewhere (`node_labels`, `label_ownership`, `status`).
"""

import asyncio
from functools import partial
from itertools import takewhile
from typing import Any, Final

import msgspec

from nodewise import cooperative_scheduling, quantity
from nodewise.agent import ObjectKey, Resource, Snapshot
from nodewise.agents.telemetry import label_ownership, node_labels, status
from nodewise.agents.telemetry.label_ownership import FIELD_MANAGER
from nodewise.agents.telemetry.node_labels import Labels
from nodewise.agents.telemetry.options import TelemetryOptions
from nodewise.agents.telemetry.policy import PolicyObject
from nodewise.agents.telemetry.state import POLICIES, PolicyState, TelemetryState
from nodewise.agents.telemetry.status import Status
from nodewise.clock import format_rfc3339
from nodewise.controllers import Controller, Handle
from nodewise.errors import Conflict, Refused, Unavailable
from nodewise.kube.api import NotFound
from nodewise.kube.concurrent_calls import every
from nodewise.kube.event_recorder import About
from nodewise.kube.resources import NODES
from nodewise.observe import logs

_STEP_S: Final = 2.0
"""Labels are written for so long with one snapshot, then status: with thousands of them the last would be minutes old
otherwise, and policies of one namespace that change all the time would hold up the node labels of all."""
_COUNTS_S: Final = 30.0
"""A status of which only counts changed is written no more often than this."""
_CONFLICT_S: Final = 60.0
"""A label that somebody else owns is asked for again after this, or when the node changes; a status that was refused,
after this."""
_APPLY: Final = {"fieldManager": FIELD_MANAGER}


class TelemetryController(Controller):
    """Makes node labels and policies' status say what the snapshot says."""

    def __init__(self, taspolicies: Resource, options: TelemetryOptions, handle: Handle) -> None:
        self._labels = LabelWriter(handle)
        self._statuses = StatusWriter(taspolicies, handle)
        self._advertiser = Advertiser(options.advertise_resource, handle)
        if options.trust_all_namespaces:
            logs.emit("all_namespaces_trusted")
        if options.label_policies_from:
            instead = "kubectl label namespace NAME nodewise.io/trusted=true"
            logs.emit("option_deprecated", option="--label-policies-from", instead=instead)

    def begin(self) -> None:
        """We lead from now on: what another leader wrote meanwhile is read again."""
        self._labels.begin()
        self._statuses.begin()

    async def step(self, snapshot: Snapshot) -> None:
        """Write labels, status and the advertised resource. One that fails, for want of a right, stops no other."""
        agent_state: TelemetryState | None = snapshot.agent_states.get("telemetry")
        if agent_state is not None:
            parts = (partial(self._write, snapshot, agent_state), self._advertiser.step)
            await every(part() for part in parts)

    async def _write(self, snapshot: Snapshot, agent_state: TelemetryState) -> None:
        """Labels, and then the status that tells who else owns one of them."""
        decided = {key: (state.policy, state.labels) for key, state in agent_state.items()}
        claims = node_labels.claims(decided)
        clashes = dict(claims.clashes)
        try:
            await self._labels.step(snapshot, claims.columns)
        finally:
            for key, state in agent_state.items():
                clashes.setdefault(key, self._labels.clash(state))
            await self._statuses.step(agent_state, clashes)


class LabelWriter:
    """Keeps the node labels that are ours as the columns want them, by server-side apply.

    What we own is known from what we wrote. A node of which that may not be so is doubted, and read again before
    anything is decided: at the beginning, when a watch tells of labels that we did not write or that are not there any
    more, and after a write whose answer was lost.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._owned: dict[str, Labels] = {}
        self._doubted: set[str] = set()
        self._seen: dict[str, Any] = {}
        self._denied: dict[str, dict[str, float]] = {}
        self._left = 0

    def begin(self) -> None:
        self._owned, self._seen = {}, {}

    def clash(self, decided: PolicyState) -> str:
        """On which nodes somebody else owns a label of the policy, in words; empty for none."""
        keys = {column.key for column in decided.labels}
        nodes = sorted(node for node, denied in self._denied.items() if denied.keys() & keys)
        shown = ", ".join(nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")  # noqa: PLR2004
        return f"somebody else owns a label of that key on node {shown}; it is left alone" if nodes else ""

    async def step(self, snapshot: Snapshot, columns: dict[str, node_labels.LabelColumn]) -> None:
        """Write what differs, for a while: what is left then is decided again with the next snapshot.

        Each node's failure is its own; the first one is raised at the end.
        """
        await self._doubt_changed()
        await asyncio.sleep(0)
        await every(self._read(node, frozenset(columns)) for node in sorted(self._doubted))
        await asyncio.sleep(0)
        wanted = node_labels.desired(columns, snapshot.nodes, self._owned)
        self._forgive()
        allowed = {
            node: self._allowed(node, wanted.get(node, {})) for node in wanted.keys() | self._owned.keys()
        }
        differing = {
            node: labels_ for node, labels_ in allowed.items() if labels_ != self._owned.get(node, {})
        }
        self._leave(len(differing))
        until_s = self._handle.clock.monotonic() + _STEP_S
        due = takewhile(lambda _: self._handle.clock.monotonic() < until_s, differing.items())
        await every(self._finish(node, labels_) for node, labels_ in due)

    async def _finish(self, node: str, wanted: Labels) -> None:
        await self._write(node, wanted)
        self._leave(self._left - 1)

    def _leave(self, count: int) -> None:
        """So many nodes are still to be written."""
        self._left = count
        self._handle.meters.set("nodes_to_label", count)

    def _allowed(self, node: str, wanted: Labels) -> Labels:
        denied = self._denied.get(node)
        return {key: value for key, value in wanted.items() if key not in denied} if denied else wanted

    async def _doubt_changed(self) -> None:
        """Doubt the nodes that changed and show other labels of ours than we know of."""
        seen: dict[str, Any] = {}
        async for node in cooperative_scheduling.iterate(self._handle.nodes.values()):
            name = node.metadata.name
            seen[name] = node
            if self._seen.get(name) is node:
                continue
            self._denied.pop(name, None)
            owned = self._owned.get(name, {})
            there = labels_of(node)
            if {
                key: there[key]
                for key in there
                if key in owned or label_ownership.is_candidate(key, there[key])
            } != owned:
                self._doubted.add(name)
        self._seen = seen

    def _forgive(self) -> None:
        """Ask again for what was denied long ago."""
        now_s = self._handle.clock.monotonic()
        for node, denied in list(self._denied.items()):
            left = {key: until_s for key, until_s in denied.items() if until_s > now_s}
            if left:
                self._denied[node] = left
            else:
                del self._denied[node]

    async def _write(self, node: str, wanted: Labels) -> None:
        node_object = self._handle.nodes.get("", node)
        if node_object is None:
            self._owned.pop(node, None)
            return
        # the uid, or an apply to a node that was just deleted would make a ghost of it
        metadata = {"name": node, "uid": node_object.metadata.uid, "labels": wanted}
        body = {"apiVersion": NODES.api_version, "kind": NODES.kind, "metadata": metadata}
        try:
            await self._handle.api.patch(NODES.path(name=node), body, "apply", _APPLY)
        except NotFound:
            self._owned.pop(node, None)
        except Conflict as error:
            await self._write_undenied(node, wanted, error)
        except Unavailable:
            self._doubted.add(node)  # it may have been written all the same
            raise
        else:
            self._handle.meters.count("label_writes_total")
            self._handle.node_writes.count += 1
            self._owned[node] = wanted
            if not wanted:
                del self._owned[node]

    async def _write_undenied(self, node: str, wanted: Labels, error: Conflict) -> None:
        """Leave alone what somebody else owns, and write the rest."""
        denied = _denied_keys(error) & wanted.keys()
        if not denied:  # another node of that name by now; the store will tell
            self._owned.pop(node, None)
            return
        until_s = self._handle.clock.monotonic() + _CONFLICT_S
        self._denied.setdefault(node, {}).update(dict.fromkeys(denied, until_s))
        logs.emit("label_conflict", node=node, keys=sorted(denied), error=str(error))
        left = {key: value for key, value in wanted.items() if key not in denied}
        if left != self._owned.get(node, {}):
            await self._write(node, left)

    async def _read(self, node: str, keys: frozenset[str]) -> None:
        """What we own on a node, and what we take over there from the older system."""
        owned = await self._read_node(node, keys)
        if owned:
            self._owned[node] = owned
        else:
            self._owned.pop(node, None)
        self._doubted.discard(node)

    async def _read_node(self, name: str, keys: frozenset[str]) -> Labels:
        path = NODES.path(name=name)
        try:
            metadata = msgspec.json.decode(await self._handle.api.get(path))["metadata"]
            heirloom = label_ownership.inherited(metadata, keys)
            if heirloom:
                entries = label_ownership.taken_over(metadata, heirloom, NODES.api_version)
                patch = [
                    {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
                    {"op": "replace", "path": "/metadata/managedFields", "value": entries},
                ]
                await self._handle.api.patch(path, patch, "json", _APPLY)
                logs.emit("labels_taken_over", node=name, keys=sorted(heirloom))
                metadata = {**metadata, "managedFields": entries}
        except NotFound:
            return {}
        return label_ownership.owned(metadata)


class StatusWriter:
    """Writes policies' status, and tells its changes for the worse and the better as events."""

    def __init__(self, taspolicies: Resource, handle: Handle) -> None:
        self._taspolicies = taspolicies
        self._handle = handle
        self._written: dict[ObjectKey, tuple[Status, float]] = {}
        self._refused: dict[ObjectKey, float] = {}

    def begin(self) -> None:
        self._written, self._refused = {}, {}

    async def step(self, agent_state: TelemetryState, clashes: dict[ObjectKey, str]) -> None:
        """Write what differs, for a while: first what was written longest ago, the rest with the next snapshot.

        A policy that was deleted meanwhile, or may not be written, stops no other.
        """
        self._written = {key: written for key, written in self._written.items() if key in agent_state}
        self._refused = {key: until_s for key, until_s in self._refused.items() if key in agent_state}
        suspended = sum(len(state.suspended) for state in agent_state.values())
        self._handle.meters.set("rules_suspended", suspended)
        oldest_first = sorted(agent_state, key=self._written_s)
        until_s = self._handle.clock.monotonic() + _STEP_S
        due = takewhile(lambda _: self._handle.clock.monotonic() < until_s, oldest_first)
        await every(self._one(key, agent_state[key], clashes.get(key, "")) for key in due)

    def _written_s(self, key: ObjectKey) -> float:
        return self._written[key][1] if key in self._written else float("-inf")

    async def _one(self, key: ObjectKey, decided: PolicyState, clash: str) -> None:
        policy_object: PolicyObject | None = self._handle.objects[POLICIES].get(*key)
        if policy_object is None:
            return
        before, written_s = self._written.get(key, (status.read(policy_object.status), float("-inf")))
        now_s = self._handle.clock.monotonic()
        now = format_rfc3339(self._handle.clock.now())
        wanted = status.desired(decided, policy_object.metadata.generation, clash, before, now)
        only_counts = wanted.conditions == before.conditions and (
            wanted.observed_generation == before.observed_generation
        )
        if wanted == before or (only_counts and now_s - written_s < _COUNTS_S):
            return
        if self._refused.get(key, now_s) > now_s:
            return
        if await self._write(policy_object, wanted):
            self._written[key] = (wanted, now_s)
            self._tell(policy_object, before, wanted)
        else:
            self._refused[key] = now_s + _CONFLICT_S

    def _tell(self, policy_object: PolicyObject, before: Status, wanted: Status) -> None:
        """One event for each condition that turned."""
        known = before.by_type()
        metadata = policy_object.metadata
        about = About(self._taspolicies, metadata.namespace, metadata.name, metadata.uid)
        for condition in wanted.conditions:
            old = known.get(condition.type)
            good = status.GOOD[condition.type]
            if condition.status != good and (
                old is None or old.status == good or old.message != condition.message
            ):
                self._handle.recorder.record(
                    about, "Warning", condition.reason, condition.message, condition.type
                )
            elif condition.status == good and old is not None and old.status != good:
                self._handle.recorder.record(about, "Normal", "AllWell", condition.message, condition.type)

    async def _write(self, policy_object: PolicyObject, wanted: Status) -> bool:
        """Whether it was taken; an API server that starts refuses for a moment what it grants later."""
        metadata = policy_object.metadata
        path = self._taspolicies.path(metadata.namespace, metadata.name, "status")
        identity = {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid}
        resource = self._taspolicies
        body = status.document(resource.api_version, resource.kind, identity, wanted)
        try:
            await self._handle.api.patch(path, body, "apply", {**_APPLY, "force": "true"})
        except (Conflict, Refused) as error:
            # deleted or replaced meanwhile, or no right to write it: the others' status matters no less
            logs.emit("status_failed", policy=path, error=str(error))
            return False
        return True


class Advertiser:
    """Keeps an extended resource on every node, also after a kubelet wrote its node anew."""

    def __init__(self, resource: str, handle: Handle) -> None:
        self._name, _, self._amount = resource.partition("=")
        self._handle = handle

    async def step(self) -> None:
        if not self._name:
            return
        lacking = [node.metadata.name for node in self._handle.nodes.values() if self._lacks(node)]
        await every(self._give(name) for name in lacking)

    def _lacks(self, node: Any) -> bool:
        there = _mapping(node.status.capacity).get(self._name)
        try:
            # the API server writes 1000 as 1k
            return quantity.parse(str(there)) != quantity.parse(self._amount)
        except ValueError:
            return True

    async def _give(self, name: str) -> None:
        amounts = {self._name: self._amount}
        body = {"status": {"capacity": amounts, "allocatable": amounts}}
        try:
            await self._handle.api.patch(NODES.path(name=name, subresource="status"), body, "merge", _APPLY)
        except NotFound:
            return


def labels_of(node: Any) -> dict[str, str]:
    """The labels of a node, read when they are needed: of thousands of nodes only a few are."""
    return {key: value for key, value in _mapping(node.metadata.labels).items() if isinstance(value, str)}


def _mapping(raw: msgspec.Raw) -> dict[str, Any]:
    document = msgspec.json.decode(raw)
    return document if isinstance(document, dict) else {}


def _denied_keys(error: Conflict) -> set[str]:
    """The label keys that a server-side apply was refused for."""
    start = ".metadata.labels."
    return {
        problem.field.removeprefix(start) for problem in error.problems if problem.field.startswith(start)
    }
