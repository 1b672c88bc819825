"""ValidatingAdmissionPolicies: whether they limit what nodewise's accounts write, and who may trust a namespace."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from nodewise.configure.doctor import workloads
from nodewise.configure.doctor.facts import AdmissionPolicy, Extender, Facts, Unread
from nodewise.configure.doctor.findings import Answer, found, unlooked
from nodewise.configure.doctor.objects import at, items, text, texts

_ID: Final = "admission-policy-missing"
_TRUSTED: Final = "nodewise.io/trusted"


def read(policies: Iterable[Any], bindings: Iterable[Any]) -> tuple[AdmissionPolicy, ...]:
    """The policies that fail closed and have a binding that denies everywhere; others enforce nothing."""
    denying = {
        text(binding, "spec", "policyName")
        for binding in bindings
        if "Deny" in texts(binding, "spec", "validationActions")
        and at(binding, "spec", "matchResources") is None
    }
    return tuple(
        _policy(policy)
        for policy in policies
        if text(policy, "metadata", "name") in denying and text(policy, "spec", "failurePolicy") != "Ignore"
    )


def _policy(policy: Any) -> AdmissionPolicy:
    rules = items(policy, "spec", "matchConstraints", "resourceRules")
    conditions = items(policy, "spec", "matchConditions")
    return AdmissionPolicy(
        text(policy, "metadata", "name"),
        frozenset(resource for rule in rules for resource in texts(rule, "resources")),
        tuple(text(condition, "expression") for condition in conditions),
    )


def check(facts: Facts) -> Iterator[Answer]:
    """Findings for accounts and for the label of namespaces that no policy protects."""
    if isinstance(facts.extenders, Unread):
        yield from unlooked(facts.extenders, _ID)
        return
    if isinstance(facts.admission, Unread):
        yield from unlooked(facts.admission, _ID)
        return
    extenders = [extender for extender in facts.extenders if _writes_as_itself(extender)]
    for extender in extenders:
        yield from _accounts(extender, facts.admission)
    if extenders and not any(_is_about(policy, "namespaces", _TRUSTED) for policy in facts.admission):
        yield found(
            _ID,
            "ValidatingAdmissionPolicy/nodewise-trust",
            f"no policy limits who may set the namespace label {_TRUSTED}",
            "the policy of deploy/trust.yaml, with a binding that denies",
        )


def _writes_as_itself(extender: Extender) -> bool:
    """Whether it writes to a cluster with an account that it does not share with kube-scheduler."""
    is_shared = any(workloads.runs(container, "kube-scheduler") for container in extender.pod.containers)
    return not (is_shared or extender.says("no_cluster") or extender.settings.get("objects_from"))


def _accounts(extender: Extender, policies: tuple[AdmissionPolicy, ...]) -> Iterator[Answer]:
    user = f"'system:serviceaccount:{extender.pod.namespace}:{extender.pod.account}'"
    files = {"nodes": "deploy/rbac.yaml"} | ({"pods": "deploy/gpu.yaml"} if "gpu" in extender.agents else {})
    for resource, file in files.items():
        if not any(_is_about(policy, resource, user) for policy in policies):
            yield found(
                _ID,
                f"ServiceAccount/{extender.pod.namespace}/{extender.pod.account}",
                f"no policy limits what it writes to {resource}",
                f"the policy of {file} for this account, with a binding that denies",
            )


def _is_about(policy: AdmissionPolicy, resource: str, words: str) -> bool:
    return resource in policy.resources and any(words in condition for condition in policy.conditions)
