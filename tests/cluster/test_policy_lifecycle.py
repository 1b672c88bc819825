"""A policy from its trial to its step-back on a real control plane: native mode, with values from a real Prometheus."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests import docs_page_code_blocks, docs_page_runner
from tests.cluster import debian_packages, extender_process, kubernetes_objects, native_mode
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import MERGE, ApiError, Object, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy
from tests.cluster.prometheus_process import PrometheusProcess

PAGE: Final = docs_page_code_blocks.HOW_TO / "introduce-a-policy.md"
ITS_URL: Final = "http://localhost:9090"
"""The address of Prometheus on the page."""
SENSORS: Final = "node_hwmon_temp_celsius"
VALUES: Final = {"a": (90, 50), "b": (60, 50), "c": (60, 70), "d": (50, 50)}
"""The temperatures of two sensors of each node."""
TOO_HOT: Final = {"metric": SENSORS, "aggregate": "max", "above": 80, "maxAge": "5m"}
HISTORY_MINUTES: Final = 26 * 60
MINUTES_AHEAD: Final = 20
"""How far values reach into the future, so that all are fresh while the tests run."""


def worker_temperature(node: str, minute: int) -> int:
    """Of the nodes on the page: `worker-2` is hot now and was hot for two hours, `worker-3` was hot for one minute of
    every half hour. The shares on the page are the same for four minutes.
    """
    if node == "worker-2" and (minute < 32 or 300 <= minute < 420):
        return 88
    if node == "worker-3" and 600 <= minute <= 780 and minute % 30 == 0:
        return 82
    return {"worker-1": 50, "worker-2": 70, "worker-3": 66, "worker-4": 55}[node]


def samples() -> Iterator[str]:
    """All series, one value per minute until some minutes from now."""
    now = time.time() // 60 * 60
    minutes = range(HISTORY_MINUTES, -MINUTES_AHEAD, -1)
    for node, values in VALUES.items():
        for sensor, value in enumerate(values):
            for minute in minutes[-2 * MINUTES_AHEAD :]:
                yield f'{SENSORS}{{node="{node}",sensor="{sensor}"}} {value} {now - 60 * minute:.0f}'
    # pods that started on good nodes, and one on `worker-2` while it was hot
    for number, (started, node) in enumerate([(700, "worker-1"), (400, "worker-2"), (200, "worker-4")]):
        labels = f'namespace="web",pod="web-{number}",uid="u{number}"'
        series = {
            f"kube_pod_start_time{{{labels}}}": f"{now - 60 * started:.0f}",
            f'kube_pod_info{{{labels},node="{node}",created_by_kind="ReplicaSet"}}': "1",
            f'kube_pod_labels{{{labels},label_app="web"}}': "1",
        }
        for name, text in series.items():
            for minute in range(started, -MINUTES_AHEAD, -1):
                yield f"{name} {text} {now - 60 * minute:.0f}"
    for number in range(1, 5):
        node = f"worker-{number}"
        for minute in minutes:
            value = worker_temperature(node, minute)
            yield f'{SENSORS}{{node="{node}",sensor="0"}} {value} {now - 60 * minute:.0f}'


@pytest.fixture(scope="module")
def prometheus(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusProcess]:
    server = PrometheusProcess(prometheus_programs, tmp_path_factory.mktemp("prometheus"), {})
    server.hold_samples(samples())
    server.start()
    try:
        yield server
    finally:
        server.stop()


class ControllerStarter:
    """Starts replicas of a controller that reads metrics from Prometheus. The first one leads."""

    def __init__(self, account: User, prometheus: PrometheusProcess, folder: Path, stack: ExitStack) -> None:
        self._account = account
        self._options = ("--native-mode", "--namespace=nodewise", "--metrics=prometheus")
        self._url, self._folder, self._stack = prometheus.url, folder, stack

    def start(self) -> Process:
        return self._stack.enter_context(
            extender_process.controller(
                self._account, self._folder, *self._options, f"--prometheus-url={self._url}"
            )
        )


@pytest.fixture(scope="module")
def scheduler(plane: ControlPlane) -> Iterator[None]:
    with plane.start_scheduler({}):
        yield


@pytest.fixture
def controllers(
    scheduler: None, native_account: User, prometheus: PrometheusProcess, tmp_path: Path
) -> Iterator[ControllerStarter]:
    """A cluster with native mode, for whose controller the test starts replicas."""
    with ExitStack() as stack:
        yield ControllerStarter(native_account, prometheus, tmp_path, stack)


class Trial:
    """A policy for the pods `app: web`, and its pods."""

    def __init__(self, sandbox: Sandbox, **spec: Any) -> None:
        self.sandbox = sandbox
        selector = {"matchLabels": {"app": "web"}}
        made = sandbox.put(policy({"podSelector": selector, "avoid": [TOO_HOT]} | spec, name="cool"))
        self.path, self.uid = path_of(made), str(made["metadata"]["uid"])

    def edit(self, **spec: Any) -> None:
        self.sandbox.api.patch(self.path, {"spec": spec}, MERGE)

    def status(self) -> Object:
        status: Object = self.sandbox.api.get(self.path).get("status", {})
        return status

    def until(self, what: str, **expected: Any) -> None:
        def has_them() -> bool | None:
            status = self.status()
            return all(status.get(name) == value for name, value in expected.items()) or None

        wait(what, has_them, show=self.status)

    def until_new_pods_require(self, is_required: bool, **labels: str) -> None:
        """Waits until new pods get the requirement, without a gate, or get nothing."""
        probe = kubernetes_objects.pod("probe", labels={"app": "web"} | labels)
        path = f"/api/v1/namespaces/{self.sandbox.namespace}/pods"

        def is_admitted_so() -> bool | None:
            try:
                pod = self.sandbox.api.request("POST", path, json=probe, params=DRY_RUN).json()
            except ApiError:
                return None
            is_gated = "schedulingGates" in pod["spec"]
            return (not is_gated and native_mode.requires(pod, self.uid) == is_required) or None

        wait(f"new pods with {labels} require the label: {is_required}", is_admitted_so, show=self.status)

    def rejects_every_node(self) -> bool | None:
        nodes = [self.sandbox.api.get(f"/api/v1/nodes/{name}") for name in "abcd"]
        return all(native_mode.labels_of(node).get(self.uid) == "violating" for node in nodes) or None

    def rejects_no_node(self) -> bool:
        nodes = [self.sandbox.api.get(f"/api/v1/nodes/{name}") for name in "abcd"]
        return not any(native_mode.labels_of(node).get(self.uid) == "violating" for node in nodes)

    def create_pod(self, name: str, **labels: str) -> None:
        self.sandbox.pods(kubernetes_objects.pod(name, labels={"app": "web"} | labels))

    def node_of(self, pod: str) -> str:
        path = f"/api/v1/namespaces/{self.sandbox.namespace}/pods/{pod}"
        return str(self.sandbox.api.get(path)["spec"].get("nodeName", ""))

    def until_placed(self, pod: str) -> str:
        wait(f"{pod} has a node", lambda: self.node_of(pod) or None, show=self.status)
        return self.node_of(pod)


def test_five_commands_from_the_first_idea_to_enforcement(
    controllers: ControllerStarter,
    plane: ControlPlane,
    sandbox: Sandbox,
    prometheus: PrometheusProcess,
    control_plane_programs: Path,
    tmp_path: Path,
) -> None:
    """The first test of this file: the shares on the page are those of the first minutes of `worker_temperature`."""
    controllers.start()
    sandbox.nodes(*(kubernetes_objects.node(f"worker-{number}") for number in range(1, 5)))
    sandbox.create(kubernetes_objects.namespace("web"))
    for name, node in (("web-1", "worker-1"), ("web-2", "worker-3")):
        pod = kubernetes_objects.running_on(node, kubernetes_objects.pod(name, labels={"app": "web"}))
        sandbox.create(pod | {"metadata": pod["metadata"] | {"namespace": "web"}})
    plain = docs_page_runner.plain_environment()
    path = os.pathsep.join(
        [str(control_plane_programs), str(extender_process.NODEWISE.parent), plain["PATH"]]
    )
    environment = {**plain, "PATH": path, "KUBECONFIG": str(plane.admin.kubeconfig)}
    with docs_page_runner.reading(tmp_path, environment, {ITS_URL: prometheus.url}) as reader:
        reader.follows(docs_page_code_blocks.blocks(PAGE))


def test_a_policy_goes_from_shadow_to_enforce_and_steps_back_from_a_bad_edit(
    controllers: ControllerStarter, sandbox: Sandbox
) -> None:
    controllers.start()
    sandbox.nodes(*map(kubernetes_objects.node, "abcd"))
    guard = {"maxRejectedShare": "0.5", "maxWaitingPods": 0, "within": "3s"}
    trial = Trial(
        sandbox, mode="Shadow", canary={"podSelector": {"matchLabels": {"track": "canary"}}}, guard=guard
    )
    trial.until("the policy is evaluated", mode="Shadow", rejectedNodes=1)
    trial.until_new_pods_require(is_required=False)
    trial.edit(mode="Canary")
    trial.until("it is a canary", mode="Canary", active=True)
    trial.until_new_pods_require(is_required=True, track="canary")
    trial.until_new_pods_require(is_required=False)
    trial.create_pod("canary", track="canary")
    assert trial.until_placed("canary") != "a"
    trial.edit(mode="Enforce")
    trial.until("it is enforced", mode="Enforce", active=True)
    trial.until_new_pods_require(is_required=True)
    trial.create_pod("enforced")
    assert trial.until_placed("enforced") != "a"
    # the harm: an edit that rejects every node
    trial.edit(avoid=[TOO_HOT | {"above": 10}])
    # on a busy machine, it may have stepped back before the test reads the labels
    wait(
        "no node is left",
        lambda: trial.rejects_every_node() or trial.status().get("steppedBack"),
        show=trial.status,
    )
    trial.create_pod("waits")
    assert trial.until_placed("waits")
    trial.until("it stepped back", mode="Shadow")
    status = trial.status()
    assert (status["mode"], status["steppedBack"]["generation"]) == (
        "Shadow",
        status["observedGeneration"],
    )
    conditions = {each["type"]: each for each in status["conditions"]}
    assert conditions["SteppedBack"]["status"] == "True"
    reasons = {
        "it rejected 4 of 4 nodes, more than the share 0.5",
        "1 pods waited because of it, more than 0",
    }
    assert any(conditions["SteppedBack"]["message"].startswith(reason) for reason in reasons)
    trial.until_new_pods_require(is_required=False)
    # a correction ends it
    trial.edit(avoid=[TOO_HOT])
    trial.until("it is enforced again", mode="Enforce", active=True, rejectedNodes=1)
    assert "steppedBack" not in trial.status()
    trial.until_new_pods_require(is_required=True)


def test_a_step_back_continues_when_the_leader_is_killed(
    controllers: ControllerStarter, sandbox: Sandbox
) -> None:
    sandbox.nodes(*map(kubernetes_objects.node, "abcd"))
    trial = Trial(sandbox, guard={"maxRejectedShare": "0.5", "within": "1s"})
    leader = controllers.start()
    trial.until("it is enforced", mode="Enforce", active=True, rejectedNodes=1)
    controllers.start()
    trial.edit(avoid=[TOO_HOT | {"above": 10}])
    begun = wait("it steps back", lambda: trial.status().get("steppedBack"), show=trial.status)
    leader.kill()
    trial.create_pod("waits")
    assert trial.until_placed("waits")
    wait("no node is rejected", lambda: trial.rejects_no_node() or None, show=trial.status)
    trial.until_new_pods_require(is_required=False)
    assert trial.status()["steppedBack"] == begun, "the new leader takes the decision from the status"
