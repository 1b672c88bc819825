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
from nodewise_cpu.cluster import node_setup_objects, object_writer
from nodewise_cpu.cluster.api_server import ApiClient, ApiFeatures, Object
from nodewise_cpu.cluster.node_setup_objects import ALWAYS, ONCE, SetupOptions
from nodewise_cpu.cluster.object_writer import Deadline, PodProgress, PodWatch
from nodewise_cpu.cmk_names import LABEL

ProgressReporter = Callable[[str], None]
"""Shows progress to people who wait."""
PodLookup = Callable[[Mapping[str, Object]], Mapping[str, PodProgress]]
"""Returns the progress of the pods of some objects, by node."""
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
    return _names_of_schedulable_nodes(list_node_objects(api))


def _names_of_schedulable_nodes(nodes: Iterable[Object]) -> list[str]:
    return [node["metadata"]["name"] for node in nodes if not node["spec"].get("unschedulable")]


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
    setup = _NodeSetup(api, plan, features, deadline, report_progress)
    setup.run_pods_to_completion([command for command in plan.commands if command in ONCE])
    setup.create_node_daemon_sets([command for command in plan.commands if command in ALWAYS])
    agent = PreparedNode("", setup.deploy_agent_daemon_set())
    shared: list[SetupStep] = []
    for wanted in plan.shared if not agent.error and (setup.ready() or not plan.nodes) else ():
        title = object_writer.title(wanted)
        report_progress(title)
        try:
            outcome = object_writer.create_or_replace(api, wanted, deadline).outcome
        except NodewiseError as error:
            shared.append(SetupStep(title, "failed", str(error)))
            break
        shared.append(SetupStep(title, outcome))
    nodes = [PreparedNode(node, tuple(setup.steps[node])) for node in plan.nodes]
    return SetupReport(nodes, agent, PreparedNode("", tuple(shared)))


def _check_service_account_exists(api: ApiClient, plan: SetupPlan) -> None:
    """Refused without the agent's account, for which pods are never created. Its rights need an administrator."""
    if plan.agent is None:
        return
    namespace = plan.options.namespace
    about = {"name": node_setup_objects.AGENT, "namespace": namespace}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about}
    if object_writer.find_object(api, object_writer.path(account)) is None:
        where = f"ServiceAccount {namespace}/{node_setup_objects.AGENT}"
        remedy = f"{node_setup_objects.kubectl_apply_command(namespace)}; or do without the agent: --no-agent"
        raise Refused.of("nothing was changed", where, "not there", "the node agent's", remedy=remedy)


def _wait_for_pods(  # complexity: done, failed, late or without an answer
    waiting: dict[str, Object], look: PodLookup, deadline: Deadline, report_progress: ProgressReporter
) -> dict[str, str]:
    """Wait until the pods of all objects, by node, are done or failed, or until the deadline.

    Returns the reasons of failures by node. Without a response of the API server the progress is unknown; a refusal is
    a failure.
    """
    failures = {}
    while waiting:
        try:
            progress = look(waiting)
        except Unavailable as error:
            progress = dict.fromkeys(waiting, PodProgress(why=str(error)))
        except NodewiseError as error:
            progress = dict.fromkeys(waiting, PodProgress(has_failed=True, why=str(error)))
        for node in [node for node, status in progress.items() if status.is_done or status.has_failed]:
            deadline.reset_pause()
            del waiting[node]
            if progress[node].has_failed:
                failures[node] = progress[node].why
        if waiting and deadline.is_over:
            late = f"not ready after {deadline.timeout_s:g} s"
            return failures | {node: f"{late}: {progress[node].why}" for node in waiting}
        if waiting:
            first, *others = waiting
            names = f"{len(waiting)} nodes, {first} among them" if others else f"node {first}"
            report_progress(f"waiting for {names}: {progress[first].why}")
            deadline.pause()
    return failures


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

        def look(waiting: Mapping[str, Object]) -> Mapping[str, PodProgress]:
            there = {pod["metadata"]["uid"]: pod for pod in self._list_pods()}
            return {
                node: object_writer.completion_progress(there.get(pod["metadata"]["uid"]))
                for node, pod in waiting.items()
            }

        made = self._create_on_ready_nodes(
            commands, lambda node: make(commands, node, self._plan.options, self._features)
        )
        self._wait(made, look)

    def create_node_daemon_sets(self, commands: Sequence[str]) -> None:
        make, watched = node_setup_objects.daemon_set, PodWatch()

        def look(waiting: Mapping[str, Object]) -> Mapping[str, PodProgress]:
            there, now = self._list_pods(), self._deadline.now()
            return {
                node: watched.steady(
                    object_writer.pods_owned_by(there, made["metadata"]["uid"]),
                    made["metadata"]["annotations"][node_setup_objects.MADE_FROM],
                    now,
                )
                for node, made in waiting.items()
            }

        made = self._create_on_ready_nodes(
            commands, lambda node: make(commands, node, self._plan.options, self._features)
        )
        self._wait(made, look)

    def deploy_agent_daemon_set(self) -> tuple[SetupStep, ...]:
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
            return (SetupStep(title, "failed", str(error)),)
        watched = PodWatch()

        def look(waiting: Mapping[str, Object]) -> Mapping[str, PodProgress]:
            there, now = self._list_pods(), self._deadline.now()
            ours = list(object_writer.pods_owned_by(there, made["metadata"]["uid"]))
            return {
                node: watched.running(node_setup_objects.find_current_daemon_set_pods(ours, made, node), now)
                for node in waiting
            }

        self._wait(waiting, look)
        return (SetupStep(title, outcome),)

    def _nodes_awaiting_agent(self, made: Object) -> dict[str, Object]:
        labelled = {node["metadata"]["name"] for node in list_node_objects(self._api, f"{LABEL}=true")}
        waiting = {}
        for node in self.ready():
            step = SetupStep(f"node agent of {object_writer.title(made)}", "ready")
            if node in labelled:
                self.steps[node].append(step)
                waiting[node] = made
            elif node_setup_objects.DISCOVER in self._plan.commands:
                why = f"no agent comes to a node without the label {LABEL}=true, which `discover` sets"
                self.steps[node].append(step._replace(outcome="failed", error=why))
        return waiting

    def _create_on_ready_nodes(
        self, commands: Sequence[str], wanted: Callable[[str], Object]
    ) -> dict[str, Object]:
        made: dict[str, Object] = {}
        for node in self.ready() if commands else ():
            pod = wanted(node)
            title = object_writer.title(pod)
            self._report_progress(f"{title}: {','.join(commands)}")
            try:
                made[node], outcome = object_writer.create_or_replace(self._api, pod, self._deadline)
            except NodewiseError as error:
                self.steps[node].append(SetupStep(title, "failed", str(error)))
            else:
                self.steps[node].append(SetupStep(title, outcome))
        return made

    def _list_pods(self) -> list[Any]:
        return list_all_pages(self._api, PODS.path(self._plan.options.namespace), {})

    def _wait(self, waiting: dict[str, Object], look: PodLookup) -> None:
        for node, why in _wait_for_pods(waiting, look, self._deadline, self._report_progress).items():
            self.steps[node][-1] = self.steps[node][-1]._replace(error=why)


CHECKED: Final = "can be reconfigured"
DONE: Final = "reconfigured"
UNTOUCHED: Final = "not touched"


class NodeResult(NamedTuple):
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
    nodes = _names_of_schedulable_nodes(list_node_objects(api, f"{LABEL}=true"))
    if not nodes:
        expected = f"at least one with the label {LABEL}=true"
        raise Refused.of("no node to reconfigure", "nodes", "none that is schedulable", expected)
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
    errors = _run_reconfiguration_pods(api, names, options, deadline(), report_progress, checks=True)
    if errors or only_check:
        results = [
            NodeResult(node, "failed" if node in errors else CHECKED, errors.get(node, "")) for node in names
        ]
        return ReconfigurationReport(results)
    done: list[NodeResult] = []
    for node in names:
        failed = _run_reconfiguration_pods(api, [node], options, deadline(), report_progress)
        done.append(NodeResult(node, "failed" if failed else DONE, failed.get(node, "")))
        if failed:
            break
    return ReconfigurationReport([*done, *(NodeResult(node, UNTOUCHED) for node in names[len(done) :])])


def _run_reconfiguration_pods(
    api: ApiClient,
    nodes: Sequence[str],
    options: SetupOptions,
    deadline: Deadline,
    report_progress: ProgressReporter,
    *,
    checks: bool = False,
) -> dict[str, str]:
    """Run a pod on each of the nodes; returns the errors by node.

    A pod that succeeded is removed; one that failed stays for its log.
    """
    errors: dict[str, str] = {}
    made: dict[str, Object] = {}
    for node in nodes:
        try:
            wanted = node_setup_objects.reconfiguration_pod(node, options, checks=checks)
            made[node] = _create_reconfiguration_pod(api, node, wanted, deadline, report_progress)
        except NodewiseError as error:
            errors[node] = str(error)

    def look(waiting: Mapping[str, Object]) -> Mapping[str, PodProgress]:
        progress = {}
        for node, pod in waiting.items():
            current = object_writer.find_object(api, object_writer.path(pod))
            is_other = current is not None and current["metadata"]["uid"] != pod["metadata"]["uid"]
            progress[node] = object_writer.completion_progress(None if is_other else current)
        return progress

    for node, pod in made.items():
        failures = _wait_for_pods({node: pod}, look, deadline, report_progress)
        errors |= failures
        if not failures:
            try:
                object_writer.remove(api, pod, deadline, pod)
            except NodewiseError as error:
                report_progress(str(error))  # the next run replaces the pod
    return errors


def _create_reconfiguration_pod(
    api: ApiClient, node: str, wanted: Object, deadline: Deadline, report_progress: ProgressReporter
) -> Object:
    """A new pod. One that has ended in an earlier run is removed; Conflict if it is still running."""
    existing = object_writer.find_object(api, object_writer.path(wanted))
    if existing and object_writer.has_pod_ended(existing):
        object_writer.remove(api, wanted, deadline, existing)
    elif existing and not node_setup_objects.has_same_template(existing, wanted):
        seen = f"{object_writer.title(wanted)} is at work, with other options"
        raise Conflict.of("the node is being reconfigured already", f"node {node}", seen)
    report_progress(object_writer.title(wanted))
    made: Object = object_writer.create_or_replace(api, wanted, deadline).current
    return made
