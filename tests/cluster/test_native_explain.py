"""`nodewise explain` in native mode says the same as `nodewise decide --cluster` for generated policies and node sets,
and the changes that it proposes let as many nodes pass as it says.
"""

import contextlib
import copy
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.cluster import (
    extender_process,
    fake_port_forward,
    kubernetes_objects,
    namespace_sandboxes,
    native_mode,
    read_only_commands,
)
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import tas_policy
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy
from tests.cluster.test_native_mode_agreement import (
    FAILING,
    METRICS,
    NODES,
    UNKNOWN,
    Generator,
    pod,
)

NAMESPACES: Final = 10
POLICIES_OF_PODS: Final = (1, 3, 6)
"""Pods of a namespace, by their number of policies: 100 policies of 30 pods in all."""
WITH_VALUES: Final = [metric for number, metric in enumerate(METRICS) if number % 5 < 3]
"""Most nodes have values of these, so that other targets let nodes pass."""


class GeneratedPolicies(NamedTuple):
    """The policies, and a pod for each group of them."""

    policies: dict[str, Object]
    """By the name in decisions: `placement policy test-1/pol-2`."""
    pods: list[Object]


def create_policies(generator: Generator, spaces: Sequence[Sandbox]) -> GeneratedPolicies:
    """Creates policies, each of which selects one pod."""
    made: dict[str, Object] = {}
    pods = []
    for space, count in itertools.product(spaces, POLICIES_OF_PODS):
        labels = {"app": f"pod-{count}"}
        for number in range(count):
            name = f"pol-{count}-{number}"
            if number == 0 and generator.is_tas():
                created = space.put(tas_policy(name, {"dontschedule": generator.tas_strategy()}))
                labels["telemetry-policy"] = name
                kind = "telemetry policy"
            else:
                created = space.put(policy(generator.placement_spec({"app": labels["app"]}), name=name))
                kind = "placement policy"
            made[f"{kind} {space.namespace}/{name}"] = {
                key: created[key] for key in ("apiVersion", "kind", "metadata", "spec")
            }
        pods.append(pod(space, labels["app"], **labels))
    return GeneratedPolicies(made, pods)


def with_target(document: Object, change: Object) -> Object | None:
    """The policy with the first proposed target; None if not exactly one rule is the one to be changed."""
    changed = copy.deepcopy(document)
    target = change["more"][0]["target"]
    if document["kind"] == "TASPolicy":
        rules = changed["spec"]["strategies"]["dontschedule"]["rules"]
        key = (change["metric"], change["operator"], change["target"])
        matching = [rule for rule in rules if (rule["metricname"], rule["operator"], rule["target"]) == key]
        field = "target"
    else:
        field = change["operator"]
        parts = [part for rule in changed["spec"]["avoid"] for part in rule.get("all", [rule])]
        matching = [
            part
            for part in parts
            if part["metric"] == change["metric"] and str(part.get(field)) == str(change["target"])
        ]
    if len(matching) != 1:
        return None
    matching[0][field] = target if isinstance(target, int) else str(target)
    return changed


class Commands:
    """The commands of an operator."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        user = read_only_commands.reader(plane, nodewise_namespace=namespace)
        self._options = [f"--kubeconfig={user.kubeconfig}", f"--nodewise-namespace={namespace}", "-o", "json"]
        self._folder = folder

    def decide(self, changed: Sequence[Object] = ()) -> dict[str, Any]:
        """The decision about each pod with its values and settings of the controller, and with changed policies."""
        file = self._folder / "changed.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(changed)}))
        command = ["decide", "--cluster", "--agents=telemetry", *self._options]
        done = read_only_commands.run(*command, *([f"--policy={file}"] if changed else []))
        assert "of this command" not in done.stderr, done.stderr
        decisions = read_only_commands.parse_report(done, 3)["decisions"]  # some pods fit on no node
        return {decision["pod"]: decision for decision in decisions}

    def explain(self, name: str, *more: str) -> Any:
        done = read_only_commands.run("explain", name, "--timeout=60s", *self._options, *more)
        assert not done.stderr, done.stderr
        return read_only_commands.parse_report(done)

    def explain_all(self, names: Sequence[str], *more: str) -> dict[str, Any]:
        return {name: self.explain(name, *more) for name in names}


def rules_and_values(nodes: Sequence[Object]) -> dict[str, Any]:
    """Of an explanation, by node: the reasons, and each rule with its value."""
    return {node["node"]: (node["reasons"], sorted(map(_rule_and_value, node["measured"]))) for node in nodes}


def decided_rules_and_values(decision: Object) -> dict[str, Any]:
    """The same of a decision."""
    nodes = [*decision["feasible"], *decision["rejected"]]
    return {
        node: (
            decision["rejected"].get(node, []),
            sorted(_rule_and_value(value) for value in decision["values"] if value["node"] == node),
        )
        for node in nodes
    }


def _rule_and_value(value: Object) -> tuple[str, ...]:
    return tuple(str(value[field]) for field in ("policy", "metric", "operator", "target", "value", "state"))


def current_values(decisions: Mapping[str, Object], metrics: Mapping[str, Mapping[str, int]]) -> bool | None:
    """Whether all decisions have these values."""
    return (
        all(
            value["value"] == metrics.get(value["metric"], {}).get(value["node"])
            for decision in decisions.values()
            for value in decision["values"]
        )
        or None
    )


@contextlib.contextmanager
def controller_in_pod(
    plane: ControlPlane, account: User, space: Sandbox, folder: Path, *more: str
) -> Iterator[str]:
    """Runs a controller that commands find as a pod of the namespace, and yields the URL of its admin port."""
    options = ("--native-mode", "--namespace=nodewise", "--kube-qps=1000", "--kube-burst=1000", *more)
    certificate = plane.authority.issue("kubelet", "127.0.0.1")
    with (
        extender_process.controller(account, folder, *options) as process,
        fake_port_forward.kubelet_of(plane.api, NODES[0], certificate) as kubelet,
    ):
        health = wait("the controller starts", lambda: health_of(process))
        place = (NODES[0], space.namespace, "controller-0")
        fake_port_forward.add_replica(plane.api, kubelet, *place, health, "controller")
        yield health


def health_of(process: Process) -> str | None:
    match = re.search(r'"health": ?"([^"]+)"', process.log.read_text())
    return match[1] if match else None


def test_explain_agrees_with_decide_and_its_changes_suffice(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, native_account: User, tmp_path: Path
) -> None:
    generator = Generator(36, 100, [*WITH_VALUES * 20, METRICS[4], FAILING, UNKNOWN])
    sandbox.nodes(*map(kubernetes_objects.node, NODES))
    metrics.set(FAILING, {})
    metrics.fail(FAILING)
    values = {metric: generator.values(metric) for metric in METRICS}
    for metric in METRICS:
        metrics.set(metric, values[metric])
    with contextlib.ExitStack() as stack:
        spaces = [
            stack.enter_context(namespace_sandboxes.created(plane, trusted=False)) for _ in range(NAMESPACES)
        ]
        generated = create_policies(generator, spaces)
        assert len(generated.policies) == 100
        last = generated.pods[-1]["metadata"]["labels"]
        native_mode.wait_gated(spaces[-1], {"app": last["app"]})
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(plane.api.create, generated.pods))
        names = [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in generated.pods]
        commands = Commands(plane, sandbox.namespace, tmp_path)
        health = stack.enter_context(controller_in_pod(plane, native_account, sandbox, tmp_path))
        decisions: dict[str, Any] = {}

        def has_current_values() -> bool | None:
            decisions.update(commands.decide())
            return current_values(decisions, values)

        wait("the controller has the values", has_current_values)
        explained = commands.explain_all(names, f"--server={health}")
        assert_same(explained, decisions)
        assert_changes_suffice(commands, generated, explained)
        assert_by_port_forward(commands, names[-1], explained[names[-1]])
        wait_labels(commands, names[:4], health)


def assert_same(explained: Mapping[str, Object], decisions: Mapping[str, Object]) -> None:
    """Explanations and decisions have the same rules, values and changes."""
    for name, explanation in explained.items():
        evaluation, decision = explanation["evaluation"], decisions[name]
        assert rules_and_values(evaluation["nodes"]) == decided_rules_and_values(decision), name
        assert evaluation["changes"] == decision.get("changes", []), name
        assert evaluation["passing"] == len(decision["feasible"]), name
        rejected = {each["policy"]: each["rejected"] for each in evaluation["policies"]}
        assert rejected == {key: len(each["rejected"]) for key, each in decision["policies"].items()}, name
    assert sum(bool(decision.get("changes")) for decision in decisions.values()) > 15


def assert_changes_suffice(
    commands: Commands, generated: GeneratedPolicies, explained: Mapping[str, Object]
) -> None:
    """One changed target of each pod, and then one policy without effect, lets as many nodes pass as they say."""
    changed: dict[str, Object] = {}
    removed: dict[str, Object] = {}
    expected: dict[str, int] = {}
    without: dict[str, int] = {}
    for name, explanation in explained.items():
        evaluation = explanation["evaluation"]
        for change in evaluation["changes"]:
            document = change["more"] and with_target(generated.policies[change["policy"]], change)
            if document and name not in changed:
                changed[name] = document
                expected[name] = evaluation["passing"] + change["more"][0]["nodes"]
        for rejecting in evaluation["policies"]:
            policy = generated.policies[rejecting["policy"]]
            if rejecting["more_without"] and policy["kind"] == "PlacementPolicy":
                removed[name] = policy | {"spec": policy["spec"] | {"mode": "Shadow"}}
                without[name] = evaluation["passing"] + rejecting["more_without"]
    assert len(changed) > 10
    assert len(removed) > 10
    for documents, counts in ((changed, expected), (removed, without)):
        then = commands.decide(list(documents.values()))
        assert {name: len(then[name]["feasible"]) for name in documents} == counts


def assert_by_port_forward(commands: Commands, name: str, explained: Object) -> None:
    """Without --server, the pod of the controller is asked."""
    forwarded = commands.explain(name)
    replica = forwarded["evaluation"]["replica"]
    assert [answer["replica"] for answer in forwarded["replicas"]] == [replica]
    assert replica.endswith("/controller-0")
    assert rules_and_values(forwarded["evaluation"]["nodes"]) == rules_and_values(
        explained["evaluation"]["nodes"]
    )


def wait_labels(commands: Commands, names: Sequence[str], health: str) -> None:
    """The labels of nodes become those of the evaluation."""

    def differences() -> list[Any]:
        explained = commands.explain_all(names, f"--server={health}")
        return [explanation["evaluation"]["differing_labels"] for explanation in explained.values()]

    wait(
        "the labels are those of the evaluation",
        lambda: None if any(differences()) else True,
        show=differences,
    )
