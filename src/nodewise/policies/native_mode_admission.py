"""Whether the admission policies of native mode (`deploy/native.yaml`) are installed. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nodewise.agent import ObjectKey, Resource, Watched

GATE: Final = "nodewise.io/policy-not-active"
"""The scheduling gate of pods that were created before all nodes had the label of their policy."""
POLICIES: Final = "mutatingadmissionpolicies"
BINDINGS: Final = "mutatingadmissionpolicybindings"
"""The keys in `ClusterState.objects`."""


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _Patch(msgspec.Struct, frozen=True):
    expression: str = ""


class _Mutation(msgspec.Struct, frozen=True):
    jsonPatch: _Patch | None = None  # noqa: N815 - the API's name


class _Spec(msgspec.Struct, frozen=True):
    mutations: tuple[_Mutation, ...] | None = None
    policyName: str = ""  # noqa: N815
    """Of a binding."""


class AdmissionObject(msgspec.Struct, frozen=True):
    """A MutatingAdmissionPolicy, or the binding of one."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


def _keep_gating_policy(policy: AdmissionObject) -> AdmissionObject | None:
    """The name of a policy that adds the gate; None for another policy. The chart and users may rename the policies."""
    patches = (mutation.jsonPatch for mutation in policy.spec.mutations or ())
    return (
        AdmissionObject(policy.metadata)
        if any(patch and GATE in patch.expression for patch in patches)
        else None
    )


def _watched(name: str, kind: str, **more: Any) -> Watched:
    resource = Resource("admissionregistration.k8s.io", "v1", name, kind, namespaced=False)
    return Watched(name, resource, AdmissionObject, is_optional=True, **more)


WATCHED: Final = (
    _watched(POLICIES, "MutatingAdmissionPolicy", keep=_keep_gating_policy),
    _watched(BINDINGS, "MutatingAdmissionPolicyBinding"),
)
"""API servers before 1.36 do not serve these kinds."""


def is_installed(objects: Mapping[str, Mapping[ObjectKey, Any]]) -> bool:
    """Whether an admission policy that adds the gate has a binding. Without one, a policy has no effect."""
    names = {policy.metadata.name for policy in objects.get(POLICIES, {}).values()}
    return any(binding.spec.policyName in names for binding in objects.get(BINDINGS, {}).values())
