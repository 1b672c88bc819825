"""Writes a DeviceTaintRule for each device that a ClusterPlacementPolicy taints, and removes those of healed devices.

ResourceSlices and DeviceTaintRules are watched only while a policy has device rules, or had some by its status. Of
slices only the names of devices and the attributes that rules name are stored.

A write is level-triggered: names follow from policy and device, so a leader that was killed between two writes left at
most a rule that the next one finds by its label, and changes or removes. A rule of others is never written: new rules
are created, not applied, and changes and deletions name the uid.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from nodewise.agent import Snapshot
from nodewise.agent.controller_interface import Handle
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadInput, Conflict, NodewiseError, Refused
from nodewise.devices.device_taint_rules import (
    FIELD_MANAGER,
    NAME_PREFIX,
    POLICY_LABEL,
    DeviceTaintRule,
    TaintOfPolicy,
    policy_label,
)
from nodewise.devices.resource_slices import (
    DeviceId,
    ResourceSliceObject,
)
from nodewise.kube.api_server_interface import NotFound, served_version
from nodewise.kube.event_recorder import ObjectReference
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.kube.resource_kinds import DEVICE_TAINT_RULES, RESOURCE_SLICES, Resource
from nodewise.metrics.missing_values import REMEDY_SEPARATOR
from nodewise.observe import logs
from nodewise.policies import device_matching, device_taints, policy_status
from nodewise.policies.controller.object_patcher import ObjectPatcher, find_policy_object
from nodewise.policies.device_matching import Attributes, DeviceTable
from nodewise.policies.device_taints import DeviceInputs, DeviceReport, DeviceRules, DeviceTaints
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policies.policy_objects import RESOURCES
from nodewise.policies.state import TelemetryState

_CHECK_S: Final = 10.0
_UNUSED_S: Final = 60.0
"""The watches end if the replica has not led for this time."""
_RETRY_S: Final = 30.0
"""The time after which an API that is missing or refused is examined again."""
_REFUSED_S: Final = 60.0
_CONFIRMED_S: Final = 5.0
"""The time after which the watch counts again instead of the last write."""
_MISSING_RIGHT: Final = 'resource "devicetaintrules" in API group'
"""What the API server's message about a missing right contains, and that of the admission policy does not."""
_LABELS: Final = ("ResourceSlice (device rules)", "DeviceTaintRule (device rules)")


class _Watches(NamedTuple):
    """What is watched for one set of attributes."""

    attributes: Attributes
    resource: Resource
    slices: Reflector[Any]
    rules: Reflector[DeviceTaintRule]

    @property
    def are_synced(self) -> bool:
        """Whether all objects are known; slices are not watched without attributes."""
        return self.rules.synced and (self.slices.synced or not self.attributes)

    def own_rules(self) -> dict[str, DeviceTaintRule]:
        """The DeviceTaintRules of nodewise, by name."""
        named = ((rule.metadata.name, rule) for rule in self.rules.store.values())
        return {name: rule for name, rule in named if name.startswith(NAME_PREFIX)}


class _Written(NamedTuple):
    """The last write of a DeviceTaintRule."""

    outcome: TaintOfPolicy | str
    """What it says, or the uid of a deleted one."""
    at_s: float


def _with_remedy(cause: str) -> str:
    """The cause, with the remedy if it is a missing right."""
    if _MISSING_RIGHT not in cause:
        return cause
    return f"{cause}{REMEDY_SEPARATOR}apply what nodewise configure manifests device-taints prints"


class DeviceTaintWriter:
    """Evaluates device rules in the leader, and makes the DeviceTaintRules of nodewise equal to the result."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._rules = DeviceRules()
        self._patcher: ObjectPatcher[str, _Written] = ObjectPatcher(
            handle, lambda error: isinstance(error, (Conflict, Refused, BadInput)), _REFUSED_S
        )
        self._attributes: Attributes | None = None
        """Those of the rules; None before the first step of a leader, and while nothing is needed."""
        self._stepped_s = float("-inf")
        self._requested = asyncio.Event()
        self._watches: _Watches | None = None
        self._unavailable = ""
        """Why nothing can be watched."""
        self._is_changed = True
        self._table: DeviceTable | None = None
        self._absent_since_s: dict[DeviceId, float] = {}

    def begin(self) -> None:
        """Start as the leader: states are read from statuses and DeviceTaintRules."""
        self._rules = DeviceRules()
        self._patcher.begin()
        self._absent_since_s.clear()

    def _request(self, attributes: Attributes | None) -> None:
        """Watch devices with these attributes, or, if there are none, only DeviceTaintRules; None: nothing."""
        self._stepped_s = self._handle.clock.monotonic()
        if attributes != self._attributes:
            self._attributes = attributes
            self._requested.set()

    async def run(self) -> None:
        """Watch while it is needed, until cancelled."""
        while True:
            await self._requested.wait()
            while (attributes := self._attributes) is not None:
                self._requested.clear()
                try:
                    resource = await self._find_api(attributes)
                except NodewiseError as error:
                    self._unavailable, resource = _with_remedy(str(error)), None
                if resource is not None:
                    self._unavailable = ""
                    await self._watch(attributes, resource)
                elif self._attributes == attributes:
                    await self._handle.clock.sleep(_RETRY_S)
            self._requested.clear()

    async def _find_api(self, attributes: Attributes) -> Resource | None:
        """The version of DeviceTaintRule that the API server has, if the kinds may be listed."""
        api = self._handle.api
        resource = await served_version(api, DEVICE_TAINT_RULES)
        if resource is not None:
            slices = await served_version(api, RESOURCE_SLICES) if attributes else None
            for kind in filter(None, (resource, slices)):
                await api.get(kind.path(), {"limit": "1"})
            return resource
        self._unavailable = (
            "the API server does not serve DeviceTaintRule in resource.k8s.io/v1 or v1beta2: expected Kubernetes 1.37,"
            " or 1.36 with the feature gate DRADeviceTaintRules and --runtime-config=resource.k8s.io/v1beta2=true"
        )
        return None

    async def _watch(self, attributes: Attributes, resource: Resource) -> None:
        """Watch both kinds until the attributes change, or the replica no longer leads."""
        handle, registry = self._handle, self._handle.metrics_registry
        keep: Any = partial(device_matching.slice_devices, attributes=attributes)
        targets: tuple[ReflectorTarget[Any], ...] = (
            ReflectorTarget(RESOURCE_SLICES, ResourceSliceObject, keep=keep, label=_LABELS[0]),
            ReflectorTarget(
                resource, DeviceTaintRule, selectors={"labelSelector": POLICY_LABEL}, label=_LABELS[1]
            ),
        )
        slices, rules = (
            Reflector(handle.api, target, handle.clock, registry, random.random) for target in targets
        )
        slices.store.subscribe(lambda _: setattr(self, "_is_changed", True))
        self._watches, self._is_changed = _Watches(attributes, resource, slices, rules), True
        watching = [asyncio.ensure_future(each.run()) for each in (rules, *[slices] * bool(attributes))]
        changed = asyncio.ensure_future(self._requested.wait())
        try:
            while not changed.done():
                pause = asyncio.ensure_future(handle.clock.sleep(_CHECK_S))
                done, _ = await asyncio.wait({*watching, changed, pause}, return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
                for task in done:
                    await task
                if handle.clock.monotonic() - self._stepped_s > _UNUSED_S:
                    self._request(None)
        finally:
            self._watches = self._table = None
            for task in (*watching, changed):
                task.cancel()
            await asyncio.gather(*watching, changed, return_exceptions=True)
            for metric in ("kube_connected", "kube_contact_timestamp_seconds", "kube_objects"):
                for label in _LABELS:
                    registry.forget(metric, kind=label)

    async def step(  # complexity: the states of the watches
        self, snapshot: Snapshot, agent_state: TelemetryState
    ) -> Mapping[PolicyKey, DeviceReport]:
        """Evaluate all device rules and write what differs. The reports of policies; none until it is evaluated."""
        states = agent_state.policies.values()
        policies = [state.policy for state in states if self._needs_evaluation(state.policy)]
        if not policies and (self._attributes is None or self._unavailable):
            self._request(None)
            return {}
        self._request(device_matching.attributes_of_rules(policies))
        watches = self._watches
        if watches is None or watches.attributes != self._attributes or not watches.are_synced:
            refused = DeviceReport(refused=self._unavailable)
            return {policy.key: refused for policy in policies} if self._unavailable else {}
        existing = watches.own_rules()
        if not policies and not existing:
            self._request(None)
            return {}
        inputs = DeviceInputs(
            await self._update_table(watches, existing),
            agent_state.device_metrics,
            agent_state.max_ages,
            list(existing.values()),
            {policy.key: self._recorded(policy) for policy in policies},
            snapshot.at,
        )
        taints = await cooperative_scheduling.run(self._rules.evaluate(policies, inputs))
        self._patcher.retain({*existing, *taints.wanted})
        due = dict(self._due_writes(watches.resource, existing, taints))
        await self._patcher.run(due.items())
        return self._with_results(taints, existing, due)

    async def _update_table(  # complexity: sets of devices
        self, watches: _Watches, existing: Mapping[str, DeviceTaintRule]
    ) -> DeviceTable:
        """The devices, with those that are tainted and lost their slice lately."""
        now_s, table, absent_since_s = self._handle.clock.monotonic(), self._table, self._absent_since_s
        tainted = {device for rule in existing.values() if (device := rule.device) is not None}
        expired = {
            device for device, since_s in absent_since_s.items() if now_s - since_s > device_taints.ABSENT_S
        }
        if table is not None and not self._is_changed:
            # a tainted device is in the table, unless it is absent for too long
            known = {device for device in tainted | expired if str(device) in table.index}
            if known == tainted - expired:
                return table
        self._is_changed = False
        table = self._table = await cooperative_scheduling.run(
            device_matching.build_table(
                watches.slices.store.values(), watches.attributes, sorted(tainted - expired)
            )
        )
        absent = {*table.ids[table.present :], *(each for each in expired if str(each) not in table.index)}
        self._absent_since_s = {device: absent_since_s.get(device, now_s) for device in absent & tainted}
        return table

    def _needs_evaluation(self, policy: Policy) -> bool:
        """Whether it has device rules, or had some, whose DeviceTaintRules may be left."""
        if policy.device_taints or policy.key.kind != "ClusterPlacementPolicy":
            return bool(policy.device_taints)
        policy_object = find_policy_object(self._handle, policy.key, policy.uid)
        return policy_object is not None and b'"taintedDevices"' in bytes(policy_object.status)

    def _recorded(self, policy: Policy) -> tuple[Any, ...]:
        """The rules in the status of the policy."""
        policy_object = find_policy_object(self._handle, policy.key, policy.uid)
        return () if policy_object is None else policy_status.rules_of_status(policy_object)

    def _due_writes(
        self, resource: Resource, existing: Mapping[str, DeviceTaintRule], taints: DeviceTaints
    ) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """New and changed rules, then deletions of those of healed devices, and of policies that are gone."""
        now_s = self._handle.clock.monotonic()
        written = {
            name: write.outcome
            for name, write in self._patcher.written.items()
            if now_s - write.at_s < _CONFIRMED_S
        }
        for name, taint in taints.wanted.items():
            rule = existing.get(name)
            if written.get(name) != taint and (rule is None or not taint.is_written(rule)):
                yield name, partial(self._put, resource, taint, rule)
        for name in existing.keys() - taints.wanted.keys() - taints.held:
            if written.get(name) != existing[name].metadata.uid:
                yield name, partial(self._delete, resource, existing[name])

    async def _put(self, resource: Resource, taint: TaintOfPolicy, rule: DeviceTaintRule | None) -> None:
        api, now_s = self._handle.api, self._handle.clock.monotonic()
        if rule is None:
            await api.create(resource.path(), taint.body(resource), {"fieldManager": FIELD_MANAGER})
            logs.emit(
                "device_tainted",
                policy=taint.policy,
                device=str(taint.device),
                effect=taint.effect,
                reason=taint.reason,
            )
            about = ObjectReference(RESOURCES["ClusterPlacementPolicy"], "", taint.policy, taint.uid)
            note = f"tainted the device {taint.device} with {taint.effect}: {taint.reason}"
            self._handle.recorder.record(about, "Warning", "DeviceTainted", note, "Tainting")
        else:
            body = taint.body(resource, rule.metadata.uid)
            parameters = {"fieldManager": FIELD_MANAGER, "force": "true"}
            await api.patch(resource.path("", taint.name), body, "apply", parameters)
        self._patcher.written[taint.name] = _Written(taint, now_s)

    async def _delete(self, resource: Resource, rule: DeviceTaintRule) -> None:
        metadata, now_s = rule.metadata, self._handle.clock.monotonic()
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": metadata.uid}}
        with contextlib.suppress(NotFound):
            await self._handle.api.delete(resource.path("", metadata.name), options)
        self._patcher.written[metadata.name] = _Written(metadata.uid, now_s)
        logs.emit("device_taint_removed", policy=rule.policy_label, device=str(rule.device))

    def _count_present(self, existing: Mapping[str, DeviceTaintRule]) -> Counter[str]:
        """How many DeviceTaintRules each policy has after the last writes, by its label."""
        now_s = self._handle.clock.monotonic()
        labels = {name: rule.policy_label for name, rule in existing.items()}
        for name, (outcome, at_s) in self._patcher.written.items():
            if now_s - at_s >= _CONFIRMED_S:
                continue
            if isinstance(outcome, TaintOfPolicy):
                labels[name] = policy_label(outcome.policy)
            elif name in existing and existing[name].metadata.uid == outcome:
                del labels[name]
        return Counter(labels.values())

    def _with_results(
        self, taints: DeviceTaints, existing: Mapping[str, DeviceTaintRule], due: Container[str]
    ) -> dict[PolicyKey, DeviceReport]:
        """The reports, with the number of DeviceTaintRules of each policy that exist after the writes, and with those
        that cannot be written or deleted.
        """
        present = self._count_present(existing)
        self._handle.metrics_registry.set("device_taints", sum(present.values()))
        refusals: dict[str, list[str]] = {}
        for name, failure in self._patcher.failures.items():
            if name in due:
                taint = taints.wanted.get(name)
                label = policy_label(taint.policy) if taint else existing[name].policy_label
                action = "" if taint else "the deletion of "
                text = f"{action}the DeviceTaintRule {name}: {_with_remedy(failure.cause)}"
                refusals.setdefault(label, []).append(text)
        reports = {}
        for key, report in taints.reports.items():
            label = policy_label(key.name)
            refused = f"the API server refuses {refusals[label][0]}" if label in refusals else ""
            if (count := len(refusals.get(label, ()))) > 1:
                refused = f"{count} DeviceTaintRules are refused: {refused}"
            reports[key] = report._replace(tainted=present[label], refused=refused)
        return reports
