"""Adds the ResourceClaims of pods with claim templates to objects from files.

In a cluster, kube-controller-manager creates such a claim for each pod, and names it in the status of the pod. Source:
Kubernetes 1.37 `pkg/controller/resourceclaim/controller.go`.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from nodewise.devices.resource_claims import ClaimingPodSpec, ClaimingPodStatus, claims_of_pod
from nodewise.devices.resource_slices import DeviceObjectMetadata
from nodewise.kube.object_files import FileObject, FileObjects
from nodewise.kube.resource_kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from nodewise.kube.store import Key


class _TemplateSpec(msgspec.Struct, frozen=True):
    spec: msgspec.Raw = msgspec.Raw(b"{}")


class _Template(msgspec.Struct, frozen=True):
    metadata: DeviceObjectMetadata
    spec: _TemplateSpec = _TemplateSpec()


class _Claim(msgspec.Struct, frozen=True):
    metadata: DeviceObjectMetadata


class _PodSpec(ClaimingPodSpec, frozen=True, gc=False, rename="camel"):
    node_name: str | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: DeviceObjectMetadata
    spec: _PodSpec = _PodSpec()
    status: ClaimingPodStatus | None = None


_POD: Final = msgspec.json.Decoder(_Pod)


def add_claims(objects: FileObjects) -> FileObjects:
    """The objects, with a claim for each template of a waiting pod that has none yet. Templates that are not among the
    objects add nothing. `BadInput` names invalid templates and claims.
    """
    listed = objects.of(RESOURCE_CLAIM_TEMPLATES, _Template)
    if not listed:
        return objects
    templates = {(each.metadata.namespace, each.metadata.name): each.spec.spec for each in listed}
    names = {(each.metadata.namespace, each.metadata.name) for each in objects.of(RESOURCE_CLAIMS, _Claim)}
    entries = {kind: objects.entries(*kind) for kind in objects.kinds()}
    claims = entries.setdefault((RESOURCE_CLAIMS.group, RESOURCE_CLAIMS.kind), [])
    pods = entries.get((PODS.group, PODS.kind), [])
    for at, entry in enumerate(pods):
        missing = _missing_claims(entry, templates)
        statuses = []
        for reference, (namespace, base), spec in missing:
            more = (f"{base}-{number}" for number in itertools.count(2))
            name = next(each for each in itertools.chain([base], more) if (namespace, each) not in names)
            names.add((namespace, name))
            claims.append(_claim(entry, namespace, name, spec))
            statuses.append({"name": reference, "resourceClaimName": name})
        if statuses:
            pods[at] = _with_statuses(entry, statuses)
    return FileObjects(entries)


def _missing_claims(
    entry: FileObject, templates: Mapping[Key, msgspec.Raw]
) -> list[tuple[str, Key, msgspec.Raw]]:
    """The references of a waiting pod whose claims do not exist, with namespace, name and spec of these."""
    try:
        pod = _POD.decode(entry.data)
    except msgspec.MsgspecError:
        return []  # reported by what reads the pod
    if pod.spec.node_name:
        return []
    namespace = pod.metadata.namespace or "default"
    return [
        (each.reference, (namespace, f"{pod.metadata.name}-{each.reference}"), spec)
        for each in claims_of_pod(pod.spec, pod.status or ClaimingPodStatus())
        if not each.claim and (spec := templates.get((namespace, each.template))) is not None
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
