"""The evaluation of pods of native mode: only policies whose node labels a pod requires have an effect on it."""

from typing import Any

import msgspec
import pytest

from nodewise.kube.struct_type_merge import merge
from nodewise.policies import verdict_labels
from nodewise.policies.agent import NativeModeAgent, NativePodFields, TelemetryAgent
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policies.policy_selection import PodFields
from nodewise.policies.verdict_labels import label_key
from tests.unit.policies.placement_policy_cluster import ALL, BUSY, HOT, Cluster, policy_object
from tests.unit.policies.policy_snapshot_builders import candidates

POD_TYPE = merge("Pod", PodFields, NativePodFields)
RANK = {"metric": "load", "order": "Ascending"}
LACKS_LABEL = "the pod does not require its node label"


def policy(name: str, **spec: Any) -> PolicyObject:
    """A policy whose uid is its name."""
    made = policy_object(name, "d", "1", {"podSelector": ALL, **spec})
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, uid=name))


CLUSTER = Cluster(
    policy("cool", avoid=[HOT]),
    policy("calm", avoid=[BUSY | {"whenMissing": "Reject"}]),
    policy("soft", avoid=[HOT], enforcement="Preferred"),
    policy("rank", prefer=[RANK]),
    policy("trial", avoid=[HOT], mode="Shadow"),
)


def pod(*required: str, ok: str = "", preferred: str = "") -> Any:
    """A pod of native mode that requires, or prefers, the labels of policies."""

    def term(*names: str) -> Any:
        keys = map(label_key, names)
        return {
            "matchExpressions": [{"key": key, "operator": "NotIn", "values": ["violating"]} for key in keys]
        }

    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term(*required)]}}
    preferences = [{"weight": 100, "preference": term(preferred)}] if preferred else []
    node_affinity = affinity | {"preferredDuringSchedulingIgnoredDuringExecution": preferences}
    selector = {label_key(ok): "ok"} if ok else {}
    metadata = {"name": "web", "namespace": "d", "uid": "u"}
    spec = {"affinity": {"nodeAffinity": node_affinity}, "nodeSelector": selector}
    return msgspec.convert({"metadata": metadata, "spec": spec}, POD_TYPE)


def verdict(of: Any, agent: TelemetryAgent) -> Any:
    return agent.filter(of, candidates(CLUSTER.snapshot, "n1 n2 n3"), CLUSTER.snapshot)


@pytest.mark.parametrize(
    ("of", "rejected", "without_effect"),
    [
        (pod("cool", ok="calm"), "n1 n2", ""),
        (pod("cool"), "n1", "calm"),
        (pod(ok="calm"), "n1 n2", "cool"),
        (pod(), "", "calm cool"),
    ],
    ids=["both", "affinity", "node selector", "neither"],
)
def test_policies_whose_label_the_pod_lacks_reject_no_node(
    of: Any, rejected: str, without_effect: str
) -> None:
    result = verdict(of, NativeModeAgent())
    nodes = ["n1", "n2", "n3"]
    assert [nodes[at] for at in result.codes.nonzero()[0]] == rejected.split()
    named = {each.policy.rpartition("/")[2]: each.not_enforced for each in result.policies}
    expected = dict.fromkeys(without_effect.split(), LACKS_LABEL)
    assert {name: why for name, why in named.items() if why} == expected | {"soft": LACKS_LABEL}


def test_a_pod_with_all_labels_has_the_verdict_of_the_extender() -> None:
    complete = pod("cool", ok="calm", preferred="soft")
    native, extender = verdict(complete, NativeModeAgent()), verdict(complete, TelemetryAgent())
    assert native.codes.tolist() == extender.codes.tolist()
    assert native.reasons == extender.reasons
    assert repr(native.policies) == repr(extender.policies)


def test_preferred_policies_score_and_preferences_have_values() -> None:
    names = candidates(CLUSTER.snapshot, "n1 n2 n3")
    scored = NativeModeAgent().score(pod("cool", preferred="soft"), names, CLUSTER.snapshot)
    assert scored
    assert {rule.policy.rpartition("/")[2] for rule in scored.evidence} == {"soft", "rank"}


def test_observing_policies_say_which_nodes_they_would_reject() -> None:
    trial = next(each for each in verdict(pod(), NativeModeAgent()).policies if each.policy.endswith("trial"))
    assert trial.would_reject.tolist() == [True, False, False]


def test_the_requirements_of_a_pod_are_read_once_for_all_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone may create a pod with tens of thousands of expressions, and many policies that select it."""
    read: list[Any] = []
    requirements = verdict_labels.verdict_requirements
    monkeypatch.setattr(
        verdict_labels, "verdict_requirements", lambda spec: read.append(spec) or requirements(spec)
    )
    assert verdict(pod("cool"), NativeModeAgent()).codes.any()
    assert len(read) == 1
