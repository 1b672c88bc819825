"""The pods that wait because no node is feasible, grouped so that equal ones are filtered once.

Only pods that an agent filters or rejected count. The number of other pods, which any tenant can create, costs nothing.
"""

from collections import OrderedDict
from collections.abc import Generator, Hashable
from typing import Any, Final

import msgspec

from nodewise.agent import FilterPlugin, NodeIndex, Plugin, Snapshot
from nodewise.agent.verdicts import OWN_REASON
from nodewise.engine.agent_chain import AgentChain
from nodewise.kube.store import ChangeLog, Store

_PODS: Final = "pods"
"""The only kind in the log of changes."""


class PodCondition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class WaitingPodMetadata(msgspec.Struct, frozen=True, gc=False):
    deletionTimestamp: str | None = None  # noqa: N815 - the API's name


class PodStatus(msgspec.Struct, frozen=True, gc=False):
    conditions: tuple[PodCondition, ...] = ()


class WaitingPodFields(msgspec.Struct, frozen=True):
    """The fields of a pod that requeueing reads, in addition to those of agents."""

    metadata: WaitingPodMetadata = WaitingPodMetadata()
    status: PodStatus = PodStatus()


_NO_STATE: Final = Snapshot(NodeIndex(), {}, 0.0)


def is_waiting(pod: Any, chain: AgentChain) -> bool:
    """Whether kube-scheduler found no feasible node for the pod, and an agent rejected it, or filters such pods always.

    kube-scheduler ignores a pod that is being deleted, even while a finalizer keeps it.
    """
    message = _rejection_message(pod)
    return (
        pod.metadata.deletionTimestamp is None
        and message is not None
        and (_is_own_rejection(message, chain) or chain.equivalence_key(pod, _NO_STATE) is not None)
    )


class PodGroup(msgspec.Struct, gc=False, eq=False):
    """The waiting pods of one namespace with equal equivalence keys, which pass the same nodes."""

    namespace: str
    key: Hashable
    """None for pods that nodewise rejected and no agent filters any more, as after the deletion of their policy."""
    pods: dict[str, Any] = msgspec.field(default_factory=dict)
    """By uid; never empty while the group is in `WaitingPods`."""
    fits: bool = True
    """Whether a node passed them when they were filtered last. False if nodewise rejected a pod that is new here."""
    tries: int = 0
    """Events since they fit."""
    due_s: float = float("inf")
    """The time of the next event while they fit."""


class WaitingPods:
    """The groups of the waiting pods, by namespace."""

    def __init__(self, store: Store[Any], chain: AgentChain) -> None:
        """`store` has the pods for which `is_waiting` holds."""
        self._store = store
        self._chain = chain
        self.restart()
        store.subscribe(lambda changes: self._log.add(_PODS, changes))

    def restart(self) -> None:
        """Forget everything; the next `update` starts from nothing."""
        self._log = ChangeLog()
        self._groups: dict[str, OrderedDict[Hashable, PodGroup]] = {}
        """By namespace and key; of one namespace first the group that `take_next` returned longest ago."""
        self._group_by_uid: dict[str, PodGroup] = {}
        self._versions: tuple[object, ...] | None = None
        self._namespace_versions: dict[str, tuple[object, ...]] = {}

    def __len__(self) -> int:
        """The number of pods."""
        return len(self._group_by_uid)

    def update(self, snapshot: Snapshot) -> Generator[None, None, None]:
        """Apply the changes since the last call.

        Cost: one equivalence key for each changed pod, and for every pod of a namespace if what its keys depend on
        changed in the snapshot. So a tenant who edits policies all the time pays with keys of own pods only.
        """
        changes = self._log.take()
        versions = self._chain.equivalence_versions(snapshot)
        if changes is None:
            self._groups, self._group_by_uid, self._namespace_versions = {}, {}, {}
        for old, new in (changes or {}).get(_PODS, {}).values():
            yield
            if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
                self._remove(old.metadata.uid)
            if new is not None:
                self._add_or_replace(new, snapshot)
        if changes is None or not _are_same(versions, self._versions):
            self._versions = versions
            yield from self._update_namespaces(snapshot)

    def _update_namespaces(self, snapshot: Snapshot) -> Generator[None, None, None]:
        """Compute the keys of all pods of the namespaces whose version changed."""
        before, self._namespace_versions = self._namespace_versions, {}
        changed: dict[str, bool] = {}
        for pod in list(self._store.values()):
            yield
            namespace = pod.metadata.namespace
            if namespace not in changed:
                versions = self._chain.namespace_equivalence_versions(snapshot, namespace)
                self._namespace_versions[namespace] = versions
                changed[namespace] = not _are_same(versions, before.get(namespace))
            if changed[namespace]:
                self._add_or_replace(pod, snapshot)

    def group_counts(self) -> dict[str, int]:
        """The number of groups of each namespace that has any."""
        return {namespace: len(groups) for namespace, groups in self._groups.items()}

    def take_next(self, namespace: str) -> PodGroup:
        """The group of the namespace that this returned longest ago; a new group comes after all others."""
        groups = self._groups[namespace]
        key, group = groups.popitem(last=False)
        groups[key] = group
        return group

    def _add_or_replace(self, pod: Any, snapshot: Snapshot) -> None:
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        key = self._chain.equivalence_key(pod, snapshot)
        is_rejected = _is_own_rejection(_rejection_message(pod) or "", self._chain)
        if key is None and not is_rejected:
            self._remove(uid)
            return
        group = self._group_by_uid.get(uid)
        if group is None or group.key != key:
            self._remove(uid)
            group = self._groups.setdefault(namespace, OrderedDict()).setdefault(
                key, PodGroup(namespace, key)
            )
            self._group_by_uid[uid] = group
            if is_rejected:
                group.fits = False
        group.pods[uid] = pod

    def _remove(self, uid: str) -> None:
        group = self._group_by_uid.pop(uid, None)
        if group is None:
            return
        del group.pods[uid]
        if not group.pods:
            groups = self._groups[group.namespace]
            del groups[group.key]
            if not groups:
                del self._groups[group.namespace]


def _are_same(versions: tuple[object, ...], before: tuple[object, ...] | None) -> bool:
    return before is not None and all(
        version is known for version, known in zip(versions, before, strict=True)
    )


def _is_own_rejection(message: str, chain: AgentChain) -> bool:
    """Whether the message of a rejection is nodewise's."""
    return OWN_REASON in message or any(
        mark in message for agent in chain.agents for mark in _reason_marks(agent)
    )


def _reason_marks(agent: Plugin[Any, Any]) -> tuple[str, ...]:
    """Texts that mark the agent's reasons: its name, unless it uses the texts of an older system."""
    return (isinstance(agent, FilterPlugin) and agent.reason_marks) or (f" {agent.name} ",)


def _rejection_message(pod: Any) -> str | None:
    """kube-scheduler's message about a pod without a feasible node; None for any other pod."""
    for condition in pod.status.conditions:
        if (
            condition.type == "PodScheduled"
            and condition.status == "False"
            and condition.reason == "Unschedulable"
        ):
            return str(condition.message)
    return None
