"""The preparation of nodes, and the reconfiguration of all nodes, by pods that run the commands.

Preparation creates a pod that runs once, then a DaemonSet on each node; the node agent and one webhook for all.

It is idempotent: unchanged objects are left alone, a pod that succeeded is not run again, other objects are replaced. A
failure on one node does not affect the others; the report has its reason.

A reconfiguration is checked on all nodes first, then executed on one node after the other. Nothing is changed unless
the check succeeds on every node. A node on which it fails is unchanged, and the nodes after it are not touched.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base.errors import BadInput, BadSettings, Conflict, NodewiseError, Problem, Refused, Unavailable
from nodewise.kube.resource_kinds import NODES, PODS
from nodewise_cpu import cmk_names
from nodewise_cpu.cluster import node_setup_objects, object_writer
from nodewise_cpu.cluster.api_server import ApiClient, ApiFeatures, Object
from nodewise_cpu.cluster.node_setup_objects import ALWAYS, ONCE, SetupOptions
from nodewise_cpu.cluster.object_writer import Deadline, PodProgress, PodWatch
from nodewise_cpu.cmk_names import LABEL

ProgressReporter = Callable[[str], None]
"""Shows progress to people who wait."""
PAGE: Final = "500"


class SetupPlan(NamedTuple):
    """The nodes, the commands to run on them, and the objects to create."""

    nodes: Sequence[str]
    commands: Sequence[str]
    options: SetupOptions
    agent: Object | None = None
    """The node agent's DaemonSet, if it is to be created."""
    shared: Sequence[Object] = ()
    """The webhook's objects, in the order of creation."""


class SetupStep(NamedTuple):
    """An object and what was done to it: created, replaced, unchanged (also because nodewise did not create it), or the
    error.
    """

    name: str
    outcome: str
    error: str = ""


class PreparedNode(NamedTuple):
    """The steps for one node, or for all of them (`node` is empty)."""

    node: str
    steps: tuple[SetupStep, ...] = ()

    @property
    def error(self) -> str:
        """The first error, or empty."""
        return next((step.error for step in self.steps if step.error), "")

    def as_dict(self) -> dict[str, Any]:
        steps = [{key: value for key, value in step._asdict().items() if value} for step in self.steps]
        return {"node": self.node, "ready": not self.error, "steps": steps}


class SetupReport(NamedTuple):
    """The result for each node, in the given order, for the agent and for shared objects."""

    nodes: Sequence[PreparedNode]
    agent: PreparedNode
    shared: PreparedNode

    @property
    def is_whole(self) -> bool:
        return not any(part.error for part in (*self.nodes, self.agent, self.shared))

    def as_dict(self) -> dict[str, Any]:
        """The output of `cluster-init -o json`."""
        parts = {"agent": self.agent.as_dict(), "webhook": self.shared.as_dict()}
        for part in parts.values():
            del part["node"]
        return {"nodes": [node.as_dict() for node in self.nodes], **parts}


def schedulable_nodes(api: ApiClient) -> list[str]:
    """Names of all nodes on which pods may be placed, in the API server's order."""
    return [
        node["metadata"]["name"] for node in list_node_objects(api) if not node["spec"].get("unschedulable")
    ]


def check_node_names(api: ApiClient, nodes: Sequence[str]) -> list[str]:
    """The names without duplicates. BadSettings names those that are not nodes."""
    for name in nodes:
        node_setup_objects.check_node_name(name)
    there = {node["metadata"]["name"] for node in list_node_objects(api)}
    missing = [Problem("--host-list", name, "a node of the cluster") for name in nodes if name not in there]
    if missing:
        raise BadSettings("settings", missing)
    return list(dict.fromkeys(nodes))


def list_node_objects(api: ApiClient, selector: str = "") -> list[Any]:
    """All nodes, or those with a label."""
    return list_all_pages(api, NODES.path(), {"labelSelector": selector} if selector else {})


def list_all_pages(api: ApiClient, path: str, params: Mapping[str, str]) -> list[Any]:
    """Every object of a list, read in pages."""
    page = api.get(path, {**params, "limit": PAGE})
    items = list(page["items"])
    while token := page.get("metadata", {}).get("continue"):
        page = api.get(path, {**params, "limit": PAGE, "continue": token})
        items += page["items"]
    return items


def execute_setup_plan(
    api: ApiClient,
    plan: SetupPlan,
    features: ApiFeatures,
    deadline: Deadline,
    report_progress: ProgressReporter,
) -> SetupReport:
    """Execute the plan. Failures on nodes are in the report; other errors are raised.

    Refused before anything is changed if the node agent has no account.
    """
    if len(set(plan.nodes)) != len(plan.nodes):
        # otherwise the names of their objects would not be unique
        raise BadInput.of("cannot prepare nodes", "nodes", ", ".join(plan.nodes), "each once")
    _check_service_account_exists(api, plan)
    preparing = _NodeSetup(api, plan, features, deadline, report_progress)
    preparing.run_pods_to_completion([command for command in plan.commands if command in ONCE])
    preparing.create_node_daemon_sets([command for command in plan.commands if command in ALWAYS])
    agent = PreparedNode("", tuple(preparing.deploy_agent_daemon_set()))
    is_wanted = not agent.error and (preparing.ready() or not plan.nodes)
    shared = _create_shared_objects(api, plan.shared, deadline, report_progress) if is_wanted else ()
    nodes = [PreparedNode(node, tuple(preparing.steps[node])) for node in plan.nodes]
    return SetupReport(nodes, agent, PreparedNode("", tuple(shared)))


def _check_service_account_exists(api: ApiClient, plan: SetupPlan) -> None:
    """Refused without the agent's account, for which pods are never created. Its rights need an administrator."""
    if plan.agent is None:
        return
    namespace = plan.options.namespace
    about = {"name": node_setup_objects.AGENT, "namespace": namespace}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about}
    if object_writer.find_object(api, object_writer.path(account)) is None:
        problem = Problem(
            f"ServiceAccount {namespace}/{node_setup_objects.AGENT}", "not there", "the node agent's"
        )
        remedy = f"{node_setup_objects.kubectl_apply_command(namespace)}; or do without the agent: --no-agent"
        raise Refused("nothing was changed", [problem], remedy=remedy)


class _NodeSetup:
    """Prepares nodes step by step. A node on which a step failed takes no further ones."""

    def __init__(
        self,
        api: ApiClient,
        plan: SetupPlan,
        features: ApiFeatures,
        deadline: Deadline,
        report_progress: ProgressReporter,
    ) -> None:
        self.steps: dict[str, list[SetupStep]] = {node: [] for node in plan.nodes}
        self._api = api
        self._plan = plan
        self._features = features
        self._deadline = deadline
        self._report_progress = report_progress

    def ready(self) -> list[str]:
        """The nodes without a failure so far."""
        return [node for node, steps in self.steps.items() if not any(step.error for step in steps)]

    def run_pods_to_completion(self, commands: Sequence[str]) -> None:
        make = node_setup_objects.preparation_pod
        made = self._create_on_ready_nodes(
            commands, lambda node: make(commands, node, self._plan.options, self._features)
        )
        looked_up = PODS.path(self._plan.options.namespace)

        def look(waiting: Mapping[str, Object]) -> Mapping[str, PodProgress]:
            there = {pod["metadata"]["uid"]: pod for pod in list_all_pages(self._api, looked_up, {})}
            return {
                node: object_writer.completion_progress(there.get(pod["metadata"]["uid"]))
                for node, pod in waiting.items()
            }

        self._wait_for_nodes(made, look)

    def create_node_daemon_sets(self, commands: Sequence[str]) -> None:
        made = self._create_on_ready_nodes(
            commands,
            lambda node: node_setup_objects.daemon_set(commands, node, self._plan.options, self._features),
        )
        looked_up, watched = PODS.path(self._plan.options.namespace), PodWatch()

        def look(waiting: Mapping[str, Object]) -> Mapping[str, PodProgress]:
            there, now = list_all_pages(self._api, looked_up, {}), self._deadline.now()
            return {
                node: watched.steady(
                    object_writer.pods_owned_by(there, pod["metadata"]["uid"]),
                    pod["metadata"]["annotations"][node_setup_objects.MADE_FROM],
                    now,
                )
                for node, pod in waiting.items()
            }

        self._wait_for_nodes(made, look)

    def deploy_agent_daemon_set(self) -> Iterable[SetupStep]:
        """Create the agent's DaemonSet if any node is ready, and wait for its pod on each node."""
        wanted = self._plan.agent
        if wanted is None or not (self.ready() or not self._plan.nodes):
            return ()
        title = object_writer.title(wanted)
        self._report_progress(title)
        try:
            existing = object_writer.find_object(self._api, object_writer.path(wanted))
            if existing is not None and node_setup_objects.is_changed_by_users(existing, wanted):
                made, outcome = existing, "unchanged, as it was not created by nodewise"
            else:
                made, outcome = object_writer.create_or_replace(self._api, wanted, self._deadline)
            waiting = self._nodes_awaiting_agent(made)
        except NodewiseError as error:
            return [SetupStep(title, "failed", str(error))]
        looked_up, watched = PODS.path(self._plan.options.namespace), PodWatch()

        def look(waiting: Mapping[str, Object]) -> Mapping[str, PodProgress]:
            there, now = list_all_pages(self._api, looked_up, {}), self._deadline.now()
            ours = list(object_writer.pods_owned_by(there, made["metadata"]["uid"]))
            return {
                node: watched.running(node_setup_objects.find_current_daemon_set_pods(ours, made, node), now)
                for node in waiting
            }

        self._wait_for_nodes(waiting, look)
        return [SetupStep(title, outcome)]

    def _nodes_awaiting_agent(self, made: Object) -> dict[str, Object]:
        """The ready nodes that get an agent pod: those with the label, which `discover` sets."""
        labelled = {
            node["metadata"]["name"] for node in list_node_objects(self._api, f"{cmk_names.LABEL}=true")
        }
        waiting = {}
        for node in self.ready():
            step = SetupStep(f"node agent of {object_writer.title(made)}", "ready")
            if node in labelled:
                self.steps[node].append(step)
                waiting[node] = made
            elif node_setup_objects.DISCOVER in self._plan.commands:
                why = f"no agent comes to a node without the label {cmk_names.LABEL}=true, which `discover` sets"
                self.steps[node].append(step._replace(outcome="failed", error=why))
        return waiting

    def _create_on_ready_nodes(
        self, commands: Sequence[str], wanted: Callable[[str], Object]
    ) -> dict[str, Object]:
        """Create one object for each node that is still ready; returns them by node."""
        made: dict[str, Object] = {}
        for node in self.ready() if commands else ():
            pod = wanted(node)
            self._report_progress(f"{object_writer.title(pod)}: {','.join(commands)}")
            try:
                made[node], outcome = object_writer.create_or_replace(self._api, pod, self._deadline)
            except NodewiseError as error:
                self.steps[node].append(SetupStep(object_writer.title(pod), "failed", str(error)))
            else:
                self.steps[node].append(SetupStep(object_writer.title(pod), outcome))
        return made

    def _wait_for_nodes(
        self, waiting: dict[str, Object], look: Callable[[Mapping[str, Object]], Mapping[str, PodProgress]]
    ) -> None:
        """Wait until all are done or failed, or until the deadline."""
        while waiting:
            progress = self._read_progress(waiting, look)
            for node in [node for node, status in progress.items() if status.is_done or status.has_failed]:
                self._deadline.reset_pause()
                del waiting[node]
                if progress[node].has_failed:
                    self._record_failure(node, progress[node].why)
            if waiting and self._deadline.is_over:
                for node in waiting:
                    self._record_failure(
                        node, f"not ready after {self._deadline.timeout_s:g} s: {progress[node].why}"
                    )
                return
            if waiting:
                self._report_progress(
                    f"waiting for {_abbreviated_node_names(waiting)}: {progress[next(iter(waiting))].why}"
                )
                self._deadline.pause()

    def _read_progress(
        self, waiting: Mapping[str, Object], look: Callable[[Mapping[str, Object]], Mapping[str, PodProgress]]
    ) -> Mapping[str, PodProgress]:
        """The progress of all. Without a response of the API server it is unknown; a refusal is a failure."""
        try:
            return look(waiting)
        except Unavailable as error:
            return dict.fromkeys(waiting, PodProgress(why=str(error)))
        except NodewiseError as error:
            return dict.fromkeys(waiting, PodProgress(has_failed=True, why=str(error)))

    def _record_failure(self, node: str, why: str) -> None:
        self.steps[node][-1] = self.steps[node][-1]._replace(error=why)


def _abbreviated_node_names(nodes: Iterable[str]) -> str:
    first, *others = nodes
    return f"{len(others) + 1} nodes, {first} among them" if others else f"node {first}"


def _create_shared_objects(
    api: ApiClient, wanted: Sequence[Object], deadline: Deadline, report_progress: ProgressReporter
) -> list[SetupStep]:
    """Create the shared objects, up to the first failure."""
    steps: list[SetupStep] = []
    for obj in wanted:
        report_progress(object_writer.title(obj))
        try:
            steps.append(
                SetupStep(
                    object_writer.title(obj), object_writer.create_or_replace(api, obj, deadline).outcome
                )
            )
        except NodewiseError as error:
            return [*steps, SetupStep(object_writer.title(obj), "failed", str(error))]
    return steps


CHECKED: Final = "can be reconfigured"
DONE: Final = "reconfigured"
UNTOUCHED: Final = "not touched"


class NodeResult(NamedTuple):
    """The result for a node."""

    node: str
    state: str
    """`can be reconfigured`, `reconfigured`, `not touched`, or `failed`."""
    error: str = ""


class ReconfigurationReport(NamedTuple):
    """The results for all nodes, in their order."""

    nodes: Sequence[NodeResult]

    @property
    def is_whole(self) -> bool:
        return not any(node.error for node in self.nodes)

    def as_dict(self) -> dict[str, Any]:
        """The output of `reconfigure_setup -o json`."""
        return {
            "nodes": [{key: value for key, value in node._asdict().items() if value} for node in self.nodes]
        }


def nodes_with_pools(api: ApiClient) -> list[str]:
    """The schedulable nodes that have pools, in the API server's order. Refused if there is none."""
    labelled = list_node_objects(api, f"{LABEL}=true")
    nodes = [node["metadata"]["name"] for node in labelled if not node["spec"].get("unschedulable")]
    if not nodes:
        raise Refused.of(
            "no node to reconfigure",
            "nodes",
            "none that is schedulable",
            f"at least one with the label {LABEL}=true",
        )
    return nodes


def reconfigure_nodes(
    api: ApiClient,
    names: Sequence[str],
    options: SetupOptions,
    deadline: Callable[[], Deadline],
    report_progress: ProgressReporter,
    *,
    only_check: bool = False,
) -> ReconfigurationReport:
    """Check all nodes at once, then reconfigure them one by one. `deadline` makes a new one for each step."""
    checks = _Pods(api, options, deadline(), report_progress, checks=True)
    errors = checks.run(names)
    if errors or only_check:
        results = [
            NodeResult(node, "failed" if node in errors else CHECKED, errors.get(node, "")) for node in names
        ]
        return ReconfigurationReport(results)
    done: list[NodeResult] = []
    for node in names:
        failed = _Pods(api, options, deadline(), report_progress).run([node])
        done.append(NodeResult(node, "failed" if failed else DONE, failed.get(node, "")))
        if failed:
            break
    return ReconfigurationReport([*done, *(NodeResult(node, UNTOUCHED) for node in names[len(done) :])])


class _Pods:
    """Runs a pod on each of some nodes. A pod that succeeded is removed; one that failed stays for its log."""

    def __init__(
        self,
        api: ApiClient,
        options: SetupOptions,
        deadline: Deadline,
        report_progress: ProgressReporter,
        *,
        checks: bool = False,
    ) -> None:
        self._api = api
        self._options = options
        self._deadline = deadline
        self._report_progress = report_progress
        self._checks = checks

    def run(self, names: Sequence[str]) -> dict[str, str]:
        """The errors by node."""
        errors: dict[str, str] = {}
        made: dict[str, Object] = {}
        for node in names:
            try:
                made[node] = self._create_pod(node)
            except NodewiseError as error:
                errors[node] = str(error)
                if not self._checks:
                    break
        return errors | self._await_pods(made)

    def _create_pod(self, node: str) -> Object:
        """A new pod. One that has ended in an earlier run is removed; Conflict if it is still running."""
        wanted = node_setup_objects.reconfiguration_pod(node, self._options, checks=self._checks)
        existing = object_writer.find_object(self._api, object_writer.path(wanted))
        if (
            existing
            and not object_writer.has_pod_ended(existing)
            and not node_setup_objects.has_same_template(existing, wanted)
        ):
            seen = f"{object_writer.title(wanted)} is at work, with other options"
            raise Conflict.of("the node is being reconfigured already", f"node {node}", seen)
        if existing and object_writer.has_pod_ended(existing):
            object_writer.remove(self._api, wanted, self._deadline, existing)
        self._report_progress(object_writer.title(wanted))
        made: Object = object_writer.create_or_replace(self._api, wanted, self._deadline).current
        return made

    def _await_pods(self, waiting: dict[str, Object]) -> dict[str, str]:
        errors: dict[str, str] = {}
        for node, pod in waiting.items():
            progress = self._await_pod_end(node, pod)
            if progress.is_done:
                self._remove_pod(pod)
            else:
                errors[node] = progress.why
        return errors

    def _remove_pod(self, pod: Object) -> None:
        """Remove a pod. An error is only reported: the next run replaces the pod."""
        try:
            object_writer.remove(self._api, pod, self._deadline, pod)
        except NodewiseError as error:
            self._report_progress(str(error))

    def _await_pod_end(self, node: str, made: Object) -> PodProgress:
        """The progress of a pod at its end or at the deadline."""
        while True:
            progress = self._pod_progress(made)
            if progress.is_done or progress.has_failed:
                self._deadline.reset_pause()
                return progress
            if self._deadline.is_over:
                return progress._replace(
                    why=f"not ready after {self._deadline.timeout_s:g} s: {progress.why}"
                )
            self._report_progress(f"waiting for node {node}: {progress.why}")
            self._deadline.pause()

    def _pod_progress(self, made: Object) -> PodProgress:
        try:
            pod = object_writer.find_object(self._api, object_writer.path(made))
        except Unavailable as error:
            return PodProgress(why=str(error))
        except NodewiseError as error:
            return PodProgress(has_failed=True, why=str(error))
        is_other = pod is not None and pod["metadata"]["uid"] != made["metadata"]["uid"]
        return object_writer.completion_progress(None if is_other else pod)
