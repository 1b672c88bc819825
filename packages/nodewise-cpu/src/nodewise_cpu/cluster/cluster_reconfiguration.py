"""The reconfiguration of all nodes: checked on all of them first, then executed on one node after the other.

Nothing is changed unless the check succeeds on every node. A node on which the reconfiguration fails is unchanged, and
the nodes after it are not touched. A repeated run continues: nothing happens on nodes that have these pools.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base.errors import Conflict, NodewiseError, Problem, Refused, Unavailable
from nodewise_cpu.api_client_interface import ApiClient, Object
from nodewise_cpu.cluster import node_setup, node_setup_objects, object_writer, pod_progress
from nodewise_cpu.cluster.node_setup import ProgressReporter
from nodewise_cpu.cluster.node_setup_objects import SetupOptions
from nodewise_cpu.cluster.object_writer import Deadline
from nodewise_cpu.cluster.pod_progress import PodProgress
from nodewise_cpu.cmk_names import LABEL

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


def nodes(api: ApiClient) -> list[str]:
    """The schedulable nodes that have pools, in the API server's order. Refused if there is none."""
    labelled = node_setup.list_node_objects(api, f"{LABEL}=true")
    nodes = [node["metadata"]["name"] for node in labelled if not node["spec"].get("unschedulable")]
    if not nodes:
        problem = Problem("nodes", "none that is schedulable", f"at least one with the label {LABEL}=true")
        raise Refused("no node to reconfigure", [problem])
    return nodes


def reconfigure(
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
            raise Conflict("the node is being reconfigured already", [Problem(f"node {node}", seen, "")])
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
        return pod_progress.completion_progress(None if is_other else pod)
