"""Checks of what the namespaces of policies may do: trust and budgets."""

from collections.abc import Iterator

from nodewise.doctor.facts import Controllers, Extenders, Policies
from nodewise.doctor.findings import Finding, check, finding


@check("namespace-not-trusted")
def check_namespace_trust(policies: Policies) -> Iterator[Finding]:
    """The verdict of the replicas, from the policy's status."""
    for policy in policies:
        if policy.not_trusted:
            remedy = f"kubectl label namespace {policy.namespace} nodewise.io/trusted=true"
            expected = "a trusted namespace"
            yield finding("namespace-not-trusted", policy.where, policy.not_trusted, expected, remedy=remedy)


@check("namespace-over-budget")
def check_namespace_budgets(policies: Policies) -> Iterator[Finding]:
    """The verdict of the replicas, from the policy's status."""
    for policy in policies:
        if policy.over_budget:
            yield finding(
                "namespace-over-budget", policy.where, policy.over_budget, "a policy within the budgets"
            )


@check("all-namespaces-trusted")
def check_trust_of_all_namespaces(extenders: Extenders, controllers: Controllers) -> Iterator[Finding]:
    for listed in (*extenders, *controllers):
        if listed.is_set("trust_all_namespaces"):
            expected = "trust for single namespaces"
            where = listed.workload.where
            yield finding("all-namespaces-trusted", where, "--trust-all-namespaces", expected)
