"""The rate of label writes follows an API server that is slow or refuses calls, and no label is lost."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from nodewise.kube.write_rate import START_QPS
from tests.cluster import api_server_front, extender_process, kubernetes_objects, native_mode
from tests.cluster.api_server_front import RETRY_AFTER_S, ApiServerFront
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy
from tests.cluster.test_network_faults import through

NODES: Final = [f"n{number:03}" for number in range(160)]
BURST: Final = 20
OPTIONS: Final = ("--native-mode", "--namespace=nodewise", f"--kube-burst={BURST}")


def patches_while_all_labels_change(
    front: ApiServerFront, sandbox: Sandbox, metrics: FakeCustomMetricsApi, value: int, expected: int
) -> list[float]:
    """Changes the verdict on all nodes, waits for the labels, and returns the times of the patches meanwhile."""
    uid = sandbox.api.get(
        f"/apis/nodewise.io/v1alpha1/namespaces/{sandbox.namespace}/placementpolicies/cool"
    )["metadata"]["uid"]
    selector = f"{native_mode.LABEL_PREFIX}{uid}=violating"

    def labelled() -> int:
        return len(sandbox.api.get("/api/v1/nodes", labelSelector=selector)["items"])

    before = len(front.patched_s)
    metrics.set("heat", dict.fromkeys(NODES, value))
    wait("all labels have changed", lambda: labelled() == expected or None, 60, labelled)
    return front.patched_s[before:]


def most_in(times_s: list[float], window_s: float) -> int:
    return max(sum(begin_s <= at_s < begin_s + window_s for at_s in times_s) for begin_s in times_s)


def test_label_writes_follow_a_slow_and_an_overloaded_api_server(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, native_account: User, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(sandbox.create, map(kubernetes_objects.node, NODES)))
    metrics.set("heat", dict.fromkeys(NODES, 10))
    sandbox.put(policy({"podSelector": {}, "avoid": [{"metric": "heat", "above": 50}]}, name="cool"))
    with api_server_front.serving(plane.url, plane.authority.client_context(None)) as front:
        account = through(native_account, front.kubeconfig(native_account.kubeconfig, tmp_path))
        with extender_process.controller(account, tmp_path, *OPTIONS):
            front.patch_delay_s = 0.1
            slow = patches_while_all_labels_change(front, sandbox, metrics, 90, len(NODES))
            assert most_in(slow, 2.0) <= BURST + 2.0 * START_QPS + 10, (
                "quicker only while responses are quick"
            )
            front.patch_delay_s, front.most_patches = 0.0, 15
            overloaded = patches_while_all_labels_change(front, sandbox, metrics, 10, 0)
            assert front.limited_s, "the API server was overloaded"
            for limited_s in front.limited_s:
                # calls that were on their way when the first of them was refused arrive as well
                arrived = sum(limited_s + 0.2 < at_s < limited_s + 0.9 * RETRY_AFTER_S for at_s in overloaded)
                assert not arrived, "nothing is written before the time in Retry-After"
            assert len(front.limited_s) <= len(overloaded) / 2
            print({"patches": len(overloaded), "with 429": len(front.limited_s)})
