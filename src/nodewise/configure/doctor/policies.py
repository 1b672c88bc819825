"""What policies come to in this cluster, and what would have to be there for them."""

from collections.abc import Iterator, Sequence
from typing import Final

from nodewise.configure.doctor.entries import known, ours, unread
from nodewise.configure.doctor.facts import Configuration, Descheduler, Entry, Facts, Policy, Unread, Waiting
from nodewise.configure.doctor.findings import Answer, Finding, found, unlooked

_AFFINITY: Final = "RemovePodsViolatingNodeAffinity"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_ACTING: Final = f"a descheduler with {_AFFINITY} for {_REQUIRED}, here or where -n says"
_LEAST_SAMPLE: Final = 100
_LEAST_PERCENT: Final = 5
_FEW: Final = 3
_LABEL: Final = "telemetry-policy"
_REQUEST: Final = "telemetry/scheduling"
"""What pods with a policy request, where the configuration says nothing else."""


def check(facts: Facts) -> Iterator[Answer]:
    yield from _unknown(facts)
    yield from _misspelt(facts)
    yield from _without_effect(facts)
    yield from _trusted(facts)
    yield from _sampled(facts)
    yield from _drained(facts)


def sample(nodes: int, percentage: int) -> int:
    """How many feasible nodes kube-scheduler looks for (v1.36 `schedule_one.go`, numFeasibleNodesToFind)."""
    if nodes < _LEAST_SAMPLE:
        return nodes
    share = percentage or max(50 - nodes // 125, _LEAST_PERCENT)
    return min(max(nodes * share // 100, _LEAST_SAMPLE), nodes)


def _unknown(facts: Facts) -> Iterator[Answer]:
    id_ = "policy-unknown"
    for one in (facts.pods, facts.policies):
        if isinstance(one, Unread):
            yield from unlooked(one, id_)
    if isinstance(facts.pods, Unread) or isinstance(facts.policies, Unread):
        return
    there = {(one.namespace, one.name) for one in facts.policies}
    lost: dict[tuple[str, str], list[Waiting]] = {}
    for pod in facts.pods:
        if pod.policy and (pod.namespace, pod.policy) not in there:
            lost.setdefault((pod.namespace, pod.policy), []).append(pod)
    for (namespace, name), pods in sorted(lost.items()):
        elsewhere = sorted(other for other, same in there if same == name)
        hint = f"; there is one in {', '.join(elsewhere[:_FEW])}" if elsewhere else ""
        named = ", ".join(pod.name for pod in pods[:_FEW]) + (" …" if len(pods) > _FEW else "")
        seen = f"{len(pods)} {'pods name' if len(pods) > 1 else 'pod names'} it ({named}){hint}"
        yield found(id_, f"TASPolicy/{namespace}/{name}", seen, f"a TASPolicy in namespace {namespace}")


def _misspelt(facts: Facts) -> Iterator[Answer]:
    """Pods that are scheduled without their policy, one finding for each key of a namespace."""
    id_ = "policy-label-misspelt"
    if isinstance(facts.pods, Unread):
        yield from unlooked(facts.pods, id_)
        return
    by_key: dict[tuple[str, str], list[str]] = {}
    for pod in facts.pods:
        if pod.misspelt:
            by_key.setdefault((pod.namespace, pod.misspelt), []).append(pod.name)
    for (namespace, key), names in sorted(by_key.items()):
        listed = ", ".join(names[:_FEW]) + (" …" if len(names) > _FEW else "")
        count = f"{len(names)} pods have" if len(names) > 1 else "1 pod has"
        where = f"Pod/{namespace}/{names[0]}"
        yield found(id_, where, f"{count} the label {key} ({listed})", f"the label {_LABEL}")


def _without_effect(facts: Facts) -> Iterator[Answer]:
    id_ = "policy-without-effect"
    if isinstance(facts.policies, Unread):
        yield from unlooked(facts.policies, id_)
        return
    for policy in facts.policies:
        if policy.problems:
            more = f" and {len(policy.problems) - _FEW} more" if len(policy.problems) > _FEW else ""
            yield found(
                id_, policy.where, "; ".join(policy.problems[:_FEW]) + more, "fields that can be read"
            )
    if not facts.policies:
        return
    yield from _no_agent(facts)
    yield from unread(facts, id_)
    yield from _unasked(facts)
    yield from _unmarked(facts)


def _trusted(facts: Facts) -> Iterator[Answer]:
    """Policies that lack trust, by their status, and replicas that trust every namespace."""
    if isinstance(facts.policies, Unread):
        yield from unlooked(facts.policies, "namespace-not-trusted")
    else:
        for policy in facts.policies:
            if policy.not_trusted:
                remedy = f"kubectl label namespace {policy.namespace} nodewise.io/trusted=true"
                expected = "a trusted namespace"
                yield found(
                    "namespace-not-trusted", policy.where, policy.not_trusted, expected, remedy=remedy
                )
    if isinstance(facts.extenders, Unread):
        yield from unlooked(facts.extenders, "all-namespaces-trusted")
        return
    for extender in facts.extenders:
        if extender.says("trust_all_namespaces"):
            expected = "trust for single namespaces"
            yield found("all-namespaces-trusted", extender.pod.where, "--trust-all-namespaces", expected)


def _no_agent(facts: Facts) -> Iterator[Answer]:
    if isinstance(facts.extenders, Unread):
        yield from unlooked(facts.extenders, "policy-without-effect")
        return
    assert not isinstance(facts.policies, Unread)
    if facts.extenders and not any("telemetry" in one.agents for one in facts.extenders):
        where = ", ".join(one.pod.where for one in facts.extenders)
        seen = f"{len(facts.policies)} TASPolicies, and --agents is {', '.join(facts.extenders[0].agents)}"
        yield found("policy-without-effect", where, seen, "the agent telemetry among --agents")


def _telemetry(facts: Facts) -> list[Entry]:
    return [entry for _, entry in ours(facts) if entry.agent in ("", "telemetry")]


def _unasked(facts: Facts) -> Iterator[Finding]:
    """A strategy whose call no entry makes."""
    entries = _telemetry(facts)
    if not entries:
        return
    assert not isinstance(facts.policies, Unread)
    policy = next((one for one in facts.policies if "dontschedule" in one.strategies), None)
    if policy and not any(one.filter for one in entries):
        seen = "has the strategy dontschedule, and no entry of nodewise's has a filterVerb"
        yield found("policy-without-effect", policy.where, seen, "filterVerb: filter")


def _unmarked(facts: Facts) -> Iterator[Answer]:
    """Pods that name a policy, and are sent to nobody."""
    if isinstance(facts.pods, Unread):
        yield from unlooked(facts.pods, "policy-without-effect")
        return
    listed = () if isinstance(facts.policies, Unread) else facts.policies
    left = {(one.namespace, one.name) for one in listed if "dontschedule" in one.strategies}
    for pod in facts.pods:
        if (pod.namespace, pod.policy) not in left or pod.avoids_violating:
            continue
        seen = _unsent(facts, pod)
        if seen:
            left.remove((pod.namespace, pod.policy))  # once a policy
            where = f"Pod/{pod.namespace}/{pod.name}"
            wanted = "a scheduler that asks nodewise, and a request of the entry's managedResources"
            yield found("policy-without-effect", where, f"names the policy {pod.policy}, {seen}", wanted)


def _unsent(facts: Facts, pod: Waiting) -> str:
    """Why nodewise never hears of a pod; empty where it does, or nobody knows."""
    serving = [
        one.configuration
        for one in known(facts)
        if isinstance(one.configuration, Configuration)
        and any(profile.scheduler == pod.scheduler for profile in one.configuration.profiles)
    ]
    entries = [one for each in serving for one in each.entries if one.is_ours]
    filters = [one for one in entries if one.filter and one.agent in ("", "telemetry")]
    if not serving:
        # without any configuration the usual request is what kube-scheduler most probably looks for
        is_known = any(True for _ in known(facts)) or _REQUEST in pod.asks
        return "" if is_known else f"and asks for no {_REQUEST}, by which kube-scheduler knows whom to send"
    if not filters:
        asked_elsewhere = any(True for _ in ours(facts))  # else that nobody asks nodewise is found already
        return f"and its scheduler {pod.scheduler} does not ask nodewise to filter" if asked_elsewhere else ""
    marks = {mark.name for one in filters for mark in one.resources}
    if any(not one.resources for one in filters) or marks & set(pod.asks):
        return ""
    return (
        f"and asks for none of {', '.join(sorted(marks)[:_FEW])}, by which kube-scheduler knows whom to send"
    )


def _sampled(facts: Facts) -> Iterator[Answer]:
    """Whether kube-scheduler's sample can be all rejected, by the policies' verdicts as they are now."""
    id_ = "sample-too-small"
    yield from unread(facts, id_)
    for one in (facts.nodes, facts.policies):
        if isinstance(one, Unread):
            yield from unlooked(one, id_)
    if isinstance(facts.nodes, Unread) or isinstance(facts.policies, Unread):
        return
    filtering = [one for one in facts.policies if "dontschedule" in one.strategies]
    for name, looked in _samples(facts, facts.nodes):
        for policy in filtering:
            yield from _of_policy(facts, policy, name, looked)


def _samples(facts: Facts, nodes: int) -> Iterator[tuple[str, int]]:
    """The schedulers that ask for policies' verdicts and do not look at all nodes, each with how many it looks at."""
    for scheduler, entry in ours(facts):
        assert isinstance(scheduler.configuration, Configuration)
        if not entry.filter or entry.agent not in ("", "telemetry"):
            continue
        for profile in scheduler.configuration.profiles:
            share = scheduler.configuration.percentage if profile.percentage is None else profile.percentage
            looked = sample(nodes, share)
            if looked < nodes:
                yield profile.scheduler, looked


def _of_policy(facts: Facts, policy: Policy, scheduler: str, looked: int) -> Iterator[Answer]:
    assert isinstance(facts.nodes, int)
    if policy.rejects is None:
        why = Unread(policy.where, "nobody says how many nodes it rejects", remedy=_ASK)
        yield from unlooked(why, "sample-too-small")
        return
    if not looked <= policy.rejects < facts.nodes:
        return
    pods = () if isinstance(facts.pods, Unread) else facts.pods
    own = [pod for pod in pods if (pod.namespace, pod.policy) == (policy.namespace, policy.name)]
    if own and all(pod.avoids_violating for pod in own):
        return
    seen = f"rejects {policy.rejects:,} of {facts.nodes:,} nodes ({policy.source}), and {scheduler} looks at {looked:,}"
    wanted = f"fewer than {looked:,} rejected, a larger sample, or the node affinity"
    yield found("sample-too-small", policy.where, seen, wanted)


_ASK: Final = "the policy's status says so once nodewise runs; or give doctor the right to get metrics"


def _drained(facts: Facts) -> Iterator[Answer]:
    """A strategy deschedule wants a descheduler that acts on it."""
    id_ = "descheduler-missing"
    if isinstance(facts.policies, Unread):
        yield from unlooked(facts.policies, id_)
        return
    policy = next((one for one in facts.policies if "deschedule" in one.strategies), None)
    if policy is None:
        return
    if isinstance(facts.deschedulers, Unread):
        yield from unlooked(facts.deschedulers, id_)
        return
    if not facts.deschedulers:
        homes = " or ".join(facts.homes) or "this cluster"
        seen = f"has the strategy deschedule, and no descheduler runs in {homes}"
        yield found(id_, policy.where, seen, _ACTING)
        return
    yield from _idle(facts.deschedulers, policy)


def _idle(deschedulers: Sequence[Descheduler], policy: Policy) -> Iterator[Answer]:
    """The deschedulers, if none of them acts on the strategy."""
    idle: list[Answer] = []
    for one in deschedulers:
        if isinstance(one.plugins, Unread):
            yield from unlooked(one.plugins, "descheduler-missing")
            return
        if _AFFINITY in one.plugins and (not one.affinities or _REQUIRED in one.affinities):
            return
        seen = f"has {', '.join(one.plugins) or 'no plugin'}, and {policy.where} has the strategy deschedule"
        idle.append(found("descheduler-missing", one.where, seen, _ACTING))
    yield from idle
