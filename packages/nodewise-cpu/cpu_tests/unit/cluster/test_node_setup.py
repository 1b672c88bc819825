"""Preparation and removal of nodes succeed when they are repeated, whatever failed before."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml

from cpu_tests.conformance.minimal_api_server import MinimalApiServer, RequestRefusal
from cpu_tests.unit.allocation_factory import create_allocations
from cpu_tests.unit.cluster.failing_api_client import FailingApiClient, FakeSleepingClock
from nodewise.base.errors import NodewiseError, Refused
from nodewise_cpu import cmk_names
from nodewise_cpu.cluster import api_server, cpu_manager_removal, node_setup, node_setup_objects
from nodewise_cpu.cluster.node_setup import SetupPlan, SetupReport
from nodewise_cpu.cluster.node_setup_objects import SetupOptions
from nodewise_cpu.cluster.object_writer import Deadline
from nodewise_cpu.configmap_store import ConfigMapStore
from nodewise_cpu.pool_allocations import Task

DIALECT = api_server.features_of_kubernetes_version((1, 36))
OPTIONS = SetupOptions(namespace="cmk")
COMMANDS = ("init", "reconcile", "install", "discover", "nodereport")
NODES = ("node1", "node10")
ACCOUNT = "/api/v1/namespaces/cmk/serviceaccounts/cmk-agent"
AGENT = "/apis/apps/v1/namespaces/cmk/daemonsets/cmk-agent"


@pytest.fixture
def api_client() -> FailingApiClient:
    server = MinimalApiServer("v1.36.3")
    for name in NODES:
        server.node(name)
    server.put(ACCOUNT, {"kind": "ServiceAccount", "metadata": {"name": "cmk-agent"}})
    return FailingApiClient(server)


def prepare(api_client: FailingApiClient, options: SetupOptions = OPTIONS) -> SetupReport:
    plan = SetupPlan(
        NODES, COMMANDS, options, node_setup_objects.agent_daemon_set(options, DIALECT), [webhook_part()]
    )
    return node_setup.execute_setup_plan(
        api_client, plan, DIALECT, Deadline(20, FakeSleepingClock()), lambda _: None
    )


def remove_from_node(api_client: FailingApiClient, node: cpu_manager_removal.RemovedNode) -> None:
    list(cpu_manager_removal.remove_from_node(api_client, node, DIALECT, Deadline(20, FakeSleepingClock())))


def webhook_part() -> dict[str, Any]:
    metadata = {"name": "cmk-webhook-configmap", "namespace": "cmk"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"server.yaml": "port: 1"}}


def kept(server: MinimalApiServer) -> Mapping[str, Any]:
    """The objects without the server's own fields."""
    return {
        path: (obj.get("spec"), obj.get("data"), obj["metadata"].get("labels"))
        for path, obj in server.objects.items()
    }


def at_every_call(api_client: FailingApiClient, run: Callable[[], object], check: Callable[[], None]) -> None:
    """Run with a failure after each call in turn, and then check a second run."""
    number = 0
    while True:
        number += 1
        api_client.calls, api_client.fails = 0, number
        failed = False
        try:
            failed = not getattr(run(), "is_whole", True)
        except NodewiseError:
            failed = True
        api_client.fails = None
        if not failed:
            assert number > 5
            return
        run()
        check()


def test_a_second_preparation_succeeds_after_any_failure(api_client: FailingApiClient) -> None:
    assert prepare(api_client).is_whole
    whole = kept(api_client.server)
    parts = ("/nodes/", "/serviceaccounts/")
    nodes = {
        path: obj for path, obj in api_client.server.objects.items() if any(part in path for part in parts)
    }

    def check() -> None:
        assert kept(api_client.server) == whole
        api_client.server.objects = dict(nodes)

    api_client.server.objects = dict(nodes)
    at_every_call(api_client, lambda: prepare(api_client), check)


def test_a_second_removal_succeeds_after_any_failure(api_client: FailingApiClient) -> None:
    untouched = kept(api_client.server)
    for node in api_client.server.folder("nodes").values():
        node["metadata"]["labels"] = {cmk_names.LABEL: "true"}
    assert prepare(api_client).is_whole
    config = yaml.safe_dump({"exclusive": {0: {"0": []}}, "shared": {}, "infra": {0: {"1": []}}})
    name = cmk_names.config_map("node1")
    api_client.server.put(
        f"/api/v1/namespaces/cmk/configmaps/{name}", {"metadata": {"name": name}, "data": {"config": config}}
    )
    before = dict(api_client.server.objects)

    def run() -> None:
        for node in NODES:
            leaving = cpu_manager_removal.RemovedNode(
                node, "cmk", ConfigMapStore(api_client, "cmk", node), None
            )
            remove_from_node(api_client, leaving)
        agent = cpu_manager_removal.agent_objects_to_remove(api_client, "cmk", DIALECT, lambda _: None)
        shared = [*cpu_manager_removal.webhook_objects_to_remove("cmk", DIALECT), *agent]
        list(
            cpu_manager_removal.remove_from_cluster(
                api_client, "cmk", shared, DIALECT, Deadline(20, FakeSleepingClock())
            )
        )

    def check() -> None:
        left = {
            path: (spec, data, labels or None)
            for path, (spec, data, labels) in kept(api_client.server).items()
        }
        assert left == untouched
        api_client.server.objects = dict(before)

    at_every_call(api_client, run, check)


def test_its_own_pods_hold_places_until_they_are_gone(api_client: FailingApiClient) -> None:
    """Reconcile and node-report run in the pool infra; they do not keep a node from being left, others do."""
    prepare(api_client)
    folder = "/api/v1/namespaces/cmk/pods/"
    own = [obj["metadata"]["uid"] for at, obj in api_client.server.objects.items() if "-ds-node1-" in at]
    store = ConfigMapStore(api_client, "cmk", "node1")
    tasks = [Task(7, 1, "boot", uid) for uid in own]
    store.create(create_allocations({"exclusive": {"0": ()}, "shared": {}, "infra": {"1": tasks}}))

    def sweep() -> None:
        there = {
            obj["metadata"]["uid"] for at, obj in api_client.server.objects.items() if at.startswith(folder)
        }
        stored = store.read()
        left = stored.allocations.with_tasks(
            lambda _, cpu_list: [task for task in cpu_list.tasks if task.pod in there]
        )
        if left != stored.allocations:
            store.replace(stored.version, left)

    leaving = cpu_manager_removal.RemovedNode("node1", "cmk", store, sweep)
    assert own
    remove_from_node(api_client, leaving)
    api_client.server.behave(api_client.server)
    assert not [at for at in api_client.server.objects if at.endswith("node1") and "/nodes/" not in at]


def test_missing_rights_are_reported_for_each_node(api_client: FailingApiClient) -> None:
    refused = RequestRefusal("GET", "/namespaces/cmk/pods", 403, "cannot list pods")
    prepare(api_client)
    api_client.server.refusals.append(refused)
    report = prepare(api_client)
    assert [bool(node.error) for node in report.nodes] == [True, True]
    assert all("cannot list pods" in node.error for node in report.nodes)


def test_concurrent_preparations_agree(api_client: FailingApiClient) -> None:
    """The first preparation finishes between the read and the write of the second one."""
    create = api_client.create

    def overtaken(path: str, body: Any) -> Any:
        api_client.create = create  # type: ignore[method-assign]
        prepare(api_client)
        return create(path, body)

    api_client.create = overtaken  # type: ignore[method-assign]
    report = prepare(api_client)
    assert report.is_whole
    assert report.nodes[0].steps[0].outcome == "unchanged"


def test_a_deleted_pod_is_no_success(api_client: FailingApiClient) -> None:
    work = api_client.server.behave

    def behave(server: MinimalApiServer) -> None:
        work(server)
        name = node_setup_objects.pod_name(("init", "install", "discover"), "node1")
        server.objects.pop(f"/api/v1/namespaces/cmk/pods/{name}", None)

    api_client.server.behave = behave
    first, second = prepare(api_client).nodes
    assert "the pod was deleted" in first.error
    assert not second.error


def test_manual_changes_are_reverted(api_client: FailingApiClient) -> None:
    prepare(api_client)
    name = node_setup_objects.daemon_set_name(("reconcile", "nodereport"), "node1")
    path = f"/apis/apps/v1/namespaces/cmk/daemonsets/{name}"
    changed = api_client.server.objects[path]
    changed["spec"]["template"]["spec"]["containers"][0]["args"] = ["sleep"]
    api_client.server.put(path, changed)
    report = prepare(api_client)
    assert [step.outcome for step in report.nodes[0].steps] == ["unchanged", "replaced", "ready"]
    assert (
        "reconcile" in api_client.server.objects[path]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    )


def test_a_missing_namespace_is_reported(api_client: FailingApiClient) -> None:
    api_client.server.refusals.append(
        RequestRefusal("POST", "/namespaces/cmk/", 404, 'namespaces "cmk" not found', "NotFound")
    )
    report = prepare(api_client)
    assert 'namespaces "cmk" not found' in report.nodes[0].error
    assert report.shared.steps == ()


def test_without_the_agents_account_nothing_is_made(api_client: FailingApiClient) -> None:
    del api_client.server.objects[ACCOUNT]
    with pytest.raises(Refused, match=r"sed s/cmk-namespace/cmk/g deploy/cpu-agent.yaml"):
        prepare(api_client)
    assert api_client.server.requests == []


def test_an_agent_that_is_not_ready_is_reported(api_client: FailingApiClient) -> None:
    work = api_client.server.behave

    def behave(server: MinimalApiServer) -> None:
        work(server)
        server.objects["/api/v1/namespaces/cmk/pods/cmk-agent-node1"]["status"] = {"phase": "Pending"}

    prepare(api_client)
    api_client.server.behave = behave
    first, second = prepare(api_client).nodes
    assert first.steps[-1].name == "node agent of DaemonSet cmk-agent"
    assert first.error == "not ready after 20 s: Pending"
    assert not second.error


def test_a_node_without_the_label_gets_no_agent(api_client: FailingApiClient) -> None:
    prepare(api_client)
    del api_client.server.objects["/api/v1/nodes/node1"]["metadata"]["labels"]
    first, second = prepare(api_client).nodes
    assert "without the label cmk.intel.com/cmk-node=true" in first.error
    assert not second.error


def test_pods_are_made_ready_only_for_an_agent_that_is_there(api_client: FailingApiClient) -> None:
    api_client.server.refusals.append(RequestRefusal("POST", "/daemonsets", 403, "cannot create daemonsets"))
    plan = SetupPlan(
        NODES,
        ("init", "discover"),
        OPTIONS,
        node_setup_objects.agent_daemon_set(OPTIONS, DIALECT),
        [webhook_part()],
    )
    report = node_setup.execute_setup_plan(
        api_client, plan, DIALECT, Deadline(20, FakeSleepingClock()), lambda _: None
    )
    assert "cannot create daemonsets" in report.agent.error
    assert report.shared.steps == ()


def test_a_customized_agent_is_kept(api_client: FailingApiClient) -> None:
    own = node_setup_objects.agent_daemon_set(OPTIONS, DIALECT)
    container = own["spec"]["template"]["spec"]["containers"][0]
    own["spec"]["template"]["spec"]["containers"] = [
        container | {"args": [*container["args"], "--enforce=cgroup"]}
    ]
    api_client.server.put(AGENT, own)
    before = api_client.server.objects[AGENT]
    report = prepare(api_client)
    assert report.is_whole
    assert report.agent.steps[0].outcome == "unchanged, as it was not created by nodewise"
    assert api_client.server.objects[AGENT] == before


def test_no_node_of_that_label_is_an_error(api_client: FailingApiClient) -> None:
    with pytest.raises(Refused, match="no node to reconfigure"):
        node_setup.nodes_with_pools(api_client)
