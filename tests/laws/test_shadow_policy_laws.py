"""A policy in the mode Shadow changes no byte of any response, whatever it contains and whatever other policies do.

After any changes of the mode, responses are those of the mode alone.
"""

import itertools
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.agents.telemetry import KIND
from nodewise.extender.routes import RequestHandler
from nodewise.policies.agent import TelemetryAgent
from nodewise.policies.options import TelemetryOptions
from tests import short_and_long_case_counts
from tests.unit.policies.placement_policy_cluster import ALL, Cluster, pod, policy_object
from tests.unit.policies.policy_snapshot_builders import metrics_snapshot, policy, rule, series

NODES = ["n1", "n2", "n3"]
HANDLER = RequestHandler([KIND], {KIND.name: TelemetryOptions()})
LABELS: list[dict[str, str]] = [
    {},
    {"app": "web"},
    {"app": "web", "telemetry-policy": "named"},
    {"telemetry-policy": "named"},
    {"telemetry-policy": "none"},
]
CANDIDATES = [list(names) for size in range(4) for names in itertools.permutations(NODES, size)]
BODIES = [
    msgspec.json.encode(
        {
            "Pod": {
                "metadata": {"name": "p", "namespace": namespace, "uid": "u", "labels": labels},
                "spec": {},
            },
            "NodeNames": [*names, "unknown"],
        }
    )
    for labels in LABELS
    for namespace in ("d", "e")
    for names in CANDIDATES
]
"""160 bodies; with both verbs 320 requests in each of the 32 examples of `make test` and 3,200 of `make test-long`."""

COMPARISONS = st.fixed_dictionaries(
    {"metric": st.sampled_from(["heat", "load", "absent"]), "above": st.sampled_from([0, 5, "0.5"])},
    optional={"whenMissing": st.sampled_from(["Allow", "Reject"]), "unknown": st.just(1)},
)
SPECS = st.fixed_dictionaries(
    {
        "podSelector": st.sampled_from(
            [
                ALL,
                {"matchLabels": {"app": "web"}},
                {"matchLabels": {"telemetry-policy": "none"}},
                {"matchExpressions": [{"key": "telemetry-policy", "operator": "In", "values": ["named"]}]},
            ]
        ),
        "avoid": st.lists(COMPARISONS, min_size=1, max_size=3),
    },
    optional={
        "enforcement": st.sampled_from(["Required", "Preferred"]),
        "prefer": st.just([{"metric": "load", "order": "Ascending"}]),
    },
)
MODES = st.sampled_from(["Enforce", "Canary", "Shadow", "stepped back"])
SCOPES = st.sampled_from(["d", ""])
VALUES = st.dictionaries(st.sampled_from(NODES), st.sampled_from([0, 1, 9, None]), max_size=3)


def made(name: str, namespace: str, created: str, spec: Any) -> Any:
    return policy_object(name, namespace, created, spec | ({} if namespace else {"namespaceSelector": ALL}))


def responses(cluster: Cluster) -> list[bytes]:
    return [
        HANDLER.handle(path, body, cluster.snapshot, 1000.0).body
        for body in BODIES
        for path in ("/scheduler/filter", "/scheduler/prioritize")
    ]


@settings(max_examples=short_and_long_case_counts.of(32, 3200))
@given(
    st.lists(st.tuples(SCOPES, SPECS), max_size=2),
    st.lists(st.tuples(SCOPES, SPECS), min_size=1, max_size=2),
    st.booleans(),
    VALUES,
    VALUES,
)
def test_shadow_policies_change_no_response(
    others: list[Any], shadows: list[Any], has_named: bool, heat: Any, load: Any
) -> None:
    named = [policy("named", dontschedule=[rule("heat", target=5)])] if has_named else []
    enforced = [made(f"o{n}", scope, str(n), spec) for n, (scope, spec) in enumerate(others)]
    observing = [
        made(f"s{n}", scope, str(n), spec | {"mode": "Shadow"}) for n, (scope, spec) in enumerate(shadows)
    ]
    values = metrics_snapshot(series("heat", **heat), series("load", **load))
    # few rules and metrics, so that budgets matter
    options = {"rules_per_namespace": 3, "metrics_per_namespace": 1}
    without = Cluster(*named, *enforced, values=values, **options)
    with_shadows = Cluster(*named, *enforced, *observing, values=values, **options)
    assert responses(with_shadows) == responses(without)
    agent = TelemetryAgent()
    for labels in LABELS:
        of = pod(labels)
        keys = [agent.equivalence_key(of, each.snapshot) for each in (without, with_shadows)]
        assert keys[0] == keys[1]


def in_mode(mode: str, scope: str, spec: Any) -> Any:
    """The policy in a mode, or in the mode Enforce with a step-back in its status."""
    is_back = mode == "stepped back"
    canary = {"podSelector": {"matchLabels": {"telemetry-policy": "named"}}}
    guard = {"maxRejectedShare": "0.5"}
    item = made(
        "p", scope, "1", spec | {"mode": "Enforce" if is_back else mode, "canary": canary, "guard": guard}
    )
    status = {"steppedBack": {"generation": 0, "message": "harm"}} if is_back else None
    return msgspec.structs.replace(item, status=msgspec.Raw(msgspec.json.encode(status)))


@settings(max_examples=short_and_long_case_counts.of(16, 1600))
@given(st.lists(MODES, min_size=2, max_size=4), SCOPES, SPECS, VALUES)
def test_after_changes_of_the_mode_responses_are_those_of_the_last_mode(
    modes: list[str], scope: str, spec: Any, heat: Any
) -> None:
    values = metrics_snapshot(series("heat", **heat))
    cluster = Cluster(in_mode(modes[0], scope, spec), values=values)
    for mode in modes[1:]:
        cluster.update(in_mode(mode, scope, spec))
        assert responses(cluster) == responses(Cluster(in_mode(mode, scope, spec), values=values))
