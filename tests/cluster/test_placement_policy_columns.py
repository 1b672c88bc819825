"""What `kubectl get plp` and `kubectl get cplp` show of policies in each state, by a real API server and Prometheus."""

from pathlib import Path
from typing import Any, Final

from tests.cluster import (
    debian_packages,
    extender_process,
    kubernetes_objects,
    native_mode,
    prometheus_process,
)
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import GROUP, policy

HOT: Final = {"metric": "temp", "above": 80, "maxAge": "10m"}
TABLE: Final = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
SUSPENDED: Final = "avoid[0] (temp above 80): more than half of the nodes lost their value at once"
DOWN: Final = "avoid[0] (temp above 80): the last values of temp apply until they are too old: Prometheus"
STATES: Final[dict[str, tuple[dict[str, Any], tuple[str, str, str, str]]]] = {
    "fine": ({"avoid": [HOT]}, ("Enforce", "True", "True", "every rule applies")),
    "typo": (
        {"avoid": [HOT], "podSelector": {"matchLabels": {"app": "wbe"}}},
        ("Enforce", "True", "True", "the selectors match no pod"),
    ),
    "unknown": (
        {"avoid": [{"metric": "absent", "above": 1}], "mode": "Shadow"},
        ("Shadow", "False", "False", "avoid[0] (absent above 1): no node has a value of absent: Prometheus"),
    ),
    "fading": ({"avoid": [HOT | {"maxAge": "25s"}]}, ("Enforce", "False", "False", SUSPENDED)),
    "guarded": (
        {"avoid": [HOT | {"above": 10}], "guard": {"maxRejectedShare": "0.5", "within": "1s"}},
        (
            "Shadow",
            "True",
            "False",
            "the guard is exceeded: it rejected 3 of 3 nodes, more than the share 0.5",
        ),
    ),
    "percent": (
        {"avoid": [HOT], "mode": "Canary", "canary": {"percent": 10}},
        ("Canary", "True", "False", "native mode does not enforce it: a canary by percent needs an extender"),
    ),
}
"""By name of a policy, its spec, and the expected columns MODE, METRICS, READY and MESSAGE."""


class Tables:
    """The tables of both kinds as the API server prints them for kubectl."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def row(self, plural: str, name: str) -> tuple[str, ...]:
        """Mode, metrics, ready and message of a policy; empty before it has a status."""
        space = f"namespaces/{self._sandbox.namespace}/" if plural == "placementpolicies" else ""
        path = f"/apis/{GROUP}/{space}{plural}/{name}"
        table = self._sandbox.api.request("GET", path, headers=TABLE).json()
        of_wide = {column["name"] for column in table["columnDefinitions"] if column["priority"]}
        assert of_wide <= {"Enforcement", "Would taint"}
        names = [column["name"] for column in table["columnDefinitions"]]
        cells = dict(zip(names, table["rows"][0]["cells"], strict=True))
        return tuple(str(cells[column] or "") for column in ("Mode", "Metrics", "Ready", "Message"))

    def wait(self, plural: str, name: str, expected: tuple[str, str, str, str]) -> None:
        def matches() -> bool | None:
            *columns, message = self.row(plural, name)
            return (tuple(columns) == expected[:3] and message.startswith(expected[3])) or None

        wait(f"{plural}/{name} is {expected}", matches, show=lambda: self.row(plural, name))


def test_columns_of_each_state(
    plane: ControlPlane,
    native_account: User,
    sandbox: Sandbox,
    prometheus_programs: debian_packages.PrometheusPrograms,
    tmp_path: Path,
) -> None:
    sandbox.nodes(*kubernetes_objects.nodes("a b c"))
    running = kubernetes_objects.pod("web", labels={"app": "web"})
    running["spec"]["nodeName"] = "b"
    sandbox.pods(running)
    selected: dict[str, Any] = {"podSelector": {"matchLabels": {"app": "web"}}}
    inside = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": sandbox.namespace}}}
    names = {"placementpolicies": "{}", "clusterplacementpolicies": sandbox.namespace + "-{}"}
    tables = Tables(sandbox)
    values = {f'temp{{node="{node}"}}': value for node, value in zip("abc", (90, 20, 20), strict=True)}
    with (
        prometheus_process.prometheus_with_series(
            prometheus_programs, tmp_path / "prometheus", values
        ) as prometheus,
        extender_process.controller(
            native_account,
            tmp_path,
            f"--namespace={native_mode.NAMESPACE}",
            "--metrics=prometheus",
            f"--prometheus-url={prometheus.url}",
        ),
    ):
        for name, (spec, _) in STATES.items():
            sandbox.put(policy(selected | spec, name=name))
            wide = names["clusterplacementpolicies"].format(name)
            sandbox.create(policy(selected | inside | spec, "ClusterPlacementPolicy", wide))
        for plural, form in names.items():
            for name, (_, expected) in STATES.items():
                tables.wait(plural, form.format(name), expected)
        head = plane.kubectl("get", "plp", "-n", sandbox.namespace).splitlines()[0]
        columns = ["NAME", "MODE", "PODS", "NODES", "REJECTED", "METRICS", "READY", "AGE", "MESSAGE"]
        assert head.split() == columns
        prometheus.kill()
        for plural, form in names.items():
            tables.wait(plural, form.format("fine"), ("Enforce", "False", "False", DOWN))
        events = plane.kubectl("events", "-n", sandbox.namespace)
        assert "NeverFetched" not in events
