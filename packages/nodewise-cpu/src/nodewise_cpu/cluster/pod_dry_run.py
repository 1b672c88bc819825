"""A dry run of a pod that requests a core: the API server and its webhooks process the pod without creating it."""

from typing import Any, Final, NamedTuple

from nodewise.base.errors import NodewiseError, Refused
from nodewise.kube.resource_kinds import PODS, Resource
from nodewise_cpu.api_client_interface import ApiClient
from nodewise_cpu.cluster.api_server_features import ApiFeatures
from nodewise_cpu.cmk_names import EXCLUSIVE_CORES, INJECTED

WEBHOOK: Final = "cmk.intel.com"
"""The webhook's name, which is the same in every configuration."""
NUM_CORES: Final = "CMK_NUM_CORES"


class ValidationCheck(NamedTuple):
    """The result of a check. `ok` is None if it is unknown or not required."""

    name: str
    ok: bool | None
    seen: str
    remedy: str = ""
    """The action for the user; empty if none is needed."""

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()


class ValidationTarget(NamedTuple):
    """The node to validate, and the expected state. The dry run's pod is in the namespace `pods`."""

    node: str
    namespace: str
    taint: bool = True
    pods: str = "default"


def webhook(api: ApiClient, wanted: ValidationTarget, features: ApiFeatures) -> ValidationCheck:
    """Check that a pod which requests a core gets what it needs. Unknown if the API server has no dry run."""
    if features.webhooks != "v1":
        return ValidationCheck("webhook", ok=None, seen="this API server has no dry run")
    configurations = Resource(
        "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "", namespaced=False
    )
    try:
        webhook_configs = api.get(configurations.path())["items"]
    except Refused as error:
        return ValidationCheck(
            "webhook", ok=None, seen=str(error), remedy="the right to list webhook configurations"
        )
    if not any(
        hook["name"] == WEBHOOK for config in webhook_configs for hook in config.get("webhooks") or ()
    ):
        return ValidationCheck(
            "webhook", ok=None, seen="not installed: pod manifests must include all that `isolate` needs"
        )
    return _create_pod_dry_run(api, wanted)


def _create_pod_dry_run(api: ApiClient, wanted: ValidationTarget) -> ValidationCheck:
    try:
        pod = api.create(f"{PODS.path(wanted.pods)}?dryRun=All", _probe_pod(wanted))
    except Refused as error:
        return ValidationCheck(
            "webhook", ok=None, seen=str(error), remedy="the right to create pods, for a dry run"
        )
    except NodewiseError as error:
        remedy = (
            f"see what keeps pods out of namespace {wanted.pods}; `kubectl logs` of cmk-webhook-deployment"
        )
        return ValidationCheck("webhook", ok=False, seen=str(error), remedy=remedy)
    annotated = (pod["metadata"].get("annotations") or {}).get(INJECTED) == "true"
    environment = {
        variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0].get("env") or ()
    }
    lacking = [
        *([] if annotated else [f"annotation {INJECTED}"]),
        *([] if environment.get(NUM_CORES) == "1" else [NUM_CORES]),
        *([] if pod["spec"]["containers"][0].get("volumeMounts") else ["mounts"]),
    ]
    if lacking:
        remedy = (
            "is cmk-webhook-deployment ready, and its certificate in cmk-webhook-config? `kubectl logs` it"
        )
        return ValidationCheck(
            "webhook", ok=False, seen=f"a pod that asks for a core lacks {', '.join(lacking)}", remedy=remedy
        )
    return ValidationCheck("webhook", ok=True, seen="a pod that asks for a core gets what it needs")


def _probe_pod(wanted: ValidationTarget) -> dict[str, Any]:
    resources = {kind: {EXCLUSIVE_CORES: "1"} for kind in ("requests", "limits")}
    container = {"name": "main", "image": "none", "command": ["true"], "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "cmk-validate-"},
        "spec": {"containers": [container], "restartPolicy": "Never", "nodeName": wanted.node},
    }
