"""Prepares nodes: on each a pod that ends, then a DaemonSet that stays; for all the node agent, and one webhook.

Everything can be done again: what is there and was made from the same is left alone, a pod that succeeded is not run
again, what differs is replaced. A node on which something fails does not hold up the others; the report says why.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.cpu import names
from nodewise.cpu.api_client import ApiClient, Object
from nodewise.cpu.cluster import agent_daemonset, object_writer, pod_progress, setup_objects
from nodewise.cpu.cluster.api_versions import ApiFeatures
from nodewise.cpu.cluster.object_writer import Deadline
from nodewise.cpu.cluster.pod_progress import PodProgress, PodWatch
from nodewise.cpu.cluster.setup_objects import ALWAYS, ONCE, SetupOptions
from nodewise.errors import BadInput, BadSettings, NodewiseError, Problem, Refused, Unavailable
from nodewise.kube.resources import NODES, PODS

ProgressReporter = Callable[[str], None]
"""Hears what is being done, for people who wait."""
PAGE: Final = "500"


class SetupPlan(NamedTuple):
    """What is to be done, and where."""

    nodes: Sequence[str]
    commands: Sequence[str]
    options: SetupOptions
    agent: Object | None = None
    """The node agent's DaemonSet, if it is to be made."""
    shared: Sequence[Object] = ()
    """The webhook's objects, in the order in which they are made."""


class SetupStep(NamedTuple):
    """One object, and what was done to it: created, replaced, unchanged, left as somebody made it; or why not."""

    name: str
    outcome: str
    error: str = ""


class PreparedNode(NamedTuple):
    """What came of one node, or of what all share (`node` is empty). Of the agent each node says if it is ready."""

    node: str
    steps: tuple[SetupStep, ...] = ()

    @property
    def error(self) -> str:
        """Empty if all went well."""
        return next((step.error for step in self.steps if step.error), "")

    def as_dict(self) -> dict[str, Any]:
        steps = [{key: value for key, value in step._asdict().items() if value} for step in self.steps]
        return {"node": self.node, "ready": not self.error, "steps": steps}


class SetupReport(NamedTuple):
    """What came of it, in the order in which nodes were named."""

    nodes: Sequence[PreparedNode]
    agent: PreparedNode
    shared: PreparedNode

    @property
    def is_whole(self) -> bool:
        return not any(one.error for one in (*self.nodes, self.agent, self.shared))

    def as_dict(self) -> dict[str, Any]:
        """As `cluster-init -o json` prints it."""
        parts = {"agent": self.agent.as_dict(), "webhook": self.shared.as_dict()}
        for part in parts.values():
            del part["node"]
        return {"nodes": [one.as_dict() for one in self.nodes], **parts}


def schedulable(api: ApiClient) -> list[str]:
    """Names of all nodes on which pods may be placed, in the API server's order."""
    return [node["metadata"]["name"] for node in list_nodes(api) if not node["spec"].get("unschedulable")]


def known(api: ApiClient, nodes: Sequence[str]) -> list[str]:
    """The same names, each once. BadSettings names those that no node has."""
    for name in nodes:
        setup_objects.check_node(name)
    there = {node["metadata"]["name"] for node in list_nodes(api)}
    missing = [Problem("--host-list", name, "a node of the cluster") for name in nodes if name not in there]
    if missing:
        raise BadSettings("settings", missing)
    return list(dict.fromkeys(nodes))


def list_nodes(api: ApiClient, selector: str = "") -> list[Any]:
    """All nodes, or those with a label."""
    return list_all(api, NODES.path(), {"labelSelector": selector} if selector else {})


def list_all(api: ApiClient, path: str, params: Mapping[str, str]) -> list[Any]:
    """Every object of a list that comes in pages."""
    answer = api.get(path, {**params, "limit": PAGE})
    found = list(answer["items"])
    while further := answer.get("metadata", {}).get("continue"):
        answer = api.get(path, {**params, "limit": PAGE, "continue": further})
        found += answer["items"]
    return found


def prepare(
    api: ApiClient,
    plan: SetupPlan,
    features: ApiFeatures,
    deadline: Deadline,
    report_progress: ProgressReporter,
) -> SetupReport:
    """Carry the plan out. What fails on a node is in the report; an error is raised where nothing can be done.

    Refused before anything is changed if the node agent has no account.
    """
    _check_names(plan)
    _check_account(api, plan)
    preparing = _NodeSetup(api, plan, features, deadline, report_progress)
    preparing.run_once([one for one in plan.commands if one in ONCE])
    preparing.run_always([one for one in plan.commands if one in ALWAYS])
    agent = PreparedNode("", tuple(preparing.run_agent()))
    is_wanted = not agent.error and (preparing.ready() or not plan.nodes)
    shared = _share(api, plan.shared, deadline, report_progress) if is_wanted else ()
    nodes = [PreparedNode(node, tuple(preparing.steps[node])) for node in plan.nodes]
    return SetupReport(nodes, agent, PreparedNode("", tuple(shared)))


def _check_names(plan: SetupPlan) -> None:
    """Objects of two nodes must not have one name, which they cannot while nodes have names of their own."""
    if len(set(plan.nodes)) != len(plan.nodes):
        raise BadInput("cannot prepare nodes", [Problem("nodes", ", ".join(plan.nodes), "each once")])


def _check_account(api: ApiClient, plan: SetupPlan) -> None:
    """Pods of an account that is not there are never made; what it may do is for somebody with more rights to say."""
    if plan.agent is None:
        return
    namespace = plan.options.namespace
    about = {"name": agent_daemonset.NAME, "namespace": namespace}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about}
    if object_writer.find(api, object_writer.path(account)) is None:
        problem = Problem(
            f"ServiceAccount {namespace}/{agent_daemonset.NAME}", "not there", "the node agent's"
        )
        remedy = f"{agent_daemonset.how_to_apply(namespace)}; or do without the agent: --no-agent"
        raise Refused("nothing was changed", [problem], remedy=remedy)


class _NodeSetup:
    """The nodes while they are prepared: those on which a step failed take no further ones."""

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
        """The nodes on which nothing has failed so far."""
        return [node for node, steps in self.steps.items() if not any(step.error for step in steps)]

    def run_once(self, commands: Sequence[str]) -> None:
        make = setup_objects.preparing
        made = self._make(commands, lambda node: make(commands, node, self._plan.options, self._features))
        looked_up = PODS.path(self._plan.options.namespace)

        def look(waiting: Mapping[str, Object]) -> Mapping[str, PodProgress]:
            there = {pod["metadata"]["uid"]: pod for pod in list_all(self._api, looked_up, {})}
            return {
                node: pod_progress.once(there.get(one["metadata"]["uid"])) for node, one in waiting.items()
            }

        self._wait(made, look)

    def run_always(self, commands: Sequence[str]) -> None:
        made = self._make(
            commands,
            lambda node: setup_objects.daemon_set(commands, node, self._plan.options, self._features),
        )
        looked_up, watched = PODS.path(self._plan.options.namespace), PodWatch()

        def look(waiting: Mapping[str, Object]) -> Mapping[str, PodProgress]:
            there, now = list_all(self._api, looked_up, {}), self._deadline.now()
            return {
                node: watched.steady(pod_progress.owned(there, one["metadata"]["uid"]), _stamp(one), now)
                for node, one in waiting.items()
            }

        self._wait(made, look)

    def run_agent(self) -> Iterable[SetupStep]:
        """One object for all, made if any node is ready; each node waits for its own pod of it."""
        wanted = self._plan.agent
        if wanted is None or not (self.ready() or not self._plan.nodes):
            return ()
        title = object_writer.title(wanted)
        self._report_progress(title)
        try:
            found = object_writer.find(self._api, object_writer.path(wanted))
            if found is not None and agent_daemonset.is_another(found, wanted):
                made, outcome = found, "left as somebody made it"
            else:
                made, outcome = object_writer.ensure(self._api, wanted, self._deadline)
            waiting = self._awaited(made)
        except NodewiseError as error:
            return [SetupStep(title, "failed", str(error))]
        looked_up, watched = PODS.path(self._plan.options.namespace), PodWatch()

        def look(waiting: Mapping[str, Object]) -> Mapping[str, PodProgress]:
            there, now = list_all(self._api, looked_up, {}), self._deadline.now()
            ours = list(pod_progress.owned(there, made["metadata"]["uid"]))
            return {node: watched.running(agent_daemonset.pods_of(ours, made, node), now) for node in waiting}

        self._wait(waiting, look)
        return [SetupStep(title, outcome)]

    def _awaited(self, made: Object) -> dict[str, Object]:
        """The ready nodes that get a pod of the agent: those with the label, which `discover` gives."""
        labelled = {node["metadata"]["name"] for node in list_nodes(self._api, f"{names.LABEL}=true")}
        waiting = {}
        for node in self.ready():
            step = SetupStep(f"node agent of {object_writer.title(made)}", "ready")
            if node in labelled:
                self.steps[node].append(step)
                waiting[node] = made
            elif setup_objects.DISCOVER in self._plan.commands:
                why = (
                    f"no agent comes to a node without the label {names.LABEL}=true, which discover gives it"
                )
                self.steps[node].append(step._replace(outcome="failed", error=why))
        return waiting

    def _make(self, commands: Sequence[str], wanted: Callable[[str], Object]) -> dict[str, Object]:
        """One object for each node that is still ready, as the API server has it."""
        made: dict[str, Object] = {}
        for node in self.ready() if commands else ():
            one = wanted(node)
            self._report_progress(f"{object_writer.title(one)}: {','.join(commands)}")
            try:
                made[node], outcome = object_writer.ensure(self._api, one, self._deadline)
            except NodewiseError as error:
                self.steps[node].append(SetupStep(object_writer.title(one), "failed", str(error)))
            else:
                self.steps[node].append(SetupStep(object_writer.title(one), outcome))
        return made

    def _wait(
        self, waiting: dict[str, Object], look: Callable[[Mapping[str, Object]], Mapping[str, PodProgress]]
    ) -> None:
        """Until all are done, or failed, or there is no time left."""
        while waiting:
            progress = self._look(waiting, look)
            for node in [node for node, one in progress.items() if one.is_done or one.has_failed]:
                self._deadline.hurry()
                del waiting[node]
                if progress[node].has_failed:
                    self._fail(node, progress[node].why)
            if waiting and self._deadline.is_over:
                for node in waiting:
                    self._fail(node, f"not ready after {self._deadline.timeout_s:g} s: {progress[node].why}")
                return
            if waiting:
                self._report_progress(f"waiting for {_some(waiting)}: {progress[next(iter(waiting))].why}")
                self._deadline.pause()

    def _look(
        self,
        waiting: Mapping[str, Object],
        look: Callable[[Mapping[str, Object]], Mapping[str, PodProgress]],
    ) -> Mapping[str, PodProgress]:
        """An API server that does not answer may answer later; one that refuses will not."""
        try:
            return look(waiting)
        except Unavailable as error:
            return dict.fromkeys(waiting, PodProgress(why=str(error)))
        except NodewiseError as error:
            return dict.fromkeys(waiting, PodProgress(has_failed=True, why=str(error)))

    def _fail(self, node: str, why: str) -> None:
        self.steps[node][-1] = self.steps[node][-1]._replace(error=why)


def _stamp(made: Object) -> str:
    return str(made["metadata"]["annotations"][setup_objects.MADE_FROM])


def _some(nodes: Iterable[str]) -> str:
    first, *others = nodes
    return f"{len(others) + 1} nodes, {first} among them" if others else f"node {first}"


def _share(
    api: ApiClient, wanted: Sequence[Object], deadline: Deadline, report_progress: ProgressReporter
) -> list[SetupStep]:
    """What all nodes share, up to the first object that cannot be made."""
    steps: list[SetupStep] = []
    for one in wanted:
        report_progress(object_writer.title(one))
        try:
            steps.append(
                SetupStep(object_writer.title(one), object_writer.ensure(api, one, deadline).outcome)
            )
        except NodewiseError as error:
            return [*steps, SetupStep(object_writer.title(one), "failed", str(error))]
    return steps
