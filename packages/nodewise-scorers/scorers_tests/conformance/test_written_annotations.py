"""The annotations that `nodewise annotate` writes in one run over all allocation cases, on an API server in memory."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests import forked_commands
from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.extender_process import NODEWISE
from tests.conformance.gas import story_environment as gas

from scorers_tests.conformance import case_table_rows, component_calls
from scorers_tests.conformance.case_table_rows import SafePartRow

NODES = "/api/v1/nodes"
ANNOTATED_AT = "nodewise.io/annotated-at"
MEMORY_ROW = {"node": {"memory": "8Gi"}, "pods": [{"requests": [{"memory": "1.5Gi"}]}]}
CASES = {
    f"n{at}-{row.number}": row
    for at, row in enumerate(case_table_rows.read("annotator", SafePartRow))
    if row.part in {"allocation", "memory"}
}


def node_and_pods(row: SafePartRow) -> Mapping[str, Any]:
    """A node and its pods."""
    return row.given if row.part == "allocation" else MEMORY_ROW


def create_objects(api: ClusterApi, name: str, row: SafePartRow) -> None:
    node = component_calls.node(node_and_pods(row))
    node["metadata"] = {"name": name}
    api.create({"apiVersion": "v1", "kind": "Node", **node})
    for number, pod_arguments in enumerate(node_and_pods(row)["pods"]):
        pod = component_calls.pod(number, pod_arguments)
        pod["metadata"] = {"name": f"{name}-{number}", "namespace": "default"}
        pod["spec"]["nodeName"] = name if pod["spec"]["nodeName"] else ""
        api.create({"apiVersion": "v1", "kind": "Pod", **pod})


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Object]:
    """The annotations after the run, by node."""
    folder = tmp_path_factory.mktemp("annotate")
    with gas.running_in_memory(folder) as api_server:
        for name, row in CASES.items():
            create_objects(api_server.api, name, row)
        command = [NODEWISE, "annotate", "--what=allocation", "--once", "--kubeconfig", api_server.kubeconfig]
        forked_commands.run(command, check=True, cwd=folder)
        nodes = api_server.api.get(NODES)["items"]
        return {node["metadata"]["name"]: node["metadata"].get("annotations", {}) for node in nodes}


@pytest.mark.parametrize("name", CASES)
def test_annotations_of_a_case_are_written(annotated: Mapping[str, Object], name: str) -> None:
    row, written = CASES[name], annotated[name]
    if row.part == "memory":
        assert written["requested-memory"] == row.gives[0]
    elif row.gives is None:
        assert written == {}
    else:
        assert {key: written[key] for key in row.gives} == row.gives
        assert ANNOTATED_AT in written
