"""Every shipped pod has the strictest security settings. Each exception is listed here with its reason."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from click.testing import CliRunner

from nodewise.cli.configure import command as configure
from nodewise_cpu.cluster import api_server, node_setup_objects
from nodewise_cpu.cluster.node_setup_objects import SetupOptions
from tests import docs_page_code_blocks

NEWEST: Final = api_server.TABLE[-1]
DEPLOY: Final = docs_page_code_blocks.ROOT / "deploy"

OWNERS = "reads whose the processes of the host are, and in which pods, from /proc"
MOVES = "moves the processes of the host when pools change"
WRITES_HOST = "writes files of root on the host"
SEES_HOST = "mounts folders of the host"
WORKLOAD = "an example of a workload, whose image is the reader's own"

AGENT: Final = {
    "hostPath": "the socket and the feature file are on the host",
    "hostPID": "SO_PEERCRED identifies a client by its process id in the agent's PID namespace",
    "root": WRITES_HOST,
    "capabilities": f"{OWNERS}; {MOVES}",
    "appArmor": OWNERS,
    "seLinux": OWNERS,
}
INSTALL: Final = dict.fromkeys(
    ("privileged", "root", "capabilities", "escalation", "writableRoot"), "installs a program on the host"
)
UNINSTALL: Final = {"hostPath": SEES_HOST, "root": WRITES_HOST, "capabilities": OWNERS}
PREPARE: Final = {"hostPath": SEES_HOST}

EXCEPTIONS: Final[Mapping[tuple[str, str], Mapping[str, str]]] = {
    ("cmk-agent", "agent"): AGENT,
    ("cmk-uninstall-all-nodes", "uninstall"): UNINSTALL,
    ("cmk-uninstall-all-nodes", "done"): {"hostPath": "of its init container"},
    ("cmk-init-install-discover-pod-n1", "init"): PREPARE,
    ("cmk-init-install-discover-pod-n1", "install"): {**PREPARE, **INSTALL},
    ("cmk-init-install-discover-pod-n1", "discover"): PREPARE,
    ("cmk-reconcile-nodereport-ds-n1", "reconcile"): {
        **PREPARE, "root": OWNERS, "capabilities": OWNERS,
    },
    ("cmk-reconcile-nodereport-ds-n1", "nodereport"): PREPARE,
    ("cmk-reconfigure-pod-n1", "reconfigure"): {
        **PREPARE, "hostPID": MOVES, "root": MOVES, "capabilities": f"{OWNERS}; {MOVES}",
    },
    ("test-pod", "nginx"): dict.fromkeys(
        ("root", "capabilities", "escalation", "writableRoot", "seccomp"), WORKLOAD
    ),
}  # fmt: skip


class ShippedContainer(NamedTuple):
    """A container of a shipped pod."""

    source: str
    owner: str
    pod: Mapping[str, Any]
    container: Mapping[str, Any]


def containers(source: str, made: Mapping[str, Any]) -> Iterator[ShippedContainer]:
    spec: Any = made.get("spec") or {}
    for key in ("jobTemplate", "spec", "template", "spec"):
        spec = spec.get(key, spec)
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or ():
            yield ShippedContainer(source, made["metadata"]["name"], spec, container)


def shipped() -> Iterator[ShippedContainer]:
    for file in sorted(DEPLOY.rglob("*.yaml")):
        if "chart" not in file.parts:  # the chart is the source of the kustomize files
            for made in yaml.load_all(file.read_text(), yaml.CSafeLoader):
                if made:
                    yield from containers(str(file.relative_to(DEPLOY)), made)
    for made in (
        node_setup_objects.preparation_pod(node_setup_objects.ONCE, "n1", SetupOptions(), NEWEST),
        node_setup_objects.daemon_set(node_setup_objects.ALWAYS, "n1", SetupOptions(), NEWEST),
        node_setup_objects.reconfiguration_pod("n1", SetupOptions()),
        node_setup_objects.agent_daemon_set(SetupOptions(), NEWEST),
    ):
        yield from containers("nodewise_cpu.cluster", made)


def openings(shipped_container: ShippedContainer) -> set[str]:
    """The settings by which a container is less restricted than the strictest one."""
    pod: Mapping[str, Any] = shipped_container.pod.get("securityContext") or {}
    own: Mapping[str, Any] = shipped_container.container.get("securityContext") or {}
    both = {**pod, **own}
    capabilities = own.get("capabilities") or {}
    conditions = {
        "hostPath": any("hostPath" in volume for volume in shipped_container.pod.get("volumes") or ()),
        "hostPID": shipped_container.pod.get("hostPID"),
        "hostNetwork": shipped_container.pod.get("hostNetwork"),
        "hostIPC": shipped_container.pod.get("hostIPC"),
        "privileged": own.get("privileged"),
        "escalation": own.get("allowPrivilegeEscalation") is not False,
        "writableRoot": own.get("readOnlyRootFilesystem") is not True,
        "root": both.get("runAsNonRoot") is not True,
        "capabilities": capabilities.get("drop") != ["ALL"] or capabilities.get("add"),
        "seccomp": both.get("seccompProfile") != {"type": "RuntimeDefault"},
        "appArmor": "appArmorProfile" in both,
        "seLinux": "seLinuxOptions" in both,
    }
    return {name for name, is_open in conditions.items() if is_open}


ALL: Final = [
    shipped_container
    for shipped_container in shipped()
    if not shipped_container.source.endswith("cpu-pods.yaml")
]
"""All shipped containers except those of `cpu-pods.yaml`, whose pods are examples of workloads."""


def test_all_kinds_of_pods_are_looked_at() -> None:
    names = {shipped_container.owner for shipped_container in ALL}
    assert {
        "cmk-agent",
        "nodewise",
        "nodewise-annotator",
        "cmk-webhook-deployment",
        "nodewise-certs",
    } <= names


@pytest.mark.parametrize(
    "shipped_container", ALL, ids=lambda item: f"{item.source} {item.owner} {item.container['name']}"
)
def test_a_container_may_do_no_more_than_its_exceptions_say(shipped_container: ShippedContainer) -> None:
    assert openings(shipped_container) == set(
        EXCEPTIONS.get((shipped_container.owner, shipped_container.container["name"]), {})
    )


@pytest.mark.parametrize(
    "item",
    [item for item in ALL if item.source != "test-pod.yaml" and "nodeName" not in item.pod],
    ids=lambda item: f"{item.source} {item.owner} {item.container['name']}",
)
def test_pods_are_not_placed_on_windows_nodes(item: ShippedContainer) -> None:
    """The image is one for Linux, and AKS has no taint on Windows nodes. No Windows node has the label cmk-node."""
    assert item.pod["nodeSelector"] in ({"kubernetes.io/os": "linux"}, {"cmk.intel.com/cmk-node": "true"})


def _uncovered_priority_classes(objects: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The namespaces and classes of pods that GKE refuses: of a class system-* without a quota that names the class."""
    needed: set[tuple[str, str]] = set()
    covered: set[tuple[str, str]] = set()
    for made in objects:
        namespace = made["metadata"].get("namespace", "")
        if made["kind"] == "ResourceQuota":
            for scope in made["spec"]["scopeSelector"]["matchExpressions"]:
                covered.update((namespace, name) for name in scope["values"])
        for shipped_container in containers("", made):
            name = shipped_container.pod.get("priorityClassName", "")
            if name.startswith("system-") and namespace != "kube-system":
                needed.add((namespace, name))
    return sorted(needed - covered)


@pytest.mark.parametrize(
    "file",
    [file for file in sorted(DEPLOY.rglob("*.yaml")) if "chart" not in file.parts],
    ids=lambda file: str(file.relative_to(DEPLOY)),
)
def test_namespace_admits_pods_of_critical_priority_on_gke(file: Path) -> None:
    objects = filter(None, yaml.load_all(file.read_text(), yaml.CSafeLoader))
    assert not _uncovered_priority_classes(made for made in objects if "metadata" in made)


def test_namespace_of_second_scheduler_admits_its_pods_on_gke() -> None:
    printed = (
        CliRunner()
        .invoke(
            configure, ["--mode", "second-scheduler", "--kubernetes-version", "1.35"], catch_exceptions=False
        )
        .stdout
    )
    objects = list(filter(None, yaml.safe_load_all(printed)))
    assert not _uncovered_priority_classes(objects)
    without_quota = [made for made in objects if made["kind"] != "ResourceQuota"]
    assert _uncovered_priority_classes(without_quota) == [("nodewise", "system-cluster-critical")]


@pytest.mark.parametrize("file", ["annotator.yaml", "certs.yaml", "controller.yaml", "doctor.yaml"])
def test_openshift_may_choose_the_user_of_pods(file: str) -> None:
    """OpenShift refuses a user outside of the range of the namespace. The image has a user that is not root."""
    objects = list(yaml.load_all((DEPLOY / file).read_text(), yaml.CSafeLoader))
    pods = [container.pod for made in objects for container in containers(file, made)]
    assert pods
    assert not [pod for pod in pods if {"runAsUser", "fsGroup"} & set(pod["securityContext"])]


def test_no_exception_is_left_over() -> None:
    assert set(EXCEPTIONS) <= {
        (shipped_container.owner, shipped_container.container["name"]) for shipped_container in ALL
    }


def test_a_container_that_may_do_more_is_seen() -> None:
    closed = next(shipped_container for shipped_container in ALL if not openings(shipped_container))
    for change in ({"privileged": True}, {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}):
        container = {**closed.container, "securityContext": {**closed.container["securityContext"], **change}}
        assert openings(closed._replace(container=container))
    assert openings(closed._replace(pod={**closed.pod, "securityContext": {}}))
