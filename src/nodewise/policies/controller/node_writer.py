"""Writes to nodes: labels by server-side apply, and the capacity of an extended resource.

Writes of labels are limited by the work that they cause in kube-scheduler: whenever a label of a node changes, it
examines all waiting pods that its plugin NodeAffinity rejected, while its queue is locked (v1.36
pkg/scheduler/backend/queue/scheduling_queue.go, `movePodsToActiveOrBackoffQueue`). If changes come faster than that, it
binds few pods of any namespace, and sees labels minutes after they were written. Labels that change back in the
meantime need no write at all.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import NodeIndex, Snapshot
from nodewise.agent.controller_interface import Handle
from nodewise.base import cooperative_scheduling, quantity
from nodewise.base.errors import BadInput, Conflict, NodewiseError, Refused, Unavailable
from nodewise.kube.api_server_interface import NotFound, run_api_calls
from nodewise.kube.resource_kinds import NODES
from nodewise.observe import logs
from nodewise.policies import node_labels
from nodewise.policies.labelling_progress import PendingLabel
from nodewise.policies.node_labels import FIELD_MANAGER, POLICY_LABELS, LabelOwner, Labels
from nodewise.policies.state import PolicyState

EXAMINATIONS_PER_S: Final = 25_000.0
"""Waiting pods times changed nodes, per second on average.

kube-scheduler took 8 µs for each while two cores were busy (its metric `event_handling_duration_seconds`), so it needs
about a fifth of its time for them. 5,000 waiting pods then leave 5 nodes per second: if each recovered node accepts ten
pods, these are as many as kube-scheduler binds with its default client limits.
"""
LEAST_CHANGES_PER_S: Final = 5.0
"""Changed nodes per second on average, however many pods wait."""
BURST_S: Final = 5.0
"""The time for which the budget accumulates: as many nodes may be changed at once."""


class ExaminationBudget:
    """How many nodes may be changed now. With up to 500 waiting pods, the client's default limit is lower."""

    def __init__(self) -> None:
        self._left_s = BURST_S
        """The unspent time of the budget; negative after urgent changes."""
        self._at_s: float | None = None

    def take(self, now_s: float, waiting_pods: int, *, is_urgent: bool) -> bool:
        """Whether a node may be changed at this monotonic time, which is then paid for.

        `waiting_pods` are those that kube-scheduler examines. An urgent change is always allowed, and delays others.
        """
        if self._at_s is not None:
            self._left_s = min(BURST_S, self._left_s + max(0.0, now_s - self._at_s))
        self._at_s = now_s
        cost_s = min(waiting_pods / EXAMINATIONS_PER_S, 1.0 / LEAST_CHANGES_PER_S)
        if cost_s and self._left_s <= 0.0 and not is_urgent:
            return False
        self._left_s = max(self._left_s - cost_s, -BURST_S)
        return True


_STEP_S: Final = 2.0
"""The longest time that labels are written from one snapshot. Otherwise the last of thousands would be minutes old."""
_CONFLICT_S: Final = 60.0
"""The time after which a label that cannot be written is tried again, unless its node changes before."""
_MAX_NAMED: Final = 5
"""Nodes that a message names."""
MAX_FAILING_NODES: Final = 10
"""Nodes whose labels cannot be written while others can. More of them have a common cause, which is an error."""
_LONGEST_PAUSE_S: Final = 60.0
"""The longest time until a node is written again whose last write got no response, and so delayed the step."""


class _LabelConflict(NamedTuple):
    """A label that cannot be written to a node."""

    until_s: float
    """Monotonic time at which it is tried again."""
    cause: str


class _NodeFailure(NamedTuple):
    """A node whose labels cannot be written."""

    cause: str
    not_before_s: float
    """Monotonic time at which it is tried again."""
    pause_s: float


class _DesiredLabels(NamedTuple):
    """The labels that a step writes."""

    columns: dict[str, node_labels.LabelColumn]
    held: frozenset[str]
    nodes: NodeIndex


class LabelWriter:
    """Applies node labels by server-side apply, and owns no others.

    The labels that we own are known from our writes. A node is read again where that may be wrong: at the beginning,
    when a watch shows labels that we did not write or lacks labels that we wrote, and after a write without a response.

    All labels with the prefix of an owner that is forced count as ours. So a new leader does not have to read thousands
    of nodes before its first write.
    """

    def __init__(self, handle: Handle, owner: LabelOwner = POLICY_LABELS) -> None:
        self._handle = handle
        self._owner = owner
        self._apply = {"fieldManager": owner.field_manager} | ({"force": "true"} if owner.is_forced else {})
        self._owned: dict[str, Labels] = {}
        self._unconfirmed: set[str] = set()
        self._seen: dict[str, Any] = {}
        self._queue: dict[str, None] = {}
        """The nodes that wait for a write, in the order in which they began to, so that new nodes delay no others."""
        self._conflicts: dict[str, dict[str, _LabelConflict]] = {}
        self._failures: dict[str, _NodeFailure] = {}
        self._replaced: dict[str, str] = {}
        """By name, the uid of a node that the API server says is deleted or replaced."""
        self._budget = ExaminationBudget()
        self._turn = 0
        """The number of steps that wrote labels."""
        self._remaining = 0
        self._pending: Mapping[str, Labels] | None = None
        """By node, the labels that it should have, of those that the last step left to be written, or that are refused;
        None if the step failed early."""
        self._done: _DesiredLabels | None = None
        """What the last step wrote completely; None if something is pending."""

    def begin(self) -> None:
        self._owned, self._seen, self._done, self._pending = {}, {}, None, None

    def failures(self) -> dict[str, str]:
        """By node whose labels cannot be written, the cause."""
        return {node: failure.cause for node, failure in self._failures.items()}

    def pending_labels(self, keys: frozenset[str]) -> dict[str, dict[str, PendingLabel]] | None:
        """By key and node, the labels with these keys that the last step left to be written, and all labels of nodes
        that fail; None if the step failed early.
        """
        if self._pending is None:
            return None
        pending: dict[str, dict[str, PendingLabel]] = {}
        for node, wanted in self._pending.items():
            current = self._owned.get(node, {})
            for key in {key for key, _ in wanted.items() ^ current.items()}:
                if key in keys or node in self._failures:
                    label = PendingLabel(current.get(key, ""), wanted.get(key, ""))
                    pending.setdefault(key, {})[node] = label
        return pending

    def conflict(self, state: PolicyState) -> str:
        """A message that names the nodes where labels of the policy cannot be written, with causes; empty for none."""
        keys = {column.key for column in state.labels}
        nodes_by_cause: dict[str, list[str]] = {}
        for node, conflicting in sorted(self._conflicts.items()):
            for cause in {conflicting[key].cause for key in conflicting.keys() & keys}:
                nodes_by_cause.setdefault(cause, []).append(node)
        pending = self.pending_labels(frozenset()) or {}
        for node, cause in sorted(self.failures().items()):
            if node not in self._conflicts and any(node in pending.get(key, ()) for key in keys):
                nodes_by_cause.setdefault(cause, []).append(node)
        texts = []
        for cause, nodes in sorted(nodes_by_cause.items()):
            more = f" and {len(nodes) - _MAX_NAMED} more" if len(nodes) > _MAX_NAMED else ""
            texts.append(f"{cause} on node {', '.join(nodes[:_MAX_NAMED])}{more}; it is not changed")
        return "; ".join(texts)

    async def step(
        self,
        snapshot: Snapshot,
        columns: dict[str, node_labels.LabelColumn],
        held: frozenset[str] = frozenset(),
        waiting_pods: int = 0,
    ) -> None:
        """Write the labels that differ, for `_STEP_S` at most; the next snapshot continues. Labels with the keys `held`
        stay as they are.

        `waiting_pods` are those that kube-scheduler examines whenever one of these labels changes. If there are many,
        nodes that recover are labelled later (`ExaminationBudget`). The namespaces of the policies take turns. A node
        that cannot be written does not affect the others, and is tried again by the next step; if there are many such
        nodes, or if no request gets a response, the first error is raised at the end.
        """
        desired = _DesiredLabels(columns, held, snapshot.nodes)
        done, self._done, self._pending = self._done, None, None
        await self._mark_unconfirmed_nodes()
        if not self._unconfirmed and done is not None and done[1:] == desired[1:]:
            comparison = node_labels.require_same_labels(columns, done.columns)
            if await cooperative_scheduling.run(comparison):
                self._done, self._pending = done, {}
                return
        await asyncio.sleep(0)
        await run_api_calls(
            self._resync_owned_labels(node, frozenset(columns)) for node in sorted(self._unconfirmed)
        )
        await asyncio.sleep(0)
        await self._write_differing_labels(desired, waiting_pods)
        if not self._pending and not self._conflicts:
            self._done = desired

    async def _write_differing_labels(self, desired: _DesiredLabels, waiting_pods: int) -> None:
        columns = desired.columns
        wanted = await cooperative_scheduling.run(
            node_labels.desired_labels(columns, desired.nodes, self._owned, desired.held)
        )
        differing = self._queue_differing_nodes(wanted)
        self._turn += 1
        ordered = await cooperative_scheduling.run(
            node_labels.order_fairly(columns, differing, self._owned, self._turn)
        )
        due = self._due(ordered, differing, waiting_pods)
        errors: list[NodewiseError] = []
        try:
            await run_api_calls(self._finish_node(node, differing[node], columns, errors) for node in due)
        finally:
            nodes = {node: wanted.get(node, {}) for node in differing.keys() | self._conflicts.keys()}
            self._pending = {
                node: labels for node, labels in nodes.items() if labels != self._owned.get(node, {})
            }
            self._failures = {
                node: failure for node, failure in self._failures.items() if node in self._pending
            }
        failing = len(self._failures)
        if errors and (failing > MAX_FAILING_NODES or failing >= len(desired.nodes)):
            raise errors[0]

    def _queue_differing_nodes(self, wanted: Mapping[str, Labels]) -> dict[str, Labels]:
        """By node whose labels differ, the labels that it should have, without those in conflict."""
        self._expire_conflicts()
        allowed = {
            node: self._labels_without_conflict(node, wanted.get(node, {}))
            for node in wanted.keys() | self._owned.keys()
        }
        changed = {node for node, labels in allowed.items() if labels != self._owned.get(node, {})}
        self._queue = {node: None for node in self._queue if node in changed} | dict.fromkeys(sorted(changed))
        self._set_remaining(len(changed))
        return {node: allowed[node] for node in self._queue}

    def _due(self, ordered: Iterable[str], wanted: Mapping[str, Labels], waiting_pods: int) -> Iterator[str]:
        """The nodes that are written now. Those that begin to violate a policy do not wait for the budget, and those
        that failed before come last.
        """
        until_s = self._handle.clock.monotonic() + _STEP_S
        for node in sorted(ordered, key=self._failures.__contains__):
            now_s = self._handle.clock.monotonic()
            if now_s >= until_s:
                return
            if node in self._failures and now_s < self._failures[node].not_before_s:
                continue
            is_urgent = node_labels.begins_to_violate(wanted[node], self._owned.get(node, {}))
            if self._budget.take(now_s, waiting_pods, is_urgent=is_urgent):
                yield node

    async def _finish_node(
        self,
        node: str,
        wanted: Labels,
        columns: dict[str, node_labels.LabelColumn],
        errors: list[NodewiseError],
    ) -> None:
        """Write the labels of a node, in part if some are refused. An error of this node is recorded and appended to
        `errors`; that the API server does not respond is raised.
        """
        try:
            await self._write_in_groups(node, wanted, columns)
        except NodewiseError as error:
            if isinstance(error, Unavailable) and not (error.http_status or error.timeout_s):
                raise
            self._record_failure(node, error)
            errors.append(error)
        else:
            if node not in self._replaced:
                self._failures.pop(node, None)
            self._set_remaining(self._remaining - 1)

    async def _write_in_groups(
        self, node: str, wanted: Labels, columns: dict[str, node_labels.LabelColumn]
    ) -> None:
        """Write the labels in one request, or, if they are refused, those of each namespace in one of its own.

        The API server never refuses single labels with verdicts, which all have the same form.
        """
        try:
            await self._write(node, wanted)
        except (BadInput, Refused) as error:
            groups = node_labels.changed_label_groups(columns, wanted, self._owned.get(node, {}))
            if len(groups) == 1 or self._owner.is_forced:
                raise
            await self._write_one_group_after_another(node, wanted, groups, error)

    def _record_failure(self, node: str, error: NodewiseError) -> None:
        """The next step tries again. After a timeout the pause doubles, because a step waits for all of its writes."""
        cause = "; ".join(map(str, error.problems)) or str(error)
        before = self._failures.get(node)
        pause_s = 0.0
        if isinstance(error, Unavailable) and error.timeout_s:
            pause_s = (
                min(2 * before.pause_s, _LONGEST_PAUSE_S) if before and before.pause_s else error.timeout_s
            )
        self._failures[node] = _NodeFailure(cause, self._handle.clock.monotonic() + pause_s, pause_s)
        if before is None or before.cause != cause:
            logs.emit("controller_failed", controller="TelemetryController", node=node, error=str(error))

    async def _write_one_group_after_another(
        self,
        node: str,
        wanted: Labels,
        groups: Mapping[tuple[str, ...], set[str]],
        error: NodewiseError,
    ) -> None:
        """Write the labels of each namespace in a request of its own, so that refused ones do not block the others.

        The error is raised if all are refused.
        """
        accepted = False
        for keys in groups.values():
            kept = {key: value for key, value in self._owned.get(node, {}).items() if key not in keys}
            try:
                await self._write(node, kept | {key: wanted[key] for key in keys if key in wanted})
            except (BadInput, Refused) as refusal:
                self._add_conflicts(node, keys, "the API server refuses a label")
                logs.emit("label_conflict", node=node, keys=sorted(keys), error=str(refusal))
            else:
                accepted = True
        if not accepted:
            raise error

    def _set_remaining(self, count: int) -> None:
        """Set the number of nodes that are still to be written, and export it."""
        self._remaining = count
        self._handle.metrics_registry.set(self._owner.pending_nodes_metric, count)

    def _labels_without_conflict(self, node: str, wanted: Labels) -> Labels:
        conflicting = self._conflicts.get(node)
        return (
            {key: value for key, value in wanted.items() if key not in conflicting} if conflicting else wanted
        )

    async def _mark_unconfirmed_nodes(self) -> None:
        """Mark changed nodes whose labels differ from those that we know to own; they are read again."""
        seen: dict[str, Any] = {}
        is_first = not self._seen
        async for node in cooperative_scheduling.iterate_with_pauses(self._handle.nodes.values()):
            name = node.metadata.name
            seen[name] = node
            if self._seen.get(name) is node:
                continue
            self._conflicts.pop(name, None)
            owned = self._owned.get(name, {})
            labels = decode_node_labels(node)
            ours = {
                key: value for key, value in labels.items() if key in owned or self._owner.may_own(key, value)
            }
            if ours == owned:
                continue
            if is_first and self._owner.is_forced:
                self._owned[name] = ours
            else:
                self._unconfirmed.add(name)
        self._seen = seen

    def _expire_conflicts(self) -> None:
        """Forget deleted nodes, and conflicts that are older than `_CONFLICT_S`, whose labels are tried again."""
        self._failures = {name: failure for name, failure in self._failures.items() if name in self._seen}
        self._replaced = {name: uid for name, uid in self._replaced.items() if name in self._seen}
        now_s = self._handle.clock.monotonic()
        for node, conflicting in list(self._conflicts.items()):
            left = {key: conflict for key, conflict in conflicting.items() if conflict.until_s > now_s}
            if left:
                self._conflicts[node] = left
            else:
                del self._conflicts[node]

    async def _write(self, node: str, wanted: Labels) -> None:
        node_object = self._handle.nodes.get("", node)
        if node_object is None:
            self._owned.pop(node, None)
            return
        uid = node_object.metadata.uid
        # with the uid, because an apply to a node that was just deleted would create it again
        metadata = {"name": node, "uid": uid, "labels": wanted}
        body = {"apiVersion": NODES.api_version, "kind": NODES.kind, "metadata": metadata}
        try:
            response = await self._handle.api.patch(NODES.path(name=node), body, "apply", self._apply)
        except NotFound as error:
            self._forget_replaced_node(node, uid, error)
        except Conflict as error:
            if _conflicting_keys(error) & wanted.keys():
                await self._write_unconflicted_labels(node, wanted, error)
            else:
                self._forget_replaced_node(node, uid, error)
        except Unavailable:
            self._unconfirmed.add(node)  # the write may have succeeded
            raise
        else:
            self._handle.metrics_registry.count("label_writes_total")
            self._handle.node_writes.count += 1
            self._replaced.pop(node, None)
            self._owned[node] = wanted
            if not wanted:
                del self._owned[node]
            if self._owner.is_forced:
                labels = msgspec.json.decode(response, type=_LabelledObject).metadata.labels
                left = self._owner.select(labels).keys() - wanted.keys()
                await self._remove_foreign_labels(node, left)

    async def _remove_foreign_labels(self, node: str, keys: Iterable[str]) -> None:
        """Remove labels that other managers own: an apply leaves them."""
        removal = {"metadata": {"labels": dict.fromkeys(keys)}}
        if removal["metadata"]["labels"]:
            params = {"fieldManager": self._owner.field_manager}
            await self._handle.api.patch(NODES.path(name=node), removal, "merge", params)

    def _forget_replaced_node(self, node: str, uid: str, error: NodewiseError) -> None:
        """The node was deleted or recreated, which the watch shows soon. If it does not, the API server refuses it."""
        self._owned.pop(node, None)
        if self._replaced.get(node) == uid:
            raise error
        self._replaced[node] = uid

    async def _write_unconflicted_labels(self, node: str, wanted: Labels, error: Conflict) -> None:
        """Write the labels that no other manager owns."""
        conflicting = _conflicting_keys(error) & wanted.keys()
        self._add_conflicts(node, conflicting, "another manager owns a label with that key")
        logs.emit("label_conflict", node=node, keys=sorted(conflicting), error=str(error))
        left = {key: value for key, value in wanted.items() if key not in conflicting}
        if left != self._owned.get(node, {}):
            await self._write(node, left)

    def _add_conflicts(self, node: str, keys: Iterable[str], cause: str) -> None:
        conflict = _LabelConflict(self._handle.clock.monotonic() + _CONFLICT_S, cause)
        self._conflicts.setdefault(node, {}).update(dict.fromkeys(keys, conflict))

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
            inherited = (
                frozenset() if self._owner.is_forced else node_labels.inheritable_label_keys(metadata, keys)
            )
            if inherited:
                entries = node_labels.transfer_ownership(metadata, inherited, NODES.api_version)
                patch = [
                    {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
                    {"op": "replace", "path": "/metadata/managedFields", "value": entries},
                ]
                await self._handle.api.patch(path, patch, "json", self._apply)
                logs.emit("labels_taken_over", node=name, keys=sorted(inherited))
                metadata = {**metadata, "managedFields": entries}
        except NotFound:
            return {}
        owned = node_labels.owned_labels(metadata, self._owner.field_manager)
        if not self._owner.is_forced:
            return owned
        labels = self._owner.select(metadata.get("labels") or {})
        self._handle.metrics_registry.count("foreign_verdict_labels_total", len(labels.keys() - owned.keys()))
        return labels


class _LabelledObject(msgspec.Struct):
    """The part of a response that contains the labels."""

    class Metadata(msgspec.Struct):
        labels: dict[str, str] = {}

    metadata: Metadata


def decode_node_labels(node: Any) -> dict[str, str]:
    """The labels of a node. They are decoded when needed, because few of thousands of nodes need them."""
    labels = msgspec.json.decode(node.metadata.labels)
    if not isinstance(labels, dict):
        return {}
    return {key: value for key, value in labels.items() if isinstance(value, str)}


def _conflicting_keys(error: Conflict) -> set[str]:
    """The label keys for which a server-side apply was refused."""
    start = ".metadata.labels."
    return {
        problem.field.removeprefix(start) for problem in error.problems if problem.field.startswith(start)
    }


_APPLY: Final = {"fieldManager": FIELD_MANAGER}


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


def _decode_object(raw: msgspec.Raw) -> dict[str, Any]:
    document = msgspec.json.decode(raw)
    return document if isinstance(document, dict) else {}
