"""The numbered cases of CMK about clusters: preparation of nodes, reconfiguration and removal.

The command runs as a process with an API server of the case's version. The cases with a current real API server are in
`tests/cluster/test_cpu_node_setup_and_removal.py`.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import forked_commands

from cpu_tests.conformance import case_table_rows, minimal_api_server
from cpu_tests.conformance.case_table_rows import ClusterRow
from cpu_tests.conformance.minimal_api_server import MinimalApiServer, Object, RequestRefusal
from nodewise_cpu import cmk_names, procfs
from nodewise_cpu.pool_allocations import IDENTITIES, Task

PROC = Path("/proc")
ROWS = case_table_rows.read("cluster", ClusterRow)
SLOW_S = 120
SHORT_WAITS = {
    **forked_commands.SHORT_WAITS,
    "nodewise_cpu.cluster.object_writer._LONGEST_S": 0.2,
    "nodewise_cpu.cluster.cpu_manager_removal._ROUND_S": 0.1,
}


@pytest.fixture
def cluster(row: ClusterRow) -> Iterator[MinimalApiServer]:
    with minimal_api_server.serving(row.version) as serving:
        for name in row.nodes:
            serving.node(name)
        for name in row.labelled:
            node = serving.node(name, **({"taints": row.taints} if row.taints else {}))
            node["metadata"]["labels"] = {cmk_names.LABEL: "true"}
            node["status"] = {"capacity": dict(row.capacity), "allocatable": dict(row.capacity)}
        for name in row.cordoned:
            serving.node(name, unschedulable=True)
        for reference in row.there:
            plural, name = reference.split()
            obj = {
                "kind": plural,
                "metadata": {"name": name},
                "spec": {"template": {"metadata": {}, "spec": {"containers": []}}},
            }
            group = "apis/apps/v1" if plural == "daemonsets" else "api/v1"
            serving.put(f"/{group}/namespaces/default/{plural}/{name}", obj)
        if row.account:
            spaces = [word.partition("=")[2] for word in row.command if word.startswith("--namespace=")]
            account = {"kind": "ServiceAccount", "metadata": {"name": row.account}}
            path = f"/api/v1/namespaces/{(spaces or ['default'])[0]}/serviceaccounts/{row.account}"
            serving.put(path, account)
        if row.labelled and row.command[0] == "uninstall":
            state = config_map(row)
            serving.put(f"/api/v1/namespaces/default/configmaps/{state['metadata']['name']}", state)
        serving.behave = scripted(row)
        if row.refuses:
            verb, part, status, message = row.refuses
            serving.refusals.append(RequestRefusal(verb, part, status, message, message))
        yield serving


def scripted(row: ClusterRow) -> Callable[[MinimalApiServer], None]:
    """Nodes without failures, except for pods whose phases are in the row."""

    def behave(serving: MinimalApiServer) -> None:
        minimal_api_server.simulate_nodes(serving)
        for path, pod in serving.folder("pods").items():
            phases = row.pods.get(path.rpartition("/")[2])
            if phases:
                phase = phases[min(serving.looks, len(phases)) - 1]
                pod["status"] = minimal_api_server.running(pod) if phase == "Running" else {"phase": phase}

    return behave


def config_map(row: ClusterRow) -> Object:
    """The node's allocations with tasks of this process, and tasks that ended on an earlier boot."""
    pools = {"exclusive": "0", "shared": "1", "infra": "2"}
    me = procfs.read_own_process(PROC)
    running = Task(me.pid, me.start, procfs.read_boot_id(PROC))._asdict()
    kinds = {"running": running, "over": running | {"boot": "another", "pid": me.pid + 1}}
    tasks = {pool: kinds[row.tasks[pool]] for pool in pools if pool in row.tasks}
    config = {
        pool: {0: {text: [str(tasks[pool]["pid"])] if pool in tasks else []}} for pool, text in pools.items()
    }
    known = {pool: {pools[pool]: [task]} for pool, task in tasks.items()}
    annotations = {"Owner": "", IDENTITIES: json.dumps(known)}
    metadata = {"name": f"cmk-config-{row.labelled[0]}", "annotations": annotations}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"config": yaml.safe_dump(config)}}


def run(row: ClusterRow, cluster: MinimalApiServer, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the command of the row."""
    arguments = [*row.command, f"--kubeconfig={cluster.kubeconfig(folder)}", "--timeout=30"]
    if row.command[0] == "uninstall":
        node = (row.labelled or row.nodes)[0]
        arguments += [f"--node-name={node}", f"--install-dir={folder}", "--proc-fs=/proc"]
    return forked_commands.run(
        [forked_commands.CMK, *arguments],
        timeout=SLOW_S,
        env={**os.environ, "NODE_NAME": ""},
        constants=SHORT_WAITS,
    )


def named(cluster: MinimalApiServer, verb: str) -> list[str]:
    """Plural and name of the objects in requests of this verb, in order."""
    requests = [request for request in cluster.requests if request.verb == verb]
    paths = [
        request.path if verb != "POST" else f"{request.path}/{request.body['metadata']['name']}"
        for request in requests
    ]
    return [" ".join(path.split("/")[-2:]) for path in paths]


def agrees(actual: Any, wanted: Any) -> bool:
    """Whether an object contains everything that is expected of it."""
    if isinstance(wanted, dict):
        return all(agrees((actual or {}).get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(actual) == len(wanted) and all(map(agrees, actual, wanted))
    return bool(actual == wanted)


def containers(cluster: MinimalApiServer) -> dict[str, str]:
    """The command of each created container; the last one of a name counts."""
    result = {}
    for body in (request.body for request in cluster.requests if request.verb == "POST"):
        spec = body.get("spec", {}).get("template", body).get("spec", {})
        for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
            result[container["name"]] = " ".join(container.get("args", []))
    return result


def check_pods(row: ClusterRow, cluster: MinimalApiServer) -> None:
    """The created objects are those of the row."""
    made = {
        f"{request.path.rpartition('/')[2]} {request.body['metadata']['name']}": {**request.body}
        for request in cluster.requests
        if request.verb == "POST"
    }
    for name, wanted in row.has.items():
        assert agrees(made[name], wanted), made[name]
    assert row.runs.items() <= containers(cluster).items()
    if row.annotated:
        annotations = next(iter(made.values()))["metadata"]["annotations"]
        listed = json.loads(annotations["pod.beta.kubernetes.io/init-containers"])
        assert [container["name"] for container in listed] == row.annotated


def check_node(row: ClusterRow, cluster: MinimalApiServer) -> None:
    """The node's state after the removal is that of the row."""
    node = cluster.objects[f"/api/v1/nodes/{(row.labelled or row.nodes)[0]}"]
    assert cmk_names.LABEL not in node["metadata"].get("labels", {})
    assert node["spec"].get("taints", []) == row.leaves_taints
    kept = row.capacity if row.keeps_capacity else {}
    for part in ("capacity", "allocatable"):
        assert node.get("status", {}).get(part, {}) == kept


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.number}-{at}" for at, row in enumerate(ROWS)])
def test_cluster(row: ClusterRow, cluster: MinimalApiServer, tmp_path: Path) -> None:
    done = run(row, cluster, tmp_path)
    output = done.stdout + done.stderr
    assert [part for part in (*row.error, *row.prints) if part not in output] == [], output
    assert bool(done.returncode) == bool(row.error), output
    assert "Traceback" not in output
    for verb, wanted in (("POST", row.makes), ("DELETE", row.removes)):
        assert wanted is None or named(cluster, verb) == wanted, output
    left = {" ".join(path.split("/")[-2:]) for path in cluster.objects}
    assert not left.intersection(row.gone)
    assert cluster.looks >= row.looks
    check_pods(row, cluster)
    if row.command[0] == "uninstall" and not row.error:
        check_node(row, cluster)
    if row.again:
        cluster.requests.clear()
        again = run(row, cluster, tmp_path)
        assert again.returncode == 0, again.stderr
        if row.command[0] == "cluster-init":
            assert cluster.requests == []
