"""The node agent's DaemonSet, equal to the one of `deploy/cpu-agent.yaml`, and the selection of its pods.

The agent's account and rights are not created here: the user who prepares nodes needs no right to grant rights.
"""

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from nodewise_cpu.api_client_interface import Object
from nodewise_cpu.cluster import node_setup_objects
from nodewise_cpu.cluster.api_server_features import ApiFeatures
from nodewise_cpu.cluster.node_setup_objects import SetupOptions
from nodewise_cpu.cmk_names import DEFAULT_SOCKET, LABEL, NODE_NAME, PROC_FS

NAME: Final = "cmk-agent"
"""The name of the DaemonSet, the label `app` of its pods, and their service account."""
MANIFEST: Final = "deploy/cpu-agent.yaml"
MANIFEST_NAMESPACE: Final = "cmk-namespace"

_FOLDER: Final = str(PurePosixPath(DEFAULT_SOCKET).parent)
_FEATURES: Final = "/etc/kubernetes/node-feature-discovery/features.d"
_CONTAINER: Final = "agent"
_HEALTH_PORT: Final = 9002
_MANAGED: Final = "app.kubernetes.io/managed-by"
"""The label that Helm sets."""
_PULLING: Final = ("image", "imagePullPolicy")


def daemon_set(options: SetupOptions, features: ApiFeatures) -> Object:
    """The DaemonSet for all nodes with the label `LABEL`."""
    labels = {"app": NAME}
    return {
        "apiVersion": features.daemon_sets,
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": options.namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {"labels": labels, **_annotations(features)},
                "spec": _pod_template(options, features),
            },
        },
    }


def _annotations(features: ApiFeatures) -> Object:
    if features.app_armor == "field":
        return {}
    return {"annotations": {f"container.apparmor.security.beta.kubernetes.io/{_CONTAINER}": "unconfined"}}


def _pod_template(options: SetupOptions, features: ApiFeatures) -> Object:
    # older API servers allow pods of that class in kube-system only
    priority = {} if features.webhooks == "v1beta1" else {"priorityClassName": "system-node-critical"}
    folders = {"socket": _FOLDER, "features": _FEATURES}
    return {
        "serviceAccountName": NAME,
        "enableServiceLinks": False,
        **priority,
        "nodeSelector": {LABEL: "true"},
        "tolerations": [{"operator": "Exists"}],
        "hostPID": True,
        "containers": [_container(options, features, folders)],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
            for name, path in folders.items()
        ],
        **({"imagePullSecrets": [{"name": options.pull_secret}]} if options.pull_secret else {}),
    }


def _container(options: SetupOptions, features: ApiFeatures, folders: Mapping[str, str]) -> Object:
    def probe(path: str, **more: int) -> Object:
        return {"httpGet": {"path": path, "port": "health"}, "periodSeconds": 10, **more}

    return {
        "name": _CONTAINER,
        "image": options.image,
        "imagePullPolicy": options.pull_policy,
        "command": ["nodewise", "cpu", "agent"],
        "args": [f"--namespace={options.namespace}", "--health-address=0.0.0.0"],
        "env": [
            {"name": NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": PROC_FS, "value": "/proc"},
        ],
        "ports": [{"name": "health", "containerPort": _HEALTH_PORT}],
        "livenessProbe": probe("/healthz", failureThreshold=6),
        "readinessProbe": probe("/readyz"),
        "resources": {"requests": {"cpu": "20m", "memory": "80Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "runAsUser": 0,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_READ_SEARCH", "SYS_PTRACE", "SYS_NICE"]},
            # profiles of AppArmor and SELinux for containers hide the identity of host processes
            **({"appArmorProfile": {"type": "Unconfined"}} if features.app_armor == "field" else {}),
            "seLinuxOptions": {"type": "spc_t"},
            # the profile allows ptrace, process_vm_readv and kcmp with SYS_PTRACE, and sched_setaffinity always
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in folders.items()],
    }


def is_changed_by_users(daemon_set: Object, wanted: Object) -> bool:
    """Whether users changed the DaemonSet, for example with `--enforce=cgroup`: then it is left unchanged.

    A difference in the image and in how it is pulled does not count as a change.
    """
    about = daemon_set["metadata"]
    if node_setup_objects.MADE_FROM in (about.get("annotations") or {}):
        return False
    current_spec, other = (_without_image(made["spec"]) for made in (daemon_set, wanted))
    is_same = node_setup_objects.matches_common_keys(
        current_spec, other
    ) and node_setup_objects.matches_common_keys(other, current_spec)
    return _MANAGED in (about.get("labels") or {}) or not is_same


def _without_image(spec: Mapping[str, Any]) -> Object:
    pod = spec["template"]["spec"]
    containers = [
        {key: value for key, value in container.items() if key not in _PULLING}
        for container in pod["containers"]
    ]
    return {"selector": spec["selector"], "pod": {**pod, "containers": containers, "imagePullSecrets": []}}


def find_current_daemon_set_pods(pods: Iterable[Object], daemon_set: Object, node: str) -> list[Object]:
    """The node's pods that were created from the current template of the DaemonSet."""
    template = daemon_set["spec"]["template"]["spec"]
    return [
        pod
        for pod in pods
        if _node_of_pod(pod) == node and node_setup_objects.matches_common_keys(pod["spec"], template)
    ]


def _node_of_pod(pod: Object) -> str:
    """The node of a pod. Before the pod is scheduled, the DaemonSet controller's node affinity names it."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get(
        "nodeSelectorTerms"
    ) or ()
    names = [expression["values"][0] for term in terms for expression in term.get("matchFields") or ()]
    return str(names[0]) if names else ""


def kubectl_apply_command(namespace: str) -> str:
    """The command that creates the agent's account and rights."""
    if namespace == MANIFEST_NAMESPACE:
        return f"kubectl apply -f {MANIFEST}"
    return f"sed s/{MANIFEST_NAMESPACE}/{namespace}/g {MANIFEST} | kubectl apply -f -"
