"""The migration from CPU Manager for Kubernetes, followed literally on a node with an allocated core, and back.

CMK's own containers do nothing; its ConfigMap, its objects and its running task are as CMK creates them. The kubelet,
the API server, the controllers, nodewise's image, the installed program and kubectl are real.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from nodewise_cpu import cmk_names
from tests import docs_page_code_blocks
from tests.cluster import admission_policy_waits
from tests.cluster.api_client import ApiError, Object
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.node import (
    busybox_image,
    cpu_manager_on_real_node,
    host_with_kubelet,
    migration_page_reader,
    script_pods,
)
from tests.node.cpu_manager_on_real_node import EXCLUSIVE, ISOLATE, CpuManagerOnNode
from tests.node.host_with_kubelet import KubernetesHost
from tests.node.script_pods import container_of

pytestmark = pytest.mark.cluster

PAGE = docs_page_code_blocks.HOW_TO / "migrate-from-cmk.md"
NAMESPACE = "cmk-namespace"
DAEMONS = f"cmk-reconcile-nodereport-ds-{host_with_kubelet.NAME}"
DOES_NOTHING = {"image": busybox_image.NAME, "command": ["busybox", "sleep", "1000000000"]}
WEBHOOK = {"app": "cmk-webhook-app"}
INSIDE = f"/api/v1/namespaces/{NAMESPACE}"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
MADE_ANEW = (
    f"{INSIDE}/pods/cmk-install-discover-pod-{host_with_kubelet.NAME}",
    f"{APPS}/daemonsets/{DAEMONS}",
    f"{INSIDE}/secrets/cmk-webhook-certs",
    f"{INSIDE}/configmaps/cmk-webhook-configmap",
    f"{INSIDE}/services/cmk-webhook-service",
    f"{APPS}/deployments/cmk-webhook-deployment",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/cmk-webhook-config",
)
"""What CMK's `cluster-init` makes, and must not find."""
RIGHTS: Sequence[Object] = ({"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["*"]},)
"""Of those of CMK's service account, with which its `cluster-init` runs as well."""


def objects() -> list[Object]:
    """The objects that CMK creates, and of its rights those that let a pod read its node."""
    app = {"app": DAEMONS}
    daemons = [{"name": name, **DOES_NOTHING} for name in ("reconcile", "nodereport")]
    grace = {"terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}]}
    daemon_spec = {
        **grace,
        "nodeName": host_with_kubelet.NAME,
        "serviceAccountName": "cmk-serviceaccount",
        "containers": daemons,
    }
    webhook_spec = {**grace, "containers": [{"name": "cmk-webhook", **DOES_NOTHING}]}
    return [
        _made("v1", "ServiceAccount", "cmk-serviceaccount"),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "cmk-role-binding-node"},
            "subjects": [{"kind": "ServiceAccount", "name": "cmk-serviceaccount", "namespace": NAMESPACE}],
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:node",
            },
        },
        _made("apps/v1", "DaemonSet", DAEMONS, spec=_running(app, daemon_spec)),
        _made("v1", "Secret", "cmk-webhook-certs", stringData={"cert.pem": "a", "key.pem": "b"}),
        _made("v1", "ConfigMap", "cmk-webhook-configmap", data={"server.yaml": "", "mutations.yaml": ""}),
        _made(
            "v1",
            "Service",
            "cmk-webhook-service",
            spec={"selector": WEBHOOK, "ports": [{"port": 443, "targetPort": 8443}]},
        ),
        _made(
            "apps/v1",
            "Deployment",
            "cmk-webhook-deployment",
            spec={"replicas": 1, **_running(WEBHOOK, webhook_spec)},
        ),
    ]


def _made(version: str, kind: str, name: str, **more: object) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **more}


def _running(labels: Object, spec: Object) -> Object:
    return {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}}


def pools(task: str) -> str:
    """The state in CMK's form: one exclusive core with a task."""
    others = ",".join(str(cpu) for cpu in range(os.cpu_count() or 2) if cpu not in EXCLUSIVE)
    state = {"exclusive": {0: {"0": [task]}}, "infra": {0: {others: []}}, "shared": {0: {}}}
    return yaml.safe_dump(state, default_flow_style=False)


@pytest.fixture
def old_task(kube_host: KubernetesHost, host_sandbox: Sandbox) -> Object:
    """A pod in which CMK's `isolate` runs a command."""
    host_sandbox.pods(
        cpu_manager_on_real_node.pod("of-before", "exec busybox sleep 1000", kube_host.node.name, cores=0)
    )
    return script_pods.running(host_sandbox, "of-before")


def pid_of(kube_host: KubernetesHost, pod: Object) -> str:
    """The first process of a pod's only container, by its id on the node."""
    lines = kube_host.node.runtime.ctr("tasks", "list").stdout.splitlines()
    (pid,) = [line.split()[1] for line in lines if line.startswith(container_of(pod))]
    return pid


@pytest.fixture
def cmk(
    kube_host: KubernetesHost, host_sandbox: Sandbox, cluster_scheduler: None, old_task: Object
) -> Iterator[None]:
    """CMK 1.5, running on the node."""
    api, node = kube_host.plane.api, kube_host.node
    api.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for obj in objects():
        api.ensure(obj)
    api.create(
        _made(
            "v1", "ConfigMap", f"cmk-config-{node.name}", data={"config": pools(pid_of(kube_host, old_task))}
        )
        | {
            "metadata": {
                "name": f"cmk-config-{node.name}",
                "namespace": NAMESPACE,
                "annotations": {"Owner": ""},
            }
        }
    )
    node.label({cmk_names.LABEL: "true"})
    api.patch(node.path, {"spec": {"taints": [{"key": "cmk", "value": "true", "effect": "NoSchedule"}]}})
    node.advertise({cmk_names.EXCLUSIVE_CORES: "1"})
    program = kube_host.path("/opt/bin/cmk")
    program.parent.mkdir(exist_ok=True)
    program.write_text("CMK's\n")
    kube_host.wait_ready(NAMESPACE, app=DAEMONS)
    kube_host.wait_ready(NAMESPACE, **WEBHOOK)
    yield
    kube_host.plane.kubectl(
        "delete", "--ignore-not-found", "--timeout=50s", *(f"-f={file}" for file in MANIFESTS)
    )
    wait("the namespace is gone", lambda: None if api.find(f"/api/v1/namespaces/{NAMESPACE}") else True)
    clear(kube_host)


MANIFESTS = [docs_page_code_blocks.ROOT / "deploy" / name for name in ("cpu-agent.yaml", "cpu.yaml")]


def clear(kube_host: KubernetesHost) -> None:
    """Restore the node."""
    api, node = kube_host.plane.api, kube_host.node
    api.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cmk-role-binding-node")
    api.patch(node.path, {"metadata": {"labels": {cmk_names.LABEL: None}}, "spec": {"taints": None}})
    api.patch(f"{node.path}/status", {"status": {"capacity": {cmk_names.EXCLUSIVE_CORES: None}}})
    kube_host.output_of("sh", "-c", "rm -rf /opt/bin/*")


def cmk_pod() -> Object:
    """A pod as mutated by CMK's webhook; it needs a shared core."""
    made = script_pods.pod(
        "of-cmk",
        f"exec /opt/bin/cmk isolate --pool=infra --namespace={NAMESPACE} busybox -- sleep 1000",
        on=host_with_kubelet.NAME,
        serviceAccountName="cmk-serviceaccount",
        automountServiceAccountToken=True,
    )
    (container,) = made["spec"]["containers"]
    container["env"] = [{"name": "CMK_PROC_FS", "value": "/host/proc"}]
    mounted = {"cmk-host-proc": ("/proc", "/host/proc"), "cmk-install-dir": ("/opt/bin", "/opt/bin")}
    container["volumeMounts"] = [
        {"name": name, "mountPath": at, "readOnly": True} for name, (_, at) in mounted.items()
    ]
    made["spec"]["volumes"] = [
        {"name": name, "hostPath": {"path": path}} for name, (path, _) in mounted.items()
    ]
    made["metadata"]["namespace"] = NAMESPACE
    return made


def pending_pod(name: str) -> Object:
    """A pod as mutated by nodewise's webhook, which waits for the only core."""
    return cpu_manager_on_real_node.pod(
        name, f"exec {ISOLATE} --wait=100s -- busybox sleep 1000", host_with_kubelet.NAME
    )


def tasks(kube_host: KubernetesHost, pool: str) -> list[str]:
    """The tasks of a pool, as CMK reads them."""
    text = kube_host.plane.api.get(f"{INSIDE}/configmaps/cmk-config-{host_with_kubelet.NAME}")["data"][
        "config"
    ]
    return [task for lists in yaml.safe_load(text)[pool].values() for held in lists.values() for task in held]


def test_a_core_goes_from_a_task_of_cmk_to_one_of_nodewise_and_the_state_back(
    kube_host: KubernetesHost,
    host_sandbox: Sandbox,
    image: str,
    cmk: None,
    old_task: Object,
    control_plane_programs: Path,
    tmp_path: Path,
) -> None:
    api, old = kube_host.plane.api, pid_of(kube_host, old_task)
    hold, away, install, look, let, rights = docs_page_code_blocks.section(PAGE, "## Node by node")
    validate, describe = look.text.splitlines(keepends=True)
    kubeconfig = str(kube_host.plane.admin.kubeconfig)
    with migration_page_reader.operator(
        kube_host,
        control_plane_programs,
        tmp_path,
        instead={"~/.kube/config": kubeconfig, "my-namespace": host_sandbox.namespace},
    ) as typing:
        typing.follows([hold])
        migration_page_reader.expect_rejected(
            host_sandbox, pending_pod("too-early"), "exceeded quota: no-cores"
        )
        typing.follows([away, install])
        output = typing.types(validate, may_fail=True)
        checks = json.loads(output)["checks"]
        # the API server of the tests has no way to a Service
        assert [check["name"] for check in checks if not check["ok"]] == ["webhook"], checks
        assert f" {old}\n" in typing.types(describe)
        typing.follows([let])
        api.create(cmk_pod())
        host_sandbox.pods(pending_pod("new"))
        new = script_pods.running(host_sandbox, "new")
        wait(
            "a pod of CMK's form holds infra",
            lambda: tasks(kube_host, "infra") or None,
            show=lambda: kube_host.describe_state(NAMESPACE),
        )
        assert tasks(kube_host, "exclusive") == [old]
        api.delete(f"/api/v1/namespaces/{host_sandbox.namespace}/pods/of-before")
        held = wait(
            "the core is the next one's",
            lambda: ((now := tasks(kube_host, "exclusive")) != [old] and now) or None,
        )
        assert held == [pid_of(kube_host, new)]
        manager = CpuManagerOnNode(host_sandbox, kube_host.node, kube_host.plane.admin, tmp_path)
        manager.wait_pinned(new, EXCLUSIVE)

        typing.follows(docs_page_code_blocks.section(PAGE, "## Roll back"))
        for path in MADE_ANEW:
            wait(f"{path} can be made anew", lambda path=path: None if api.find(path) else True)
        assert tasks(kube_host, "exclusive") == held
        assert script_pods.running(host_sandbox, "new")["metadata"]["uid"] == new["metadata"]["uid"]
        account = kube_host.plane.service_account("cmk-serviceaccount", NAMESPACE, RIGHTS)
        config_map = _made("v1", "ConfigMap", "cmk-webhook-configmap", data={"server.yaml": ""})
        admission_policy_waits.wait_allowed(
            lambda: admission_policy_waits.try_create(account.api, config_map)
        )
        account.api.create(config_map)
        typing.follows([rights])
        with pytest.raises(ApiError, match='cannot list resource "pods"'):
            account.api.get("/api/v1/pods")


@pytest.mark.usefixtures("cluster_scheduler")
def test_the_pods_that_leave_nodes_become_ready(kube_host: KubernetesHost, image: str) -> None:
    """As the uninstallation in cpu.md waits for it; here on a node that has nothing to leave."""
    manifests = [
        str(docs_page_code_blocks.ROOT / "deploy" / name) for name in ("cpu.yaml", "cpu-uninstall.yaml")
    ]
    files = [f"--filename={file}" for file in manifests]
    kube_host.plane.kubectl("apply", *files)
    try:
        kube_host.wait_ready(NAMESPACE, app="cmk-uninstall-all-nodes")
    finally:
        kube_host.plane.kubectl("delete", "--timeout=50s", *files)
