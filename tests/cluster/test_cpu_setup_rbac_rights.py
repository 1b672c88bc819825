"""The shipped rights of the commands that set up nodes are exactly those that the audit log shows as used."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nodewise_cpu import cmk_names, procfs
from tests import forked_commands
from tests.cluster import extender_process, fake_kubelets, kubernetes_objects, rbac_rights_comparison
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_kubelets import FakeKubelets
from tests.cluster.rbac_rights_comparison import ApiRight

NAMESPACE = "cmk-namespace"
NODES = ("n1", "n2")
HOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/cmk-webhook-config"


class CpuCommands(NamedTuple):
    """Runs CPU manager commands for two nodes, so that no right is limited to one node."""

    plane: ControlPlane
    log: AuditLog
    kubelets: FakeKubelets
    folder: Path

    def cpu(self, user: User, *words: str, code: int = 0) -> str:
        environment = {**os.environ, "NODE_NAME": "", "CMK_PROC_FS": "/proc"}
        arguments = ["cpu", *words, f"--kubeconfig={user.kubeconfig}"]
        done = forked_commands.run(
            [forked_commands.NODEWISE, *arguments],
            env=environment,
            constants=forked_commands.SHORT_WAITS,
            timeout=240,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def account(self, name: str) -> User:
        return self.plane.service_account(name, NAMESPACE)

    def needed(self, account: str) -> set[ApiRight]:
        """The rights that an account used in each namespace, after a check that none was refused. `/version` and
        discovery need no rights.
        """
        audited = self.log.requests(f"system:serviceaccount:{NAMESPACE}:{account}")
        requests = [request for request in audited if request.resource]
        assert [request for request in requests if request.is_refused] == []
        places = {request.namespace for request in requests}
        return set().union(
            *(
                rbac_rights_comparison.needed(request for request in requests if request.namespace == place)
                for place in places
            )
        )

    def shipped(self, role: str) -> set[ApiRight]:
        return rbac_rights_comparison.granted(
            manifest
            for manifest in extender_process.manifest("cpu.yaml")
            if manifest["metadata"]["name"] == role
        )

    def check(self, account: str, role: str) -> None:
        """Checks that the shipped rights are exactly the used ones. If several objects were requested, the right is for
        all objects of the kind, else for the one object.
        """
        needed, shipped = self.needed(account), self.shipped(role)
        assert shipped - needed == set()
        assert needed - shipped == set()


@pytest.fixture(scope="module")
def run(
    plane: ControlPlane, audit_log: AuditLog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CpuCommands]:
    for name in ("crds/cmk-reports.yaml", "cpu.yaml"):
        plane.kubectl("apply", "-f", str(extender_process.ROOT / "deploy" / name))
    for manifest in extender_process.manifest("cpu-agent.yaml"):
        if manifest["kind"] in {"ServiceAccount", "DaemonSet"}:  # its policy requires a pod on a node
            plane.api.create(manifest)
    for name in NODES:
        plane.api.create(kubernetes_objects.node(name))
    controllers = "daemonset-controller,garbage-collector-controller"
    with (
        plane.start_controller_manager(controllers),
        fake_kubelets.running_kubelets(plane.api, NAMESPACE) as kubelets,
    ):
        yield CpuCommands(plane, audit_log, kubelets, tmp_path_factory.mktemp("cpu-rights"))


def test_rights_to_prepare_nodes(run: CpuCommands) -> None:
    setup = run.account("cmk-setup")
    arguments = ("cluster-init", "--all-hosts", f"--namespace={NAMESPACE}", "--timeout=60")
    run.cpu(setup, *arguments)
    service = f"/api/v1/namespaces/{NAMESPACE}/services/cmk-webhook-service"
    run.plane.api.patch(service, {"spec": {"selector": {"app": "another"}}})
    run.plane.api.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets/cmk-webhook-certs")
    run.cpu(setup, *arguments, "--cmk-img=other:v2", "--install-dir=/opt/other")
    run.plane.api.delete(HOOK)
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/cmk-webhook-certs"
    run.plane.api.patch(secret, {"data": {"cert.pem": ""}})
    run.cpu(setup, *arguments, "--cmk-img=other:v2", "--install-dir=/opt/other")
    for node in NODES:
        run.plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {cmk_names.LABEL: "true"}}})
    run.cpu(setup, "reconfigure_setup", f"--namespace={NAMESPACE}", "--timeout=60")
    run.check("cmk-setup", "cmk-setup")


def test_of_a_nodes_own_commands(run: CpuCommands) -> None:
    """Uses one exclusive core and one other core, so that the test runs on any machine with two cores."""
    account = run.account("cmk-serviceaccount")
    cores = ("--num-exclusive-cores=1", "--num-shared-cores=0")
    for node in NODES:
        here = (f"--namespace={NAMESPACE}", f"--node-name={node}")
        run.cpu(account, "init", *cores, *here)
        run.cpu(account, "discover", *here)
        run.cpu(account, "reconcile", "--publish", *here)
        run.cpu(account, "node-report", "--publish", *here)
        dead_task(run, node)
        run.cpu(account, "node-report", "--publish", *here)
        assert "999999999" in run.cpu(account, "reconcile", "--publish", *here)
        run.cpu(account, "reconfigure", "--direct", *cores, *here)
    run.check("cmk-serviceaccount", "cmk-node")


def dead_task(run: CpuCommands, node: str) -> None:
    """Adds a task that has ended to the node's exclusive list."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{cmk_names.config_map(node)}"
    config_map = run.plane.api.get(path)
    config = config_map["data"]["config"].replace("[]", "['999999999']", 1)
    assert config != config_map["data"]["config"]
    run.plane.api.patch(path, {"data": {"config": config}})


def test_rights_to_remove_nodes(run: CpuCommands) -> None:
    """This test must run after those above, whose objects it removes."""
    account = run.account("cmk-uninstall")
    boot = procfs.read_boot_id(Path("/proc"))
    for node in NODES:
        path = f"/api/v1/nodes/{node}"
        info = run.plane.api.get(path)["status"]["nodeInfo"] | {"bootID": boot}
        run.plane.api.patch(f"{path}/status", {"status": {"nodeInfo": info}})
        dead_task(run, node)
        run.cpu(
            account,
            "uninstall",
            f"--namespace={NAMESPACE}",
            f"--node-name={node}",
            f"--install-dir={run.folder}",
            *(["--scope=node"] if node == NODES[0] else []),
        )
    run.check("cmk-uninstall", "cmk-uninstall")
    assert [name for name in left(run) if name != "kube-root-ca.crt"] == []
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert len(run.plane.api.get(definitions)["items"]) == 2
    run.cpu(run.plane.admin, "uninstall", "--scope=cluster", "--crds", f"--namespace={NAMESPACE}")
    assert run.plane.api.get(definitions)["items"] == []


def left(run: CpuCommands) -> list[str]:
    kinds = (
        ("api/v1", "configmaps"),
        ("api/v1", "secrets"),
        ("apis/apps/v1", "daemonsets"),
        ("api/v1", "services"),
    )
    objects: list[Any] = []
    for root, kind in kinds:
        objects += run.plane.api.get(f"/{root}/namespaces/{NAMESPACE}/{kind}")["items"]
    return [stored["metadata"]["name"] for stored in objects]
