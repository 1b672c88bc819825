"""Adds the ResourceClaims of pods with claim templates to objects from files.

In a cluster, kube-controller-manager creates such a claim for each pod, and names it in the status of the pod. Source:
Kubernetes 1.37 `pkg/controller/resourceclaim/controller.go`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from nodewise.base.errors import did_you_mean
from nodewise.devices.resource_claims import (
    ClaimingPodSpec,
    ClaimingPodStatus,
    ClaimSpec,
    PodClaim,
    claims_of_pod,
)
from nodewise.devices.resource_slices import DeviceObjectMetadata
from nodewise.kube.object_files import DEFAULT_NAMESPACE, FileObject, FileObjects
from nodewise.kube.resource_kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from nodewise.kube.store import Key


class _ReadSpec(msgspec.Struct, frozen=True):
    spec: ClaimSpec


class _ReadTemplate(msgspec.Struct, frozen=True):
    """What `decide` reads of a template, which names invalid fields."""

    metadata: DeviceObjectMetadata
    spec: _ReadSpec


class _TemplateSpec(msgspec.Struct, frozen=True):
    spec: msgspec.Raw


class _Template(msgspec.Struct, frozen=True):
    metadata: DeviceObjectMetadata
    spec: _TemplateSpec


class _PodSpec(ClaimingPodSpec, frozen=True, gc=False, rename="camel"):
    node_name: str | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: DeviceObjectMetadata
    spec: _PodSpec = _PodSpec()
    status: ClaimingPodStatus | None = None


_POD: Final = msgspec.json.Decoder(_Pod)


def add_claims(objects: FileObjects, warn: Callable[[str], None]) -> FileObjects:
    """The objects, with a claim for each template of a waiting pod that has none yet. Unknown names of templates are
    warnings, unless there is no template at all. `BadInput` names invalid templates.

    The claim `web:gpus` of the pod `web` has a name that no object of a cluster can have.
    """
    if not objects.of(RESOURCE_CLAIM_TEMPLATES, _ReadTemplate):
        return objects
    templates = {
        (each.metadata.namespace, each.metadata.name): each.spec.spec
        for each in objects.of(RESOURCE_CLAIM_TEMPLATES, _Template)
    }
    entries = {kind: objects.entries(*kind) for kind in objects.kinds()}
    claims = []
    unknown: dict[Key, FileObject] = {}
    pods = entries.get((PODS.group, PODS.kind), [])
    for at, entry in enumerate(pods):
        statuses = []
        for namespace, claim, reference in _missing_claims(entry):
            spec = templates.get((namespace, reference.template))
            if spec is None:
                unknown.setdefault((namespace, reference.template), entry)
                continue
            claims.append(_claim(entry, namespace, claim, spec))
            statuses.append({"name": reference.reference, "resourceClaimName": claim})
        if statuses:
            pods[at] = _with_statuses(entry, statuses)
    for (namespace, name), entry in unknown.items():
        similar = did_you_mean(
            name, sorted(other for of_namespace, other in templates if of_namespace == namespace)
        )
        warn(f"Warning: {entry.where}: no file has the ResourceClaimTemplate {namespace}/{name}{similar}")
    if claims:
        entries.setdefault((RESOURCE_CLAIMS.group, RESOURCE_CLAIMS.kind), []).extend(claims)
    return FileObjects(entries)


def _missing_claims(entry: FileObject) -> list[tuple[str, str, PodClaim]]:
    """The namespace, the name and the reference of each claim of a template that a waiting pod does not have yet."""
    try:
        pod = _POD.decode(entry.data)
    except msgspec.MsgspecError:
        return []  # reported by what reads the pod
    if pod.spec.node_name:
        return []
    return [
        (pod.metadata.namespace or DEFAULT_NAMESPACE, f"{pod.metadata.name}:{each.reference}", each)
        for each in claims_of_pod(pod.spec, pod.status or ClaimingPodStatus())
        if each.template and not each.claim
    ]


def _claim(pod: FileObject, namespace: str, name: str, spec: msgspec.Raw) -> FileObject:
    claim = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
    return FileObject(pod.location, msgspec.json.encode(claim))


def _with_statuses(pod: FileObject, created: Sequence[Mapping[str, str]]) -> FileObject:
    """The pod with the names of created claims in its status."""
    fields = msgspec.json.decode(pod.data)
    status = fields.get("status") or {}
    statuses = [*(status.get("resourceClaimStatuses") or ()), *created]
    changed = {**fields, "status": {**status, "resourceClaimStatuses": statuses}}
    return FileObject(pod.location, msgspec.json.encode(changed))
