"""The labels of native mode and `nodewise decide` agree on which nodes accept the pods of generated policies."""

import contextlib
import itertools
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests import short_and_long_case_counts
from tests.cluster import (
    extender_process,
    kubernetes_objects,
    namespace_sandboxes,
    native_mode,
    read_only_commands,
)
from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import tas_policy
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import OPERATORS, policy

NODES: Final = [f"n{number:02}" for number in range(24)]
NAMESPACES: Final = 15
POLICIES_PER_NAMESPACE: Final = 10
CLUSTER_POLICIES: Final = 20
"""All budgets of labels are used: 170 policies, as many as fit on a node."""
ROUNDS: Final = short_and_long_case_counts.of(1, 20)
"""How often all values change."""
METRICS: Final = [f"m{number}" for number in range(8)]
FAILING, UNKNOWN = "failing", "unknown"
"""A metric whose requests fail, and one that does not exist."""
TAS_OPERATORS: Final = ("LessThan", "GreaterThan", "Equals")


class Generator:
    """Policies and values from a fixed seed, with values and targets below `limit`. `metrics` are those of rules."""

    def __init__(
        self, seed: int, limit: int = 5, metrics: Sequence[str] = (*METRICS * 3, FAILING, UNKNOWN)
    ) -> None:
        self._random = random.Random(seed)
        self._limit, self._metrics = limit, metrics
        self._known = {metric: self._some_nodes(number) for number, metric in enumerate(METRICS)}

    def _some_nodes(self, number: int) -> list[str]:
        """The nodes with a value: all of them, most, few, or none."""
        shares = (1.0, 0.9, 0.6, 0.3, 0.0)
        return self._random.sample(NODES, int(len(NODES) * shares[number % len(shares)]))

    def values(self, metric: str) -> dict[str, int]:
        return {node: self._random.randrange(self._limit) for node in self._known[metric]}

    def placement_spec(self, labels: Mapping[str, str]) -> Object:
        rules = [self._rule() for _ in range(self._random.randint(1, 3))]
        return {"podSelector": {"matchLabels": dict(labels)}, "avoid": rules}

    def tas_strategy(self) -> Object:
        rules = [self._tas_rule() for _ in range(self._random.randint(1, 3))]
        operator = self._random.choice(({}, {"logicalOperator": "anyOf"}, {"logicalOperator": "allOf"}))
        return {"rules": rules} | operator

    def is_tas(self) -> bool:
        return self._random.random() < 0.3

    def wide_label(self) -> dict[str, str]:
        """The label that selects a cluster policy; none for most pods."""
        number = self._random.randrange(CLUSTER_POLICIES)
        return {"wide": f"wide-{number}"} if self._random.random() < 0.3 else {}

    def _rule(self) -> Object:
        if self._random.random() < 0.7:
            return self._comparison()
        return {"all": [self._comparison() for _ in range(self._random.randint(1, 3))]}

    def _comparison(self) -> Object:
        missing = self._random.choice(({}, {"whenMissing": "Allow"}, {"whenMissing": "Reject"}))
        return {
            "metric": self._metric(),
            self._random.choice(OPERATORS): self._random.randrange(self._limit),
        } | missing

    def _tas_rule(self) -> Object:
        missing = self._random.choice(({}, {"when_missing": "pass"}, {"when_missing": "reject"}))
        operator, target = self._random.choice(TAS_OPERATORS), self._random.randrange(self._limit)
        return {"metricname": self._metric(), "operator": operator, "target": target} | missing

    def _metric(self) -> str:
        return self._random.choice(self._metrics)


def create_policies(generator: Generator, spaces: Sequence[Sandbox], wide: Sandbox) -> list[Object]:
    """Creates all policies, and returns a pod for each of them; some pods have two policies."""
    pods = [pod(spaces[0], f"wide-{number}", wide=f"wide-{number}") for number in range(CLUSTER_POLICIES)]
    for number in range(CLUSTER_POLICIES):
        spec = generator.placement_spec({"wide": f"wide-{number}"}) | {"namespaceSelector": {}}
        wide.create(policy(spec, "ClusterPlacementPolicy", f"wide-{number}"))
    for space, number in itertools.product(spaces, range(POLICIES_PER_NAMESPACE)):
        name = f"pol-{number}"
        if generator.is_tas():
            space.put(tas_policy(name, {"dontschedule": generator.tas_strategy()}))
            labels = {"telemetry-policy": name}
        else:
            space.put(policy(generator.placement_spec({"app": name}), name=name))
            labels = {"app": name}
        pods.append(pod(space, name, **labels, **generator.wide_label()))
    return pods


def pod(space: Sandbox, name: str, **labels: str) -> Object:
    made = kubernetes_objects.pod(name, labels=labels)
    return made | {"metadata": made["metadata"] | {"namespace": space.namespace}}


def wait_known(spaces: Sequence[Sandbox], pods: Sequence[Object]) -> None:
    """Waits until the API server applies the policies: it learns those of a kind in the order of their creation."""
    by_namespace = {space.namespace: space for space in spaces}
    for label in ("app", "telemetry-policy", "wide"):
        last = next(each["metadata"] for each in reversed(pods) if label in each["metadata"]["labels"])
        native_mode.wait_gated(by_namespace[last["namespace"]], {label: last["labels"][label]})


def feasible_nodes(command: Sequence[str]) -> dict[str, set[str]]:
    """The nodes that `decide` accepts, by pod."""
    done = read_only_commands.run(*command)
    decisions = read_only_commands.parse_report(done, 3)["decisions"]  # some pods fit on no node
    return {decision["pod"]: set(decision["feasible"]) for decision in decisions}


def requirements(pod: Object) -> list[Object]:
    """The requirements of the pod's node selector, and of its required node affinity, which has one term at most."""
    selector = pod["spec"].get("nodeSelector", {})
    required: list[Object] = [
        {"key": key, "operator": "In", "values": [value]} for key, value in selector.items()
    ]
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(native_mode.REQUIRED, {})
    for term in affinity.get("nodeSelectorTerms", []):
        required += term["matchExpressions"]
    return required


def selected_nodes(api: ClusterApi, pod: Object) -> set[str]:
    """The nodes that match the requirements of the pod, as the API server selects them."""
    operators = {"In": "in", "NotIn": "notin"}
    selector = ",".join(
        f"{item['key']} {operators[item['operator']]} ({','.join(item['values'])})"
        for item in requirements(pod)
    )
    return {node["metadata"]["name"] for node in api.get("/api/v1/nodes", labelSelector=selector)["items"]}


def matching_nodes(nodes: Sequence[Object], pod: Object) -> set[str]:
    """The same, calculated from a list of the nodes."""
    return {
        node["metadata"]["name"]
        for node in nodes
        if all(
            (node["metadata"]["labels"].get(item["key"]) in item["values"]) == (item["operator"] == "In")
            for item in requirements(pod)
        )
    }


def wait_agreement(api: ClusterApi, pods: Mapping[str, Object], verdicts: Mapping[str, set[str]]) -> None:
    """Waits until the labels select the nodes of these verdicts for every pod."""
    assert verdicts.keys() == pods.keys()
    assert len({frozenset(nodes) for nodes in verdicts.values()}) > len(pods) / 3  # they differ

    def differences() -> dict[str, set[str]]:
        """By pod, the nodes on which they differ."""
        nodes = api.get("/api/v1/nodes")["items"]
        differing = {name: matching_nodes(nodes, pod) ^ verdicts[name] for name, pod in pods.items()}
        return {name: names for name, names in differing.items() if names}

    wait("labels and verdicts agree", lambda: None if differences() else True, show=differences)
    assert {name: selected_nodes(api, pod) for name, pod in pods.items()} == verdicts


def test_labels_select_the_nodes_that_decide_accepts(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, native_account: User, tmp_path: Path
) -> None:
    generator = Generator(seed=19)
    sandbox.nodes(*map(kubernetes_objects.node, NODES))
    metrics.set(FAILING, {})
    metrics.fail(FAILING)
    for metric in METRICS:
        metrics.set(metric, generator.values(metric))
    with contextlib.ExitStack() as stack:
        spaces = [
            stack.enter_context(namespace_sandboxes.created(plane, trusted=False)) for _ in range(NAMESPACES)
        ]
        pods = create_policies(generator, spaces, sandbox)
        assert len(pods) == 170
        wait_known(spaces, pods)
        with ThreadPoolExecutor(4) as pool:
            made = {
                f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pod
                for pod in pool.map(plane.api.create, pods)
            }
        reader = read_only_commands.reader(plane)
        command = [
            "decide",
            "--cluster",
            f"--kubeconfig={reader.kubeconfig}",
            "--agents=telemetry",
            "-o",
            "json",
        ]
        options = ("--native-mode", "--namespace=nodewise", "--kube-qps=1000", "--kube-burst=1000")
        with extender_process.controller(native_account, tmp_path, *options):
            for _ in range(ROUNDS):
                verdicts = feasible_nodes(command)
                wait_agreement(plane.api, made, verdicts)
                for metric in METRICS:  # the nodes with values stay the same, so that no rule is suspended
                    metrics.set(metric, generator.values(metric))
