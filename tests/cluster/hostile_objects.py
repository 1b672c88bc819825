"""Objects and responses that tenants or foreign servers may use to attack `nodewise doctor` and its readers.

They contain control sequences for terminals, line breaks that forge lines, very long texts and lists, and YAML aliases
that expand exponentially.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

import yaml

from tests.cluster import (
    asgi_server_thread,
    child_processes,
    gpu_cluster,
    healthy_cluster,
    misconfigurations,
    single_purpose_certificates,
)
from tests.cluster.api_client import Object
from tests.cluster.asgi_server_thread import Receive, Scope, Send, ServerTls
from tests.cluster.healthy_cluster import HealthyCluster

ESCAPES: Final = "\x1b[2J\x1b]0;owned\x07\r\nKIND all is well\u202e\u009b31m"
"""Control characters that clear the screen, set the window title, forge a line and reverse the writing direction."""
LONG: Final = "x" * 100_000
BOMB: Final = "\n".join(
    ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    + [
        f"{after}: &{after} [{', '.join(10 * [f'*{name}'])}]"
        for name, after in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    + ["extenders: *i", "profiles: *i", "kind: KubeSchedulerConfiguration", "settings: *i"]
)
"""YAML whose aliases expand to a thousand million `x`."""


def many_extenders(number: int = 10_000) -> Object:
    """A scheduler configuration with this number of extenders and profiles."""
    url = f"https://{child_processes.own_address()}:1/scheduler"
    entry = {"urlPrefix": url, "filterVerb": "filter", "prioritizeVerb": ESCAPES, "weight": 0}
    profiles = [{"schedulerName": f"my-{at}{ESCAPES}"} for at in range(number)]
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return kind | {"extenders": number * [entry], "profiles": profiles}


def scheduler_of_a_tenant(name: str, text: str) -> Callable[[HealthyCluster], AbstractContextManager[None]]:
    """A kube-scheduler pod in a tenant's namespace, with this text as its configuration and control characters in its
    arguments.
    """
    metadata = {"name": name, "namespace": healthy_cluster.TENANT}
    kept = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"scheduler.yaml": text}}
    container = {
        "name": "kube-scheduler",
        "image": "registry.k8s.io/kube-scheduler:v1.36.3",
        "command": [
            "kube-scheduler",
            "--config=/etc/kubernetes/scheduler.yaml",
            f"--feature-gates={ESCAPES}",
        ],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/kubernetes"}],
    }
    volumes = [{"name": "config", "configMap": {"name": name}}]
    labels = {"component": "kube-scheduler"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}}
    whole = healthy_cluster.running_pod(f"scheduler-{name}", healthy_cluster.TENANT, "b", pod)
    return misconfigurations.created(kept, whole)


def extender_of_a_tenant() -> Callable[[HealthyCluster], AbstractContextManager[None]]:
    """A tenant's pod with the labels of nodewise, settings that expand exponentially, and control characters."""
    metadata = {"name": "nodewise", "namespace": healthy_cluster.TENANT}
    kept = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"nodewise.yaml": BOMB}}
    container = {
        "name": "nodewise",
        "image": "nodewise:0.1.0",
        "command": ["nodewise", "extender"],
        "args": ["--config=/etc/nodewise/config/nodewise.yaml", f"--agents=telemetry,{ESCAPES}", LONG],
        "env": [{"name": "NODEWISE_AGENTS", "value": ESCAPES}],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/nodewise/config"}],
    }
    volumes = [{"name": "config", "configMap": {"name": "nodewise"}}]
    labels = {"app.kubernetes.io/name": "nodewise", "app.kubernetes.io/component": "extender"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}}
    return misconfigurations.created(
        kept, healthy_cluster.running_pod("nodewise-of-a-tenant", healthy_cluster.TENANT, "b", pod)
    )


@contextlib.contextmanager
def talking_pods(cluster: HealthyCluster) -> Iterator[None]:
    """Pods with very long annotations and conditions."""
    pods = [misconfigurations.waiting(f"talks-{at}", labels={"telemetry-policy": "ghost"}) for at in range(5)]
    for pod in pods:
        pod["metadata"]["annotations"] = {"note": LONG, gpu_cluster.CARDS: ESCAPES}
        pod["spec"]["schedulingGates"] = [{"name": "tests/held"}]
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": ESCAPES + LONG,
    }
    with misconfigurations.created(*pods)(cluster):
        for pod in pods:
            path = f"/api/v1/namespaces/{healthy_cluster.TENANT}/pods/{pod['metadata']['name']}"
            healthy_cluster.status(cluster.api, path, {"conditions": [condition]})
        yield


@contextlib.contextmanager
def odd_policies(cluster: HealthyCluster) -> Iterator[None]:
    """Policies with unusual content that the definition still allows."""
    rule = {"metricname": "heat", "operator": "GreaterThan", "target": 80}
    labels = [f"{ESCAPES}={ESCAPES}", LONG]
    made = [
        healthy_cluster.policy("many", dontschedule=100 * [rule], deschedule=100 * [rule]),
        healthy_cluster.policy("labels", labeling=[rule | {"labels": labels}]),
    ]
    with misconfigurations.created(*made)(cluster):
        yield


@contextlib.contextmanager
def odd_values(cluster: HealthyCluster) -> Iterator[None]:
    """Metric values of more than 20,000 nodes that do not exist."""
    with misconfigurations.measured("names", "names", (ESCAPES, LONG, *map(str, range(20_000))))(cluster):
        yield


@contextlib.contextmanager
def odd_answers(cluster: HealthyCluster) -> Iterator[None]:
    """A metric with malformed JSON, and a metric whose requests are never answered."""
    metrics = cluster.metrics
    with (
        misconfigurations.measured("odd", "odd", ("a",))(cluster),
        misconfigurations.measured("mute", "mute", ("a",))(cluster),
    ):
        metrics.say("odd", b'{"items": ' + 20_000 * b"[" + ESCAPES.encode())
        metrics.hang("mute")
        try:
            yield
        finally:
            metrics.heal("mute")
            metrics.heal("odd")


@contextlib.contextmanager
def odd_kubelet(cluster: HealthyCluster) -> Iterator[None]:
    """A kubelet with a long configuration of wrong types."""
    kubelet = cluster.kubelets[healthy_cluster.POOLS]
    before = kubelet.configuration
    kubelet.configuration = {
        "cpuManagerPolicy": ESCAPES + LONG,
        "topologyManagerPolicy": [1],
        "more": 50 * [LONG],
    }
    yield
    kubelet.configuration = before


def odd_cards() -> Callable[[HealthyCluster], AbstractContextManager[None]]:
    """A node with a GPU annotation that cannot be parsed."""
    node = gpu_cluster.node("odd")
    node["metadata"]["annotations"] = {"nodewise.io/gpu-cards": ESCAPES + LONG}
    return misconfigurations.created(node)


class _SilentServer:
    """A server that accepts requests and does not respond."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asgi_server_thread.body_of(receive)
        await asyncio.sleep(600)


@contextlib.contextmanager
def strange_server(cluster: HealthyCluster) -> Iterator[None]:
    """A server at the extender's address that never responds, with control sequences in its certificate's name."""
    pair = cluster.certificates.leaf(
        ESCAPES[:60], cluster.certificates.authority, "other.example", use=single_purpose_certificates.SERVER
    )
    with asgi_server_thread.serving(
        _SilentServer(), ServerTls(pair), host=child_processes.own_address()
    ) as url:
        odd = f"{url}/scheduler?{ESCAPES}#{ESCAPES}"
        with misconfigurations.entry(
            urlPrefix=odd, httpTimeout=ESCAPES, weight=ESCAPES, filterVerb=[ESCAPES]
        )(cluster):
            yield


@contextlib.contextmanager
def _with_config(config: Object, cluster: HealthyCluster) -> Iterator[None]:
    before, cluster.config = cluster.config, config
    yield
    cluster.config = before


def configuration(config: Object) -> Callable[[HealthyCluster], AbstractContextManager[None]]:
    """Replaces the scheduler configuration file that doctor reads."""
    return lambda cluster: _with_config(config, cluster)


HOSTILE: Final = {
    "a tenant's scheduler whose configuration unfolds": scheduler_of_a_tenant("unfolds", BOMB),
    "a tenant's scheduler with 10,000 extenders": scheduler_of_a_tenant(
        "long", yaml.dump(many_extenders(), Dumper=yaml.CSafeDumper)
    ),
    "a tenant's pod that says that it is nodewise": extender_of_a_tenant(),
    "pods that talk": talking_pods,
    "policies of wrong shapes": odd_policies,
    "values of 20,000 names that are none": odd_values,
    "an adapter that answers nonsense, or never": odd_answers,
    "a kubelet that says what none says": odd_kubelet,
    "a node with cards that nobody understands": odd_cards(),
    "a server that never answers, with a certificate to be shown": strange_server,
}
"""The hostile conditions by description. They can exist at the same time."""

HOSTILE_FILES: Final = {
    "a file with 10,000 extenders": configuration(many_extenders()),
    "a file that unfolds": configuration(yaml.safe_load(BOMB)),
    "a file that is a list": configuration([ESCAPES]),  # type: ignore[arg-type]
}
"""Hostile scheduler configurations by description."""
