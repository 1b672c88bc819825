"""Reads the state of a pod, and the policies that select it, which explain its placement."""

from typing import NamedTuple

import msgspec

from nodewise.base.errors import UNREADABLE, BadInput, NodewiseError, Problem
from nodewise.cli.explain import native_labels, pod_policies, similar_names
from nodewise.cli.explain.native_labels import NativeState
from nodewise.cli.explain.pod_policies import SelectingPolicy
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.resource_kinds import PODS
from nodewise.policies.agent import find_misspelt_policy_label
from nodewise.policies.policy_selection import POLICY_LABEL

DEFAULT_SCHEDULER = "default-scheduler"


class PodState(NamedTuple):
    """The fields of a pod that explain its placement. `-o json` prints them under these names."""

    uid: str
    created: str
    """RFC 3339."""
    node: str
    """Empty while it waits."""
    phase: str
    scheduler: str
    gates: tuple[str, ...]
    asks: tuple[str, ...]
    """The extended resources that its containers request; they decide whether kube-scheduler calls nodewise."""
    reason: str = ""
    message: str = ""
    """Reason and message of the condition PodScheduled while it is not true."""
    policy: str | None = None
    """The TASPolicy that its label names; None without the label."""
    misspelt: str = ""
    """A label key that is nearly the one that names a policy; empty if there is none."""


class PodReadResult(NamedTuple):
    """The result of reading the pod; without a cluster all fields are empty."""

    state: PodState | None
    gone: bool = False
    missing: str = ""
    """What does not exist, with similar names, if the pod is gone."""
    error: str = ""
    policies: tuple[SelectingPolicy, ...] = ()
    """The policies that select the pod now."""
    policies_error: str = ""
    """Why these are not known."""
    missing_policy: str = ""
    """That the TASPolicy that the pod's label names does not exist, with a similar name; empty if it exists."""
    native: NativeState | None = None
    """What places the pod in native mode; None if that does not concern the pod."""


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, msgspec.Raw] | None = None
    limits: dict[str, msgspec.Raw] | None = None


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources | None = None


class _Gate(msgspec.Struct, frozen=True):
    name: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    scheduler_name: str = DEFAULT_SCHEDULER
    scheduling_gates: tuple[_Gate, ...] | None = None
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""
    conditions: tuple[_Condition, ...] | None = None


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    creation_timestamp: str = ""
    labels: dict[str, str] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()


async def read_pod(
    api: Api, namespace: str, name: str, timeout_s: float, *, own_namespace: str
) -> PodReadResult:
    """The current state of a pod, and the policies that select it. `own_namespace` is that of nodewise."""
    try:
        body = await api.get(PODS.path(namespace, name), timeout_s=timeout_s)
        state = parse_pod_state(body)
    except NotFound:
        missing = await similar_names.describe_missing_pod(api, namespace, name, timeout_s)
        return PodReadResult(None, gone=True, missing=missing)
    except NodewiseError as error:
        return PodReadResult(None, error=str(error))
    try:
        policies = await pod_policies.read_pod_policies(api, body, own_namespace)
        native = await native_labels.read_native_state(api, body, policies.by_label, own_namespace)
        return PodReadResult(
            state,
            policies=policies.selecting,
            policies_error=policies.unreadable,
            missing_policy=policies.missing,
            native=native,
        )
    except NodewiseError as error:
        return PodReadResult(state, policies_error=str(error))


def parse_pod_state(body: bytes) -> PodState:
    """The state in a Pod's JSON. `BadInput` if it is not a Pod."""
    try:
        pod = msgspec.json.decode(body, type=_Pod)
    except UNREADABLE as error:
        raise BadInput("the pod", [Problem("", str(error), "a Pod")]) from error
    spec, condition = pod.spec, _unscheduled_condition(pod.status)
    labels = pod.metadata.labels or {}
    gates = tuple(gate.name for gate in spec.scheduling_gates or ())
    return PodState(
        pod.metadata.uid,
        pod.metadata.creation_timestamp,
        spec.node_name,
        pod.status.phase,
        spec.scheduler_name,
        gates,
        _extended_resources(spec),
        condition.reason,
        condition.message,
        labels.get(POLICY_LABEL),
        find_misspelt_policy_label(labels),
    )


def _unscheduled_condition(status: _Status) -> _Condition:
    unscheduled = (
        condition
        for condition in status.conditions or ()
        if condition.type == "PodScheduled" and condition.status != "True"
    )
    return next(unscheduled, _Condition())


def _extended_resources(spec: _Spec) -> tuple[str, ...]:
    """Requested resources with a domain. kube-scheduler considers containers and init containers only."""
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    resources = [container.resources for container in containers if container.resources]
    names = {
        name
        for container_resources in resources
        for name in (*(container_resources.requests or ()), *(container_resources.limits or ()))
    }
    return tuple(sorted(name for name in names if "/" in name))
