"""The quick start of docs/cpu.md, as it stands there, in an empty cluster with the kubelets of two nodes played."""

import json
import os
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from nodewise.cpu import names
from tests.cluster import controlplane, kubelet_double, objects, served
from tests.cluster.controlplane import ControlPlane

NAMESPACE = "cmk-namespace"
NODES = ("node1", "node2")
QUICK_START = (
    (served.ROOT / "docs/cpu.md").read_text().partition("\n## Quick start\n")[2].partition("\n## ")[0]
)


def commands() -> list[list[str]]:
    """The words of each, in order; with a cluster's own kubeconfig in place of the reader's."""
    blocks = re.findall(r"```console\n(.*?)```", QUICK_START, re.DOTALL)
    joined = "".join(blocks).replace("\\\n", " ")
    lines = map(str.strip, joined.splitlines())
    return [shlex.split(line.removeprefix("$ ")) for line in lines if line]


def pod() -> Any:
    [text] = re.findall(r"```yaml\n(.*?)```", QUICK_START, re.DOTALL)
    return yaml.safe_load(textwrap.dedent(text))


class Reader(NamedTuple):
    """Somebody who follows the page."""

    plane: ControlPlane

    def types(self, words: list[str]) -> "subprocess.CompletedProcess[str]":
        kubeconfig = str(self.plane.admin.kubeconfig)
        given = [kubeconfig if word == "~/.kube/config" else word for word in words]
        return subprocess.run(
            [served.NODEWISE, *given[1:]],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env={**os.environ, "NODE_NAME": ""},
        )


@pytest.fixture
def reader(control_plane_programs: Path, tmp_path: Path) -> Iterator[Reader]:
    with controlplane.running(control_plane_programs, tmp_path) as plane:
        for name in NODES:
            plane.api.create(objects.node(name))
        controllers = "daemonset-controller,garbage-collector-controller"
        with plane.start_controller_manager(controllers), kubelet_double.playing(plane.api, NAMESPACE):
            yield Reader(plane)


def test_it_works_as_it_stands(reader: Reader) -> None:
    apply, prepare, validate = commands()
    assert apply[0] == "kubectl"
    plane = reader.plane
    plane.kubectl(*[str(served.ROOT / word) if word.startswith("deploy/") else word for word in apply[1:]])
    done = reader.types(prepare)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split()[:2] for line in done.stdout.splitlines()]
    assert table == [
        ["NODE", "RESULT"],
        *([name, "ready"] for name in NODES),
        ["(agent)", "ready"],
        ["(webhook)", "ready"],
    ]
    assert "--no-agent" not in done.stderr
    agents = plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector="app=cmk-agent")["items"]
    assert {one["spec"]["nodeName"] for one in agents} == set(NODES)
    assert {one["spec"]["serviceAccountName"] for one in agents} == {"cmk-agent"}
    checks = {one["name"]: one for one in json.loads(reader.types(validate).stdout)["checks"]}
    assert checks["label"]["ok"]
    assert checks["agent"]["seen"].partition(": ")[2].count("cmk-agent-") == 1
    made = pod()
    requested = made["spec"]["containers"][0]["resources"]["limits"]
    assert requested == {names.EXCLUSIVE_CORES: 1}
    made["metadata"]["namespace"] = "default"
    plane.api.create(made)
