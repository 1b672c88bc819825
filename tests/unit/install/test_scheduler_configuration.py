"""The configuration for kube-scheduler; tests/cluster checks it with the real one."""

from typing import Any

import pytest

from nodewise.base.errors import BadSettings
from nodewise.install.scheduler_configuration import (
    AgentRole,
    EntryFiles,
    SchedulerOptions,
    agents_without_filter,
    build_scheduler_configuration,
)

DEVICES = {"vendor/card": False}
MARK = {"telemetry/scheduling": True}
GUARD = AgentRole("guard", filters=True, prioritizes=True, binds=False, resources=MARK)
BINDER = AgentRole("binder", filters=True, prioritizes=True, binds=True, resources=DEVICES)
RISK = AgentRole("risk", filters=True, prioritizes=True, binds=False, resources={})
RANK = AgentRole("rank", filters=False, prioritizes=True, binds=False, resources={})
GATE = AgentRole("gate", filters=True, prioritizes=False, binds=False, resources={})
LOCAL = "http://127.0.0.1:9001"
HTTPS = SchedulerOptions("https://nodewise:9001/", EntryFiles("ca.crt", "tls.crt", "tls.key"))


def entries(*roles: AgentRole, url: str = LOCAL, **more: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = build_scheduler_configuration(roles, SchedulerOptions(url, **more))[
        "extenders"
    ]
    return entries


def test_pods_that_a_resource_marks_are_filtered_and_wait_without_an_answer() -> None:
    assert build_scheduler_configuration([GUARD], HTTPS) == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "default-scheduler"}],
        "extenders": [
            {
                "urlPrefix": "https://nodewise:9001/scheduler",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "weight": 10,
                "preemptVerb": "preempt",
                "nodeCacheCapable": True,
                "httpTimeout": "1s",
                "ignorable": False,
                "managedResources": [{"name": "telemetry/scheduling", "ignoredByScheduler": True}],
                "enableHTTPS": True,
                "tlsConfig": {"caFile": "ca.crt", "certFile": "tls.crt", "keyFile": "tls.key"},
            }
        ],
    }


RANKS_ONLY = {
    "urlPrefix": f"{LOCAL}/scheduler",
    "prioritizeVerb": "prioritize",
    "weight": 10,
    "nodeCacheCapable": True,
    "httpTimeout": "1s",
    "ignorable": True,
}


@pytest.mark.parametrize("roles", [(RANK,), (RISK,), (RISK, RANK), (RANK, RISK)])
def test_where_nothing_marks_the_pods_they_are_only_prioritized(roles: tuple[AgentRole, ...]) -> None:
    assert entries(*roles) == [RANKS_ONLY]
    assert agents_without_filter(roles, SchedulerOptions(LOCAL)) == [
        role.agent for role in roles if role is RISK
    ]


def test_all_pods_are_filtered_where_somebody_wants_it() -> None:
    [entry] = entries(RISK, RANK, filter_all_pods=True)
    assert (entry["filterVerb"], entry["preemptVerb"], entry["ignorable"]) == ("filter", "preempt", False)
    assert "managedResources" not in entry
    assert agents_without_filter([RISK, RANK], SchedulerOptions(LOCAL, filter_all_pods=True)) == []


def test_an_entry_for_each_agent_has_the_fields_of_that_agent() -> None:
    guard, binder, rank = entries(
        GUARD, BINDER, RANK, one_entry_per_agent=True, weights={"": 7, "binder": 20}
    )
    expected = ["guard", "binder", "rank"]
    assert [entry["urlPrefix"].rpartition("/agents/")[2] for entry in (guard, binder, rank)] == expected
    assert [entry["weight"] for entry in (guard, binder, rank)] == [7, 20, 7]
    assert [entry.get("bindVerb") for entry in (guard, binder, rank)] == [None, "bind", None]
    assert [entry["httpTimeout"] for entry in (guard, binder, rank)] == ["1s", "5s", "1s"]
    assert [entry["ignorable"] for entry in (guard, binder, rank)] == [False, False, True]
    assert binder["managedResources"] == [{"name": "vendor/card"}]


def test_an_entry_for_all_has_the_resources_of_all() -> None:
    [entry] = entries(GUARD, BINDER)
    expected = ["telemetry/scheduling", "vendor/card"]
    assert [resource["name"] for resource in entry["managedResources"]] == expected
    assert (entry["bindVerb"], entry["httpTimeout"]) == ("bind", "5s")


def test_binds_have_an_entry_of_their_own_where_the_other_gets_all_pods() -> None:
    every, bind = entries(BINDER, RISK, filter_all_pods=True)
    assert "bindVerb" not in every
    assert "managedResources" not in every
    assert bind == {
        "urlPrefix": f"{LOCAL}/agents/binder",
        "bindVerb": "bind",
        "nodeCacheCapable": True,
        "httpTimeout": "5s",
        "ignorable": False,
        "managedResources": [{"name": "vendor/card"}],
    }


@pytest.mark.parametrize("more", [(), (RISK,)], ids=["alone", "beside an agent without resources"])
def test_marked_pods_fit_nodes_where_the_filter_gets_all_pods(more: tuple[AgentRole, ...]) -> None:
    every, marks = entries(GUARD, *more, filter_all_pods=True)
    assert "managedResources" not in every
    assert every["filterVerb"] == "filter"
    assert not [field for field in marks if field.endswith("Verb")]
    assert marks["managedResources"] == [{"name": "telemetry/scheduling", "ignoredByScheduler": True}]


def test_filter_of_all_pods_leaves_the_binds_to_pods_with_devices() -> None:
    every, marks, bind = entries(GUARD, BINDER, filter_all_pods=True)
    assert [entry.get("bindVerb") for entry in (every, marks, bind)] == [None, None, "bind"]
    assert "managedResources" not in every
    assert bind["managedResources"] == [{"name": "vendor/card"}]


def test_whole_nodes_take_their_time() -> None:
    [entry] = entries(RANK, whole_nodes=True)
    assert (entry["nodeCacheCapable"], entry["httpTimeout"]) == (False, "5s")


def test_a_filter_without_a_score_is_not_prioritized() -> None:
    [entry] = entries(GATE, filter_all_pods=True)
    assert entry.keys().isdisjoint({"prioritizeVerb", "weight"})


def test_a_second_scheduler_has_a_name_and_a_lease_of_its_own() -> None:
    configuration = build_scheduler_configuration(
        [RANK], SchedulerOptions(LOCAL, scheduler_name="mine", kubeconfig="/k")
    )
    assert configuration["profiles"] == [{"schedulerName": "mine"}]
    assert configuration["leaderElection"] == {"leaderElect": True, "resourceName": "mine"}
    assert configuration["clientConnection"] == {"kubeconfig": "/k"}


LOOPBACK = ["http://localhost:1", "http://[::1]:1", "http://127.9.9.9:1"]


@pytest.mark.parametrize("url", LOOPBACK)
def test_plain_http_stays_on_the_machine(url: str) -> None:
    assert entries(RANK, url=url)[0]["urlPrefix"] == f"{url}/scheduler"


def test_plain_http_leaves_the_machine_where_somebody_wants_it() -> None:
    assert "tlsConfig" not in entries(RANK, url="http://nodewise:9001", plain_http=True)[0]


REFUSED: dict[str, tuple[list[AgentRole], dict[str, Any], str]] = {
    "no agents": ([], {}, "--agents: none"),
    "plain http to another machine": ([RANK], {"url": "http://10.0.0.1:1"}, "--plain-http"),
    "a name that begins like loopback": ([RANK], {"url": "http://127.0.0.1.nip.io:1"}, "--plain-http"),
    "https without a CA": (
        [RANK], {"url": "https://n:1", "files": EntryFiles("", "c", "k")}, "--ca: not given; expected file names",
    ),
    "https without a certificate of its own": (
        [RANK], {"url": "https://n:1", "files": EntryFiles("ca")}, "--cert, --key: not given",
    ),
    "certificates and plain http": ([RANK], {"files": EntryFiles("ca")}, "as certificates are given"),
    "a path": ([RANK], {"url": "http://127.0.0.1:1/scheduler"}, "without a path"),
    "no scheme": ([RANK], {"url": "127.0.0.1:9001"}, "--url: '127.0.0.1:9001'"),
    "no host": ([RANK], {"url": "http://"}, "--url"),
    "no port number": ([RANK], {"url": "http://127.0.0.1:http"}, "--url"),
    "a line break": ([RANK], {"url": "http://127.0.0.1:1\n"}, "--url"),
    "two that bind": ([BINDER, BINDER], {"one_entry_per_agent": True}, "expected one agent that binds"),
    "a guard whose pods nothing would mark any more": (
        [GUARD, RANK], {}, "guard for pods that ask for a resource, rank for all pods; expected --one-entry-per-agent",
    ),
    "a filter that nobody would ask": ([GATE], {}, "gate filters, and nothing marks its pods; expected --filter-all"),
    "a weight of 0": ([RANK], {"weights": {"": 0}}, "--weights: 0; expected a whole number from 1"),
    "a weight without bounds": ([RANK], {"weights": {"": 10**18}}, "--weights"),
    "a weight of an agent that is not asked": (
        [RANK], {"weights": {"risk": 5}, "one_entry_per_agent": True}, "--weights: 'risk'; expected one of rank",
    ),
    "weights by agent of one entry": ([RANK], {"weights": {"rank": 5}}, "expected --one-entry-per-agent"),
}  # fmt: skip


@pytest.mark.parametrize(("roles", "wish", "message"), REFUSED.values(), ids=REFUSED)
def test_options_that_do_not_work_or_do_not_fail_closed_are_refused(
    roles: list[AgentRole], wish: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadSettings) as refused:
        build_scheduler_configuration(roles, SchedulerOptions(**{"url": LOCAL, **wish}))
    assert message in str(refused.value)
