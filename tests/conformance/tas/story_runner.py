"""Runs one story: applies each step, and compares what is expected with what is observed."""

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET

from tests.cluster import kubernetes_objects, namespace_sandboxes
from tests.cluster.api_client import JSON_PATCH, Object
from tests.cluster.extender_process import LIMITS
from tests.cluster.fake_custom_metrics_server import NodeSample
from tests.conformance.tas import case_cluster_objects
from tests.conformance.tas.faulty_proxy import NODES
from tests.conformance.tas.story_definitions import (
    ExpectedDecision,
    Labels,
    StoryNames,
    StoryPod,
    TasStep,
    TasStory,
)
from tests.conformance.tas.story_environment import POLICIES, ROW, TasEnvironment
from tests.filter_responses import rejected_nodes

OLD_MANAGER = "extender"
"""The field manager of labels that the older system wrote."""
DEADLINE_S = 60.0


class TasStoryRun:
    """Runs a story step by step; `failures` lists the expectations that were not met."""

    def __init__(self, story: TasStory, tag: str, environment: TasEnvironment) -> None:
        self.story, self.names = story, StoryNames(tag)
        self.failures: list[str] = []
        self._environment = environment
        self._left = deque(story.steps)
        self._touched = 0
        self._labels: Labels = self.names.labels(story.nodes)
        self._history: dict[tuple[str, str], list[str | None]] = {}

    def __str__(self) -> str:
        return f"{self.story.number} {self.story.name}".strip()

    @property
    def next(self) -> TasStep | None:
        """The next step; None at the end, or if the story has failed."""
        return self._left[0] if self._left and not self.failures else None

    @property
    def number(self) -> int:
        """The number of the next step, from 1."""
        return len(self.story.steps) - len(self._left) + 1

    def begin(self) -> None:
        """Create the nodes and namespaces."""
        environment, names = self._environment, self.names
        policies = {policy for step in self.story.steps for policy in step.policies}
        for space in {names.policy(policy)[0] for policy in ("demo", *policies)}:
            environment.sandbox.create(kubernetes_objects.namespace(space))
        for node, labels in self._labels.items():
            environment.sandbox.nodes(kubernetes_objects.node(node, labels={ROW: names.tag, **labels}))

    def _tas_labels(self, node: str, labels: dict[str, str]) -> None:
        """Write labels as the older system did, by JSON patch."""
        steps = [
            {"op": "add", "path": f"/metadata/labels/{key.replace('/', '~1')}", "value": value}
            for key, value in labels.items()
        ]
        headers, params = {"Content-Type": JSON_PATCH}, {"fieldManager": OLD_MANAGER}
        self._environment.api.request("PATCH", f"{NODES}/{node}", json=steps, headers=headers, params=params)
        self._expect({**self._labels, node: {**self._labels[node], **labels}})

    def act(self) -> None:
        """Apply the changes of the next step."""
        step, environment, names = self._left[0], self._environment, self.names
        if self.number == 1:
            for node, labels in names.labels(self.story.of_tas).items():
                self._tas_labels(node, labels)
        for node, status in step.refuse.items():
            environment.proxy.refuse(names.node(node), status)
        for metric, behaviour in step.metrics.items():
            self._measure(names.metric(metric), behaviour)
        for policy, strategies in step.policies.items():
            whole = None if strategies is None else case_cluster_objects.strategies(names.tag, strategies)
            environment.policy(*names.policy(policy), whole)
        for policy in step.touch:
            self._touch(policy)
        for name, pod in step.pods.items():
            self._submit(name, pod)
        self._label(step)

    def _measure(self, metric: str, behaviour: Any) -> None:
        metrics = self._environment.metrics
        if behaviour == "hang":
            metrics.hang(metric)
        elif isinstance(behaviour, int):
            metrics.fail(metric, behaviour)
        elif isinstance(behaviour, list):
            items = [
                case_cluster_objects.value(metric, self.names.node(node), value) for node, value in behaviour
            ]
            metrics.say(metric, msgspec.json.encode({"kind": "MetricValueList", "items": items}))
        else:
            metrics.set(metric, {self.names.node(node): _sample(value) for node, value in behaviour.items()})

    def _touch(self, policy: str) -> None:
        self._touched += 1
        space, name = self.names.policy(policy)
        path = POLICIES.replace("taspolicies", f"namespaces/{space}/taspolicies/{name}")
        self._environment.api.patch(path, {"metadata": {"annotations": {"touched": str(self._touched)}}})

    def _submit(self, name: str, pod: StoryPod) -> None:
        space, policy = self.names.policy(pod.policy)
        made = kubernetes_objects.pod(name, labels={"telemetry-policy": policy}, limits=LIMITS)
        made["metadata"]["namespace"] = space
        made["spec"]["nodeSelector"] = {ROW: self.names.tag}
        self._environment.sandbox.create(made)

    def _label(self, step: TasStep) -> None:
        """Write the labels of other clients, and record the labels that are expected at the end of the step."""
        after = {node: dict(labels) for node, labels in self._labels.items()}
        for node, labels_of_node in step.label.items():
            name = self.names.node(node)
            changed = {self.names.label(key): value for key, value in labels_of_node.items()}
            self._environment.api.patch(f"{NODES}/{name}", {"metadata": {"labels": changed}})
            after[name] = {
                key: value for key, value in {**after[name], **changed}.items() if value is not None
            }
        self._expect(after)
        if step.labels is not UNSET:
            self._expect({**{node: {} for node in self._labels}, **self.names.labels(step.labels)})

    def _expect(self, after: Labels) -> None:
        for node, labels in after.items():
            before = self._labels[node]
            for key in before.keys() | labels.keys():
                if before.get(key) != labels.get(key):
                    self._history.setdefault((node, key), []).append(labels.get(key))
        self._labels = after

    def lacks(self, labels: Labels) -> str:
        """The unmet expectations of the current step; empty if there are none. `labels` are those of all nodes."""
        step = self._left[0]
        there = {node: labels.get(node) for node in self._labels}
        if there != self._labels:
            return self.names.own(f"wanted labels {self._labels}, found {there}")
        wrong = [self._unjudged(policy, judged) for policy, judged in step.judged.items()]
        wrong += [self._unconditional(policy, step) for policy in step.conditions]
        wrong += [self._unscheduled(name, pod) for name, pod in step.pods.items()]
        wrong += [self._unlogged(step)]
        return self.names.own("; ".join(filter(None, wrong)))

    def _unjudged(self, policy: str, judged: ExpectedDecision) -> str:
        space, name = self.names.policy(policy)
        pod = {"metadata": {"name": "probe", "namespace": space, "labels": {"telemetry-policy": name}}}
        nodes = list(self._labels)
        wrong = []
        if judged.failed is not UNSET:
            response = self._environment.ask("filter", pod, nodes)
            own = (
                None
                if response["FailedNodes"] is None
                else {self.names.own(n): self.names.own(why) for n, why in rejected_nodes(response).items()}
            )
            wrong += [f"wanted {policy} to reject {judged.failed}, found {own}"] * (not judged.allows(own))
        if judged.scores is not None:
            scores = {
                self.names.own(priority["Host"]): priority["Score"]
                for priority in self._environment.ask("prioritize", pod, nodes)
            }
            wrong += [f"wanted scores {judged.scores}, found {scores}"] * (scores != judged.scores)
        return "; ".join(wrong)

    def _unconditional(self, policy: str, step: TasStep) -> str:
        wanted = step.conditions[policy]
        space, name = self.names.policy(policy)
        path = POLICIES.replace("taspolicies", f"namespaces/{space}/taspolicies/{name}")
        listed = (self._environment.api.get(path).get("status") or {}).get("conditions", [])
        condition: Object = next((condition for condition in listed if condition["type"] == wanted.type), {})
        message = self.names.own(condition.get("message", ""))
        good = condition.get("status") == wanted.status and all(word in message for word in wanted.about)
        return "" if good else f"wanted condition {wanted}, found {condition}"

    def _unscheduled(self, name: str, pod: StoryPod) -> str:
        space, _ = self.names.policy(pod.policy)
        pod_object = self._environment.api.find(f"/api/v1/namespaces/{space}/pods/{name}")
        if pod.lands:
            node = self.names.own(namespace_sandboxes.node_of(pod_object) or "")
            return (
                "" if node == pod.lands else f"wanted pod {name} on {pod.lands}, found {node or pod_object}"
            )
        message = self.names.own((namespace_sandboxes.scheduled(pod_object) or {}).get("message", ""))
        return (
            "" if pod.waits in message and message else f"wanted pod {name} told {pod.waits}, found {message}"
        )

    def _unlogged(self, step: TasStep) -> str:
        wanted = step.logged
        if wanted is None:
            return ""
        lines = map(self.names.own, self._environment.logged(wanted.event))
        if any(all(word in line for word in wanted.about) for line in lines):
            return ""
        return f"wanted {wanted.event} logged with {wanted.about}"

    def finish(self, polled: dict[str, int]) -> None:
        """End the step. `polled` is how often each metric was requested after the step settled."""
        step = self._left.popleft()
        for metric, wanted in step.polled.items():
            if bool(polled.get(self.names.metric(metric))) != wanted:
                self.fail(f"metric {metric} is {'not ' * wanted}asked for")
        for node, count in step.patches.items():
            patches = self._environment.proxy.patches[self.names.node(node)]
            if patches != count:
                self.fail(f"node {node} was written {patches} times, wanted {count}")

    def fail(self, why: str) -> None:
        self.failures.append(why)

    def end(self) -> None:
        """Check that a watch saw exactly the changes between the steps, and no label that appeared only in between."""
        if self.failures:
            return
        seen: dict[tuple[str, str], list[str | None]] = {}
        for change in self._environment.watch.changes:
            if change.node in self._labels:
                seen.setdefault((change.node, change.key), []).append(change.new)
        if seen != self._history:
            self.fail(self.names.own(f"wanted the changes {self._history}, seen {seen}"))


def _sample(value: Any) -> str | NodeSample:
    if not isinstance(value, dict):
        return str(value)
    measured = datetime.now(UTC) - timedelta(seconds=value["age_s"])
    return NodeSample(str(value["value"]), measured.strftime("%Y-%m-%dT%H:%M:%SZ"))
