"""`make demo CLUSTER=1`: the demo on a real API server and a real kube-scheduler, which are built if necessary."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nodewise.cli.demo import METRIC, print_demo_text
from tests.cluster import (
    controlplane,
    extender_process,
    fake_custom_metrics_server,
    health_example_manifests,
    kubernetes_objects,
    namespace_sandboxes,
    program_cache,
)
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import Object, folder_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox

BAD = {"rack1-a": 0, "rack1-b": 2, "rack2-a": 0}
CPU = {"rack1-a": "8", "rack1-b": "16", "rack2-a": "8"}


def main() -> None:
    """Runs all steps of the demo."""
    assets = program_cache.folder()
    print_demo_text(f"starting etcd, kube-apiserver and kube-scheduler {program_cache.VERSION[1:]} …")
    with tempfile.TemporaryDirectory() as folder, controlplane.running(assets) as plane:
        with sandbox(plane) as alone:
            by_requests = place_by_requests(plane, alone)
        with sandbox(plane) as ours, fake_custom_metrics_server.behind(ours, Path(folder)) as metrics:
            definition(ours)
            metrics.set(METRIC, BAD)
            with extender_process.extender(plane, Path(folder)) as nodewise:
                place_with_nodewise(plane, ours, metrics, nodewise, by_requests)
    print_demo_text("\nnext: nodewise decide examples/health-metric -o wide")


@contextlib.contextmanager
def sandbox(plane: ControlPlane) -> Iterator[Sandbox]:
    """A namespace and the nodes of the example."""
    with namespace_sandboxes.created(plane) as own:
        own.nodes(*(kubernetes_objects.node(name, cpu=cpu) for name, cpu in CPU.items()))
        yield own


def definition(own: Sandbox) -> None:
    """Creates the policies of the example, and sends the pods that they select to nodewise."""
    extender_process.define(own.api)
    health_example_manifests.put_policies(own)
    for document in extender_process.manifest("extender-pods.yaml"):
        own.create(document)
    namespace_sandboxes.wait("selected pods request the resource", lambda: _is_marked(own) or None)


def _is_marked(own: Sandbox) -> bool:
    """Whether the API server adds the resource to a selected pod."""
    obj = pod("probe") | {"metadata": pod("probe")["metadata"] | {"namespace": own.namespace}}
    stored = own.api.request("POST", folder_of(obj), json=obj, params=DRY_RUN).json()
    return "telemetry/scheduling" in stored["spec"]["containers"][0]["resources"].get("limits", {})


def pod(name: str) -> Object:
    labels = health_example_manifests.POD_LABELS
    return kubernetes_objects.pod(name, cpu="1", memory="2Gi", labels=labels)


def place_by_requests(plane: ControlPlane, own: Sandbox) -> dict[str, str]:
    names = [f"app-{number}" for number in range(1, 5)]
    with plane.start_scheduler({}):
        own.pods(*(kubernetes_objects.pod(name, cpu="1", memory="2Gi") for name in names))
        return {name: own.expect_bound(name) for name in names}


def place_with_nodewise(
    plane: ControlPlane,
    own: Sandbox,
    metrics: FakeCustomMetricsApi,
    nodewise: ExtenderProcess,
    by_requests: dict[str, str],
) -> None:
    names = list(by_requests)
    namespace_sandboxes.wait("the metric is known", lambda: nodewise.fetched(METRIC) or None)
    with plane.start_scheduler({"extenders": [nodewise.entry(ignorable=False)]}):
        own.pods(*(pod(name) for name in names))
        ours = {name: own.expect_bound(name) for name in names}
        print_demo_text(f"\n{'NODE':9} {METRIC:14} {'BY REQUESTS ALONE':28} BY NODEWISE")
        for node, value in BAD.items():
            shown = (
                ", ".join(n for n, at in placement.items() if at == node) or "-"
                for placement in (by_requests, ours)
            )
            alone, aware = shown
            print_demo_text(f"{node:9} {value:<14} {alone:28} {aware}")
        waits_and_heals(own, metrics, nodewise)
        survives(own, nodewise)


def waits_and_heals(own: Sandbox, metrics: FakeCustomMetricsApi, nodewise: ExtenderProcess) -> None:
    metrics.set(METRIC, dict.fromkeys(BAD, 1))
    bad = all_rejected(own, nodewise)
    namespace_sandboxes.wait("every node is bad", bad)
    own.pods(pod("app-5"))
    print_demo_text(f"\nevery disk fails; kubectl describe pod app-5:\n  {own.expect_event('app-5')}")
    began = time.monotonic()
    metrics.set(METRIC, BAD | {"rack1-a": 1})
    namespace_sandboxes.wait("rack2-a is good", lambda: not rejects(own, nodewise, "rack2-a") or None)
    own.annotate("rack1-a", "nodewise.io/demo", "woken")
    node = own.expect_bound("app-5")
    print_demo_text(
        f"rack2-a heals, one node event follows: bound to {node} after {(time.monotonic() - began) * 1000:.0f} ms"
    )
    print_demo_text("  (without nodewise: up to 300 s)")


def all_rejected(own: Sandbox, nodewise: ExtenderProcess) -> Any:
    return lambda: all(rejects(own, nodewise, node) for node in BAD) or None


def rejects(own: Sandbox, nodewise: ExtenderProcess, node: str) -> bool:
    return nodewise.rejects(own.namespace, node, labels=health_example_manifests.POD_LABELS)


def survives(own: Sandbox, nodewise: ExtenderProcess) -> None:
    nodewise.process.kill()
    own.pods(pod("app-6"), kubernetes_objects.pod("plain"))
    print_demo_text("\nnodewise is killed:")
    print_demo_text(f"  app-6 waits: {own.expect_rejected('app-6')[:110]}")
    print_demo_text(
        f"  a pod that no policy selects goes to {own.expect_bound('plain')}:"
        " kube-scheduler does not call nodewise for it"
    )


if __name__ == "__main__":
    main()
