"""Sample Pods and Nodes: complete ones, and minimal ones.

The fields that a third-party agent declares are tested on them before the agent is used. A wrong type of one field
would make all requests undecodable, for all agents.
"""

from typing import Any, Final

import msgspec

_METADATA: Final = {
    "name": "one",
    "namespace": "default",
    "uid": "6f2b8c1e-0000-4000-8000-000000000000",
    "resourceVersion": "1",
    "generation": 1,
    "generateName": "on",
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "deletionTimestamp": "2026-01-01T00:00:00Z",
    "deletionGracePeriodSeconds": 30,
    "labels": {"app": "web"},
    "annotations": {"note": "text"},
    "finalizers": ["example.com/last"],
    "ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
    ],
    "managedFields": [{"manager": "m", "operation": "Apply", "fieldsV1": {"f:spec": {}}}],
}
_RESOURCES: Final = {"cpu": "250m", "memory": "1Gi", "example.com/card": "1"}
_CONDITIONS: Final = [
    {
        "type": "Ready",
        "status": "True",
        "reason": "r",
        "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
]
_CONTAINER: Final = {
    "name": "c",
    "image": "i",
    "command": ["run"],
    "args": ["now"],
    "env": [
        {"name": "A", "value": "b"},
        {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "ports": [{"containerPort": 80, "protocol": "TCP"}],
    "resources": {"requests": _RESOURCES, "limits": _RESOURCES},
    "restartPolicy": "Always",
    "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}],
    "securityContext": {"runAsUser": 1000, "privileged": False},
}
_TOLERATIONS: Final = [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]
_TERM: Final = {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}
POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": _METADATA,
    "spec": {
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "nodeName": "n",
        "nodeSelector": {"a": "b"},
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]}}
        },
        "tolerations": _TOLERATIONS,
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "schedulerName": "default-scheduler",
        "serviceAccountName": "default",
        "priority": 0,
        "priorityClassName": "high",
        "preemptionPolicy": "PreemptLowerPriority",
        "overhead": {"cpu": "10m"},
        "resources": {"requests": _RESOURCES},
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "hostNetwork": False,
        "runtimeClassName": "r",
        "schedulingGates": [{"name": "g"}],
    },
    "status": {
        "phase": "Running",
        "conditions": _CONDITIONS,
        "qosClass": "Burstable",
        "startTime": "2026-01-01T00:00:00Z",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "hostIP": "10.0.0.2",
        "nominatedNodeName": "n",
        "containerStatuses": [{"name": "c", "ready": True, "restartCount": 0, "state": {"running": {}}}],
    },
}
NODE: Final = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": _METADATA,
    "spec": {
        "podCIDR": "10.0.0.0/24",
        "podCIDRs": ["10.0.0.0/24"],
        "providerID": "p",
        "unschedulable": True,
        "taints": [{"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
    },
    "status": {
        "capacity": _RESOURCES,
        "allocatable": _RESOURCES,
        "phase": "Running",
        "conditions": _CONDITIONS,
        "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {"kernelVersion": "6", "architecture": "amd64", "kubeletVersion": "v1.36.0"},
        "images": [{"names": ["i"], "sizeBytes": 1}],
        "volumesInUse": ["v"],
    },
}
_MINIMAL: Final = {"metadata": {"name": "one"}}
_NULLS: Final = {"metadata": {"name": "one", "labels": None, "annotations": None}}
_COMPLETE: Final = {"Pod": POD, "Node": NODE}


def check_type_decodes_samples(kind: str, merged: type[Any]) -> None:
    """Decode the samples of a Pod or a Node as the type. One of `UNREADABLE` names a field of a wrong type."""
    for sample in (_COMPLETE[kind], _MINIMAL, _NULLS):
        msgspec.json.decode(msgspec.json.encode(sample), type=merged)
