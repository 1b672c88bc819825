"""Guards: when a policy steps back, and when it is enforced again."""

from typing import Any

import msgspec
import numpy as np
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.policies import policy_objects
from nodewise.policies.agent import TelemetryAgent
from nodewise.policies.controller import policy_guard
from nodewise.policies.controller.policy_guard import GuardFacts, PolicyGuards, WaitingPod
from nodewise.policies.placement_policy import Comparison, Guard, Mode, Policy, PolicyKey
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject, StepBack
from nodewise.policies.policy_rejection_reasons import (
    NeverFetched,
    NoValue,
    RuleBroken,
    RuleUnusable,
)
from nodewise.policies.rule_evaluation import AvoidVerdict
from nodewise.policies.state import PolicyState
from nodewise.policies.verdict_labels import label_key
from tests.unit.policies.placement_policy_cluster import ALL, HOT, Cluster, pod, policy_object

KEY = PolicyKey("PlacementPolicy", "d", "cool")
HALF = Guard(max_rejected_share="0.5")
PODS = Guard(max_waiting_pods=2)


class Guarded:
    """The guard of one policy, with a clock."""

    def __init__(self, guard: Guard, mode: Mode = "Enforce") -> None:
        self.guards = PolicyGuards()
        self.guard, self.mode, self.generation = guard, mode, 1
        self.written: StepBack | None = None
        """In the status of the policy."""
        self.now_s = 1000.0

    def after(self, seconds: float, rejected: str = "....", waiting: int | None = 0) -> str:
        """The message of the step-back, if any; `rejected` has an x for each node that is rejected."""
        self.now_s += seconds
        codes = np.array([*(mark == "x" for mark in rejected), True], np.int16)
        policy = Policy(KEY, mode=self.mode, guard=self.guard, uid="u")
        state = PolicyState(policy, AvoidVerdict(codes, ()), ())
        facts = GuardFacts(self.generation, self.written, waiting)
        step_backs = self.guards.update({KEY: state}, {KEY: facts}, self.now_s, self.now_s)
        return step_backs[KEY].message if KEY in step_backs else ""


def test_it_steps_back_when_too_many_nodes_were_rejected_for_a_time() -> None:
    guarded = Guarded(HALF)
    assert guarded.after(0, "xxx.") == ""
    assert guarded.after(20, "xxx.") == ""
    assert guarded.after(20, "xx..") == "", "half of the nodes are not more than half"
    assert guarded.after(20, "xxx.") == ""
    assert guarded.after(29, "xxxx") == ""
    expected = "it rejected 4 of 4 nodes, more than the share 0.5 for 31s"
    assert guarded.after(2, "xxxx") == expected
    assert guarded.after(10**6) == expected, "until the spec is edited"
    guarded.generation = 2
    assert guarded.after(1) == ""
    assert guarded.after(1, "xxxx") == ""
    assert guarded.after(30, "xxxx") != "", "it can step back again"


def test_it_steps_back_when_too_many_pods_wait() -> None:
    guarded = Guarded(PODS)
    assert guarded.after(0, waiting=3) == ""
    assert guarded.after(31, waiting=None) == "", "not counted yet"
    assert guarded.after(0, waiting=3) == ""
    assert guarded.after(40, waiting=3) == "3 pods waited because of it, more than 2 for 40s"


def test_it_resumes_after_a_time() -> None:
    guarded = Guarded(msgspec.structs.replace(HALF, resume_after_s=600.0, within_s=0.0))
    assert guarded.after(0, "xxxx")
    assert guarded.after(599, "xxxx")
    assert guarded.after(1, "....") == ""
    assert guarded.after(1, "xxxx"), "harm makes it step back again"


def test_a_new_leader_takes_the_decision_from_the_status() -> None:
    guarded = Guarded(msgspec.structs.replace(HALF, resume_after_s=600.0))
    guarded.written = StepBack(1, "1970-01-01T00:16:40Z", "earlier")
    assert guarded.after(10) == "earlier"
    assert guarded.after(590) == ""


def test_a_policy_in_the_mode_shadow_does_no_harm() -> None:
    guarded = Guarded(msgspec.structs.replace(HALF, within_s=0.0), "Shadow")
    assert guarded.after(0, "xxxx") == ""


def stepped_back(status: Any, generation: int = 3) -> bool:
    item = PolicyObject(
        PolicyMetadata(generation=generation), status=msgspec.Raw(msgspec.json.encode(status))
    )
    return policy_objects.step_back_in_effect(item) is not None


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, False),
        ({"mode": "Shadow"}, False),
        ({"steppedBack": None}, False),
        ({"steppedBack": {"generation": 3}}, True),
        ({"steppedBack": {"generation": 2}}, False),
        ({"steppedBack": {"generation": "3"}}, False),
        ({"steppedBack": [3]}, False),
    ],
)
def test_a_status_without_a_valid_step_back_means_enforced(status: Any, expected: bool) -> None:
    assert stepped_back(status) == expected


def guarded_policy(**status: Any) -> PolicyObject:
    spec = {"podSelector": ALL, "avoid": [HOT], "guard": {"maxRejectedShare": "0.1"}}
    made = policy_object("cool", "d", "1", spec)
    return msgspec.structs.replace(made, status=msgspec.Raw(msgspec.json.encode(status)))


def test_pods_of_a_policy_that_stepped_back_pass_until_it_ends() -> None:
    cluster = Cluster(guarded_policy(), namespaces={"d": {}})
    assert set(cluster.rejected(pod()) or ()) == {"n1"}
    cluster.update(guarded_policy(steppedBack={"generation": 0, "message": "harm"}))
    assert cluster.rejected(pod()) == {}
    cluster.update(guarded_policy(mode="Enforce"))
    assert set(cluster.rejected(pod()) or ()) == {"n1"}


def waiting_pod(message: str, key: str = "", operator: str = "NotIn", namespace: str = "d") -> Any:
    terms = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": operator, "values": ["violating"]}]}
        ]
    }
    body = {
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
        if key
        else {},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]},
    }
    return policy_guard.keep_pod(msgspec.json.decode(msgspec.json.encode(body), type=WaitingPod))


AFFINITY = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."


def test_pods_that_wait_because_of_a_policy_are_counted() -> None:
    made = guarded_policy()
    made = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, uid="u1"))
    cluster = Cluster(made)
    pods = [
        waiting_pod("0/3 nodes are available: 3 placement policy d/cool: heat above 80. preemption: 0/3."),
        waiting_pod("0/3 nodes are available: 3 placement policy d/cooler: heat above 80."),
        waiting_pod("0/3 nodes are available: 3 Insufficient cpu."),
        waiting_pod(AFFINITY, label_key("u1")),
        waiting_pod(AFFINITY, label_key("u2")),
        waiting_pod("0/3 nodes are available: 3 Insufficient cpu.", label_key("u1")),
    ]
    assert [each is not None for each in pods] == [True, True, False, True, True, False]
    counting = policy_guard.count_by_policy(
        [each for each in pods if each], cluster.snapshot.agent_states["telemetry"]
    )
    assert cooperative_scheduling.run_without_pauses(counting) == {KEY: 2}


@pytest.mark.parametrize(
    ("key", "causes"),
    [
        (KEY, {"placement policy d/cool"}),
        (PolicyKey("ClusterPlacementPolicy", "", "cool.1"), {"cluster placement policy cool.1"}),
        (PolicyKey("TASPolicy", "d", "cool"), None),
    ],
    ids=lambda value: value.kind if isinstance(value, PolicyKey) else "",
)
def test_every_reason_of_a_policy_is_found_in_the_message_about_a_pod(
    key: PolicyKey, causes: set[str] | None
) -> None:
    hot = Comparison("heat", "above", 80 * 10**9)
    for reason in (
        RuleBroken(key, (hot,)),
        RuleBroken(key, (hot, hot)),
        NoValue(key, hot),
        NeverFetched(key, "heat"),
        RuleUnusable(key, "it is wrong"),
    ):
        message = f"0/3 nodes are available: 1 Insufficient cpu, 2 {reason.text()}. preemption: 0/3 nodes."
        pod_ = waiting_pod(message)
        assert (pod_ and pod_.causes) == causes
        assert any(mark in message for mark in TelemetryAgent.reason_marks)


@pytest.mark.parametrize(
    ("waiting", "counted"),
    [
        ({}, 0),
        ({"tenant": 9}, 0),
        ({"tenant": 9, "shop": 1}, 1),
        ({"shop": 3, "web": 2}, 2),
        ({"tenant": 9, "shop": 3, "web": 2}, 5),
        # a tenant who knows the largest number does not gain by it
        ({"tenant": 3, "shop": 3, "web": 2}, 5),
    ],
)
def test_no_namespace_alone_raises_the_count_of_a_cluster_policy(
    waiting: dict[str, int], counted: int
) -> None:
    spec = {"namespaceSelector": ALL, "podSelector": ALL, "avoid": [HOT], "guard": {"maxWaitingPods": 0}}
    cluster = Cluster(policy_object("cool", "", "1", spec), namespaces={name: {} for name in waiting})
    message = "0/3 nodes are available: 3 cluster placement policy cool: heat above 80."
    pods = [waiting_pod(message, namespace=name) for name, count in waiting.items() for _ in range(count)]
    counting = policy_guard.count_by_policy(pods, cluster.snapshot.agent_states["telemetry"])
    key = PolicyKey("ClusterPlacementPolicy", "", "cool")
    assert cooperative_scheduling.run_without_pauses(counting).get(key, 0) == counted
    assert counted <= sum(waiting.values()) - waiting.get("tenant", 0)
