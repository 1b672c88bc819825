"""`deploy/pod-admission.yaml` on a real API server: it rejects pods and workloads whose policy would be ignored."""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import admission_policy_waits, extender_process, kubernetes_objects, program_cache
from tests.cluster.api_client import ApiError, ClusterApi, Object, folder_of, path_of
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.unit.policies.test_policy_selection import MISSPELT, OTHERS

RIGHT = {"telemetry-policy": "pol"}
KINDS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "ReplicationController": "v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
}


def manifests(*actions: str, resource: str = "telemetry/scheduling") -> list[Object]:
    """The admission policy and its binding, with other actions and another resource."""
    policy, binding = deepcopy(extender_process.manifest("pod-admission.yaml"))
    [constant] = [variable for variable in policy["spec"]["variables"] if variable["name"] == "resource"]
    constant["expression"] = f"'{resource}'"
    if actions:
        binding["spec"]["validationActions"] = list(actions)
    return [policy, binding]


def warnings(api: ClusterApi, obj: Object) -> list[str]:
    """The warnings of the API server when this object is created. Nothing is stored."""
    answer = api.request("POST", folder_of(obj), json=obj, params=admission_policy_waits.DRY_RUN)
    return answer.headers.get_list("warning")


def bad_pod(sandbox: Sandbox) -> Object:
    """A pod in the test's namespace that the policy reports."""
    return in_namespace(sandbox, kubernetes_objects.pod("bad", labels={"telemetry-polcy": "pol"}))


def in_namespace(sandbox: Sandbox, obj: Object) -> Object:
    return obj | {"metadata": obj["metadata"] | {"namespace": sandbox.namespace}}


@contextlib.contextmanager
def enforced(sandbox: Sandbox, policy: Sequence[Object]) -> Iterator[None]:
    """Enforces an admission policy while the context is open."""
    bad = bad_pod(sandbox)

    def has_effect() -> bool:
        messages: list[str] = []  # one request for both, as the policy may take effect between two requests
        return admission_policy_waits.is_denied(lambda: messages.extend(warnings(sandbox.api, bad))) or bool(
            messages
        )

    made = [sandbox.api.create(manifest) for manifest in policy]
    try:
        wait("the policy has an effect", lambda: has_effect() or None)
        yield
    finally:
        for created in made:
            sandbox.api.delete(path_of(created))
        wait("the policy has no effect any more", lambda: None if has_effect() else True)


def workload(kind: str, labels: dict[str, str], limits: dict[str, str] | None = None) -> Object:
    """A workload whose pods have these labels and limits."""
    pod = kubernetes_objects.pod("any", limits=limits)
    wanted = {"app": "shop"}
    spec = pod["spec"] | {"restartPolicy": "Never" if "Job" in kind else "Always"}
    template = {"metadata": {"labels": wanted | labels}, "spec": spec}
    body: Any = {"template": template}
    if kind == "ReplicationController":
        body["selector"] = wanted
    elif "Job" not in kind:
        body["selector"] = {"matchLabels": wanted}
    if kind == "StatefulSet":
        body["serviceName"] = "shop"
    if kind == "CronJob":
        body = {"schedule": "17 3 * * *", "jobTemplate": {"spec": body}}
    return {"apiVersion": KINDS[kind], "kind": kind, "metadata": {"name": "shop"}, "spec": body}


def kubectl(sandbox: Sandbox, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs kubectl in the test's namespace and returns the result, also of a failure."""
    command = [
        str(program_cache.folder() / "kubectl"),
        f"--kubeconfig={sandbox.plane.admin.kubeconfig}",
        "-n",
        sandbox.namespace,
    ]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_misspelt_keys_are_reported_and_others_are_not(sandbox: Sandbox) -> None:
    with enforced(sandbox, manifests()):
        for key in MISSPELT:
            pod = in_namespace(sandbox, kubernetes_objects.pod("web", labels={key: "pol"}))
            [warning] = warnings(sandbox.api, pod)
            assert f'found the pod label \\"{key}\\", expected \\"telemetry-policy\\"' in warning
        for key in OTHERS:
            assert (
                warnings(
                    sandbox.api, in_namespace(sandbox, kubernetes_objects.pod("web", labels={key: "pol"}))
                )
                == []
            )
        assert warnings(sandbox.api, in_namespace(sandbox, kubernetes_objects.pod("web"))) == []
        both = RIGHT | {"x/telemetry-policy": "pol"}
        pod = kubernetes_objects.pod("web", labels=both, limits=extender_process.LIMITS)
        assert warnings(sandbox.api, in_namespace(sandbox, pod)) == []


def test_a_policy_label_without_the_request_is_reported(sandbox: Sandbox) -> None:
    pod = in_namespace(sandbox, kubernetes_objects.pod("web", labels=RIGHT))
    init = deepcopy(pod)
    asks = {"resources": {"limits": extender_process.LIMITS, "requests": extender_process.LIMITS}}
    init["spec"]["initContainers"] = [init["spec"]["containers"][0] | {"name": "first"} | asks]
    with enforced(sandbox, manifests()):
        [warning] = warnings(sandbox.api, pod)
        assert "no request for telemetry/scheduling, expected the limit telemetry/scheduling: 1" in warning
        assert "TASPolicy pol has no effect" in warning
        assert warnings(sandbox.api, init) == []
    with enforced(sandbox, manifests(resource="")):
        assert warnings(sandbox.api, pod) == []
    with enforced(sandbox, manifests(resource="example.com/mark")):
        assert "no request for example.com/mark" in warnings(sandbox.api, init)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_kubectl_apply_of_a_workload_prints_the_warning(sandbox: Sandbox, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "workload.yaml"
    with enforced(sandbox, manifests()):
        file.write_text(yaml.safe_dump(workload(kind, {"telemetry-polcy": "pol"})))
        done = kubectl(sandbox, "apply", "-f", str(file))
        assert done.returncode == 0, done.stderr
        assert 'found the pod label "telemetry-polcy", expected "telemetry-policy"' in done.stderr
        assert "created" in done.stdout
        again = kubectl(sandbox, "annotate", "-f", str(file), "a=b")
        assert again.returncode == 0
        assert "telemetry-polcy" not in again.stderr
        file.write_text(yaml.safe_dump(workload(kind, RIGHT, extender_process.LIMITS)))
        fine = kubectl(sandbox, "create", "--dry-run=server", "-o", "name", "-f", str(file))
        assert "found the pod label" not in fine.stderr


def test_deny_refuses_pods_and_workloads(sandbox: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text(yaml.safe_dump(workload("Deployment", RIGHT)))
    before = sandbox.put(workload("Deployment", RIGHT) | {"metadata": {"name": "before"}})
    with enforced(sandbox, manifests("Deny")):
        with pytest.raises(ApiError, match='expected "telemetry-policy"'):
            sandbox.put(kubernetes_objects.pod("web", labels={"telemetry-polcy": "pol"}))
        done = kubectl(sandbox, "apply", "-f", str(file))
        assert done.returncode == 1
        assert "no request for telemetry/scheduling" in done.stderr
        scaled = sandbox.api.patch(path_of(before), {"spec": {"replicas": 0}})
        assert scaled["spec"]["replicas"] == 0
        sandbox.pods(kubernetes_objects.pod("other"), extender_process.pod("right"))
