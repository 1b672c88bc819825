"""Runs the quick start of docs/cpu.md literally in an empty cluster with two fake kubelets."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodewise_cpu import cmk_names
from tests import docs_page_code_blocks, docs_page_runner
from tests.cluster import controlplane, fake_kubelets, kubernetes_objects
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import NODEWISE
from tests.docs_page_code_blocks import Block
from tests.docs_page_runner import PageReader

NAMESPACE = "cmk-namespace"
NODES = ("node1", "node2")
PAGE = docs_page_code_blocks.ROOT / "docs/cpu.md"


def quick_start(language: str) -> list[Block]:
    """The code blocks of the quick start in this language."""
    return [
        block for block in docs_page_code_blocks.section(PAGE, "## Quick start") if block.language == language
    ]


def commands() -> list[str]:
    """The commands of the quick start in order."""
    return [step.typed for block in quick_start("console") for step in docs_page_code_blocks.steps(block)]


def pod() -> Any:
    [block] = quick_start("yaml")
    return yaml.safe_load(block.text)


@pytest.fixture
def plane(control_plane_programs: Path, tmp_path: Path) -> Iterator[ControlPlane]:
    with controlplane.running(control_plane_programs, tmp_path) as plane:
        for name in NODES:
            plane.api.create(kubernetes_objects.node(name))
        controllers = "daemonset-controller,garbage-collector-controller"
        with (
            plane.start_controller_manager(controllers),
            fake_kubelets.running_kubelets(plane.api, NAMESPACE),
        ):
            yield plane


@pytest.fixture
def shell(plane: ControlPlane, control_plane_programs: Path) -> Iterator[PageReader]:
    """A shell for the commands of the page, with the kubeconfig of the test's cluster."""
    kubeconfig = str(plane.admin.kubeconfig)
    plain = docs_page_runner.plain_environment()
    environment = {
        **plain,
        "PATH": f"{control_plane_programs}:{NODEWISE.parent}:{plain['PATH']}",
        "KUBECONFIG": kubeconfig,
        "NODE_NAME": "",
    }
    with docs_page_runner.reading(
        docs_page_code_blocks.ROOT, environment, {"~/.kube/config": kubeconfig}
    ) as typing:
        yield typing


def test_it_works_as_it_stands(shell: PageReader, plane: ControlPlane) -> None:
    apply, prepare, validate = commands()
    shell.types(apply)
    output = shell.types(prepare)
    lines = output.splitlines()
    table = [
        line.split()[:2] for line in lines[lines.index(next(line for line in lines if "RESULT" in line)) :]
    ]
    assert [row for row in table if row] == [
        ["NODE", "RESULT"],
        *([name, "ready"] for name in NODES),
        ["(agent)", "ready"],
        ["(webhook)", "ready"],
    ]
    assert "--no-agent" not in output
    agents = plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector="app=cmk-agent")["items"]
    assert {pod["spec"]["nodeName"] for pod in agents} == set(NODES)
    assert {pod["spec"]["serviceAccountName"] for pod in agents} == {"cmk-agent"}
    checks = {check["name"]: check for check in json.loads(shell.types(validate, may_fail=True))["checks"]}
    assert checks["label"]["ok"]
    assert checks["agent"]["seen"].partition(": ")[2].count("cmk-agent-") == 1
    made = pod()
    requested = made["spec"]["containers"][0]["resources"]["limits"]
    assert requested == {cmk_names.EXCLUSIVE_CORES: 1}
    made["metadata"]["namespace"] = "default"
    plane.api.create(made)
