"""GKE admits pods of the classes system-* only in namespaces with a ResourceQuota for the class. The quotas that
nodewise ships suffice without a controller, and limit nothing.
"""

import functools
import json
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.cluster import controlplane
from tests.cluster.api_client import ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import wait
from tests.cluster.test_second_scheduler import printed

pytestmark = pytest.mark.cluster

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
CRITICAL: Final = {
    "scopeName": "PriorityClass",
    "operator": "In",
    "values": ["system-node-critical", "system-cluster-critical"],
}
LIMITS: Final = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "ResourceQuotaConfiguration",
    "limitedResources": [{"resource": "pods", "matchScopes": [CRITICAL]}],
}
ADMISSION: Final = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [{"name": "ResourceQuota", "configuration": LIMITS}],
}


def test_namespaces_admit_critical_pods_on_gke(control_plane_programs: Path, tmp_path: Path) -> None:
    file = tmp_path / "admission.json"
    file.write_text(json.dumps(ADMISSION))
    with controlplane.running(
        control_plane_programs, tmp_path, {"admission-control-config-file": str(file)}
    ) as plane:
        texts = [
            printed(plane),
            (DEPLOY / "kustomize/native/nodewise.yaml").read_text(),
            (DEPLOY / "cpu-agent.yaml").read_text(),
            (DEPLOY / "controller.yaml").read_text(),
        ]
        for number, text in enumerate(texts):
            objects = [made for made in yaml.safe_load_all(text) if made]
            [quota] = [made for made in objects if made["kind"] == "ResourceQuota"]
            [workload] = [made for made in objects if made["kind"] in {"Deployment", "DaemonSet"}]
            namespace = f"critical-{number}"
            plane.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

            spec = workload["spec"]["template"]["spec"]
            metadata = {"generateName": "pod-", "namespace": namespace}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            with pytest.raises(ApiError, match="insufficient quota to match these scopes"):
                plane.api.create(pod)
            plane.api.create({**quota, "metadata": {**quota["metadata"], "namespace": namespace}})
            wait("the quota admits a pod", functools.partial(_create_if_admitted, plane, pod))
            for _ in range(20):
                plane.api.create(pod)


def _create_if_admitted(plane: ControlPlane, pod: Object) -> Object | None:
    """None while the API server does not know the quota yet."""
    try:
        return plane.api.create(pod)
    except ApiError:
        return None
