"""kubeadm's kube-scheduler.yaml as each minor version writes it, and the templates of the older configurator.

From observations of the older program: a base, and the changes of each version.
"""

import copy
from typing import Any

import yaml


def kubeadm_pod(minor: int = 30, patch: str = "0", **image: str) -> dict[str, Any]:
    """The pod that kubeadm of this version writes."""
    probe_port: int | str = 10259 if minor < 34 else "probe-port"
    live = "/healthz" if minor < 32 else "/livez"
    command = [
        "kube-scheduler",
        "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf",
        "--authorization-kubeconfig=/etc/kubernetes/scheduler.conf",
        "--bind-address=127.0.0.1",
        "--kubeconfig=/etc/kubernetes/scheduler.conf",
        "--leader-elect=true",
        *(["--port=0"] if 19 <= minor < 23 else []),
    ]
    registry = "k8s.gcr.io" if minor < 25 else "registry.k8s.io"
    container = {
        "command": command,
        "image": image.get("image", f"{registry}/kube-scheduler:v1.{minor}.{patch}"),
        "imagePullPolicy": "IfNotPresent",
        "livenessProbe": _probe(live, probe_port, 8, 10, 15),
        "name": "kube-scheduler",
        **(
            {"ports": [{"containerPort": 10259, "name": "probe-port", "protocol": "TCP"}]}
            if minor >= 34
            else {}
        ),
        **({"readinessProbe": _probe("/readyz", probe_port, 3, 1, 15)} if minor >= 32 else {}),
        "resources": {"requests": {"cpu": "100m"}},
        **({"startupProbe": _probe(live, probe_port, 24, 10, 15)} if minor >= 19 else {}),
        "volumeMounts": [
            {"mountPath": "/etc/kubernetes/scheduler.conf", "name": "kubeconfig", "readOnly": True}
        ],
    }
    spec = {
        "containers": [container],
        "hostNetwork": True,
        **({"priority": 2000001000} if minor >= 27 else {}),
        "priorityClassName": "system-node-critical" if minor >= 19 else "system-cluster-critical",
        **({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}} if minor >= 22 else {}),
        "volumes": [
            {
                "hostPath": {"path": "/etc/kubernetes/scheduler.conf", "type": "FileOrCreate"},
                "name": "kubeconfig",
            }
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **({"creationTimestamp": None} if minor < 34 else {}),
            "labels": {"component": "kube-scheduler", "tier": "control-plane"},
            "name": "kube-scheduler",
            "namespace": "kube-system",
        },
        "spec": spec,
        "status": {},
    }


def _probe(path: str, port: int | str, failures: int, period: int, timeout: int) -> dict[str, Any]:
    first = {"initialDelaySeconds": 10} if path != "/readyz" else {}
    return {
        "failureThreshold": failures,
        "httpGet": {"host": "127.0.0.1", "path": path, "port": port, "scheme": "HTTPS"},
        **first,
        "periodSeconds": period,
        "timeoutSeconds": timeout,
    }


def to_yaml(value: Any) -> str:
    """YAML as kubeadm writes it: sorted keys, lists not indented."""
    return yaml.safe_dump(value, sort_keys=True, width=1000)


def with_field(value: dict[str, Any], where: str, new: Any) -> dict[str, Any]:
    """A copy with another value at a path such as `spec.containers.0.command`; `REMOVED` removes the key."""
    edited = copy.deepcopy(value)
    *path, last = where.split(".")
    place: Any = edited
    for name in path:
        place = place[int(name)] if isinstance(place, list) else place[name]
    if new is REMOVED:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = new
    return edited


REMOVED = object()

_TAS_ENTRY = {
    "urlPrefix": "https://tas-service.telemetry-aware-scheduling.svc.cluster.local:9001",
    "filterVerb": "scheduler/filter",
    "prioritizeVerb": "scheduler/prioritize",
    "weight": 1,
    "enableHTTPS": True,
    "managedResources": [{"name": "telemetry/scheduling", "ignoredByScheduler": True}],
    "ignorable": True,
    "tlsConfig": {
        "insecure": False,
        "certFile": "/host/certs/client.crt",
        "keyFile": "/host/certs/client.key",
    },
}
_GAS_ENTRY = {
    "urlPrefix": "https://gas-service.default.svc.cluster.local:9001",
    "filterVerb": "scheduler/filter",
    "bindVerb": "scheduler/bind",
    "weight": 1,
    "enableHTTPS": True,
    "managedResources": [{"name": "gpu.intel.com/i915", "ignoredByScheduler": False}],
    "ignorable": True,
    "nodeCacheCapable": True,
    "tlsConfig": _TAS_ENTRY["tlsConfig"],
}


def scheduler_template(*extenders: dict[str, Any]) -> str:
    """A template like those of the older configurator, which have CRLF line ends."""
    value = {
        "apiVersion": "kubescheduler.config.k8s.io/XVERSIONX",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
        "extenders": list(extenders) or [_TAS_ENTRY],
    }
    lines = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=1000)
    return lines.replace("\n", "\r\n")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


TAS_TEMPLATE, GAS_TEMPLATE, BOTH_TEMPLATE = (
    scheduler_template(),
    scheduler_template(_GAS_ENTRY),
    scheduler_template(_TAS_ENTRY, _GAS_ENTRY),
)
