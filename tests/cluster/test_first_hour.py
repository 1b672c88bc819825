"""The first hour of an operator: installation, an own metric, typing mistakes, a broken Prometheus, and what each step
prints. The programs are those of a cluster; only the Deployment's container runs as a process.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml

from tests.cluster import (
    admission_policy_waits,
    child_processes,
    debian_packages,
    extender_process,
    kubernetes_objects,
    native_mode,
    placement_policy_specs,
    prometheus_and_exporters,
    read_only_commands,
)
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.prometheus_and_exporters import Monitoring

METRIC: Final = "node_rack_temperature"
MISSPELT: Final = "node_rack_temprature"
NODES: Final = ("rack-1", "rack-2")
_FULL_NAME: Final = "placementpolicies.nodewise.io/cool"


class Operator(NamedTuple):
    """What an operator has: kubectl, the nodewise command, and a folder with manifests."""

    plane: ControlPlane
    sandbox: Sandbox
    folder: Path

    @property
    def pod(self) -> str:
        return f"{self.sandbox.namespace}/web"

    def apply(self, **rule: object) -> subprocess.CompletedProcess[str]:
        """`kubectl apply` of a policy with this rule."""
        spec = {"podSelector": {"matchLabels": {"app": "web"}}, "avoid": [rule]}
        policy = placement_policy_specs.policy(spec, name="cool", namespace=self.sandbox.namespace)
        file = self.folder / "policy.yaml"
        file.write_text(yaml.safe_dump(policy))
        command = [self.plane.kubectl_program, f"--kubeconfig={self.plane.admin.kubeconfig}"]
        return subprocess.run(
            [*command, "apply", f"--filename={file}"], capture_output=True, text=True, check=False, timeout=60
        )

    def describe(self) -> str:
        """`kubectl describe` of the policy, on one line."""
        return _on_one_line(
            self.plane.kubectl("describe", _FULL_NAME, f"--namespace={self.sandbox.namespace}")
        )

    def column(self, name: str) -> str:
        """A column of `kubectl get plp -o wide`."""
        printed = self.plane.kubectl("get", _FULL_NAME, f"--namespace={self.sandbox.namespace}", "-o", "wide")
        head, row, *_ = printed.splitlines()
        start = head.index(name)
        return (row[start:].split() or [""])[0]

    def nodewise(self, *arguments: str) -> str:
        """What a command of nodewise prints, on one line."""
        done = read_only_commands.run(*arguments, f"--kubeconfig={self.plane.admin.kubeconfig}")
        return _on_one_line(done.stdout + done.stderr)

    def wait_described(self, what: str, *texts: str) -> None:
        """Waits until `kubectl describe` shows all of these texts."""
        wait(what, lambda: all(map(self.describe().__contains__, texts)) or None, show=self.describe)

    def until_shown(self, reason: str, *texts: str) -> None:
        """Waits until the policy's condition has this reason, and checks that each of the places where an operator
        looks has the texts.
        """
        condition = f"Reason: {reason} Status: False Type: MetricsAvailable"
        self.wait_described(f"the condition has {reason}", condition)
        explained = ("explain", self.pod)
        for show in (self.describe, lambda: self.nodewise(*explained), lambda: self.nodewise("doctor")):
            wait(
                f"{texts} are shown",
                lambda show=show: all(text in show() for text in texts) or None,
                show=show,
            )


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def monitoring(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Monitoring]:
    """Prometheus, which scrapes an exporter on each node."""
    folder = tmp_path_factory.mktemp("monitoring")
    with prometheus_and_exporters.running(prometheus_programs, folder, NODES) as scraping:
        yield scraping


def install(plane: ControlPlane, prometheus_url: str, file: Path) -> User:
    """Installs nodewise as README does. Returns the account of the controller."""
    environment = {"KUBECONFIG": str(plane.admin.kubeconfig), "PATH": "/usr/bin:/bin"}
    command = [
        extender_process.NODEWISE,
        "configure",
        "--mode",
        "native",
        f"--prometheus-url={prometheus_url}",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    file.write_text(done.stdout)
    applied = plane.kubectl("apply", "--server-side", f"--filename={file}")
    assert "deployment.apps/nodewise-controller serverside-applied" in applied
    account = plane.service_account("nodewise", native_mode.NAMESPACE)
    admission_policy_waits.wait_nodes(plane.api, account.api)
    admission_policy_waits.wait_pods(plane.api, account.api)
    return account


@contextlib.contextmanager
def controller(account: User, folder: Path, prometheus_url: str) -> Iterator[None]:
    """Runs the container of the Deployment with this URL of Prometheus."""
    options = ("--native-mode", "--namespace=nodewise", "--metrics=prometheus")
    with extender_process.controller(account, folder, *options, f"--prometheus-url={prometheus_url}"):
        yield


def test_the_first_hour(
    plane: ControlPlane, sandbox: Sandbox, monitoring: Monitoring, tmp_path: Path
) -> None:
    account = install(plane, monitoring.url, tmp_path / "native.yaml")
    operator = Operator(plane, sandbox, tmp_path)
    sandbox.nodes(*map(kubernetes_objects.node, NODES))
    monitoring.set(METRIC, {"rack-1": 90, "rack-2": 40})
    monitoring.wait_scraped(METRIC, {"rack-1": 90, "rack-2": 40})

    # a typing mistake in a field, and one in the operator: the API server refuses the policy
    wait_refused(operator, 'did you mean "maxAge"?', metric=METRIC, above=80, maxage="5s")
    wait_refused(operator, "found no operator, expected exactly one of above, ", metric=METRIC, abov=80)

    with plane.start_scheduler({}):
        # one in the name of the metric
        with controller(account, tmp_path, monitoring.url):
            assert operator.apply(metric=MISSPELT, above=80).returncode == 0
            path = "jsonpath={.status.active}=true"
            plane.kubectl(
                "wait", f"--for={path}", _FULL_NAME, f"--namespace={sandbox.namespace}", "--timeout=50s"
            )
            wait("the policy applies to new pods", lambda: applies_to_new_pods(sandbox) or None)
            sandbox.pods(kubernetes_objects.pod("web", labels={"app": "web"}))
            cause = f"no node has a value of {MISSPELT}: Prometheus has no series of this name"
            operator.until_shown("MetricUnknown", cause, f'correct the name; it has "{METRIC}"')
            sandbox.expect_rejected("web")
            assert operator.column("METRICS") == "False"
            assert f"0 of {len(NODES)} nodes have the labels" in operator.nodewise("explain", operator.pod)
            assert "namespace webb does not exist" in operator.nodewise("explain", "webb/web")
        assert operator.apply(metric=METRIC, above=80, maxAge="5s").returncode == 0

        # a wrong URL
        nowhere = f"http://127.0.0.1:{child_processes.free_port()}"
        with controller(account, tmp_path, nowhere):
            cause = f"no node has a value of {METRIC}: Prometheus is unreachable: connection refused"
            operator.until_shown("SourceUnreachable", cause, "start Prometheus, or correct --prometheus-url")
            assert nowhere not in operator.describe(), "tenants read it"

        with controller(account, tmp_path, monitoring.url):
            # the final state: the pod is on the node that is cool
            wait("all metrics are available", lambda: operator.column("METRICS") == "True" or None)
            assert sandbox.expect_bound("web") == "rack-2"
            wait("one node is rejected", lambda: operator.column("NODES REJECTED") == "1" or None)
            assert "metric-missing" not in operator.nodewise("doctor")

            # Prometheus is down: the last verdicts hold, and the status says why
            with monitoring.without_prometheus():
                cause = "Prometheus is unreachable: connection refused"
                operator.wait_described("the policy is suspended", "Reason: LostNodes", cause)
                assert operator.column("NODES REJECTED") == "1"
            wait(
                "the policy recovers",
                lambda: "Reason: LostNodes" not in operator.describe() or None,
                show=operator.describe,
            )
            # Prometheus marks the end only of series that it has scraped since its start
            fresh = f"count(count_over_time({METRIC}[5s]))"
            wait(
                "all nodes are scraped again",
                lambda: monitoring.prometheus.ask(f"{fresh} == {len(NODES)}") or None,
                show=monitoring.prometheus.targets,
            )

            # the exporters stop: the name of the metric is not called wrong
            monitoring.forget(*NODES)
            ended = "no current series of this name: the last one ended at 20"
            for show in (operator.describe, lambda: operator.nodewise("doctor")):
                wait("the end is shown", lambda show=show: ended in show() or None, show=show)


def applies_to_new_pods(sandbox: Sandbox) -> bool:
    """Whether the API server adds the policy's requirement to new pods, without a gate."""
    probe = kubernetes_objects.pod("probe", labels={"app": "web"})
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    spec = sandbox.api.request("POST", path, json=probe, params=admission_policy_waits.DRY_RUN).json()["spec"]
    return "affinity" in spec and "schedulingGates" not in spec


def wait_refused(operator: Operator, text: str, **rule: object) -> None:
    """Waits until the API server refuses a policy with this rule, with this text."""
    errors: list[str] = []

    def is_refused() -> bool | None:
        done = operator.apply(**rule)
        errors[:] = [done.stderr]
        return (done.returncode != 0 and text in done.stderr) or None

    wait(f"the policy is refused with {text}", is_refused, show=lambda: errors)
