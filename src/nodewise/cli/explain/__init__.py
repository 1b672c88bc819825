"""`nodewise explain`: explains the placement of a pod by the decisions or the evaluation of replicas."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

import click
import msgspec

from nodewise.base import clock, cooperative_scheduling
from nodewise.base.errors import BadSettings, NodewiseError, Problem, Refused, Unavailable
from nodewise.base.option import Argument, Option
from nodewise.cli import terminal_output
from nodewise.cli.explain import explanation, native_evaluation, pod_state, rendering, replica_queries
from nodewise.cli.explain.explanation import PodExplanation
from nodewise.cli.explain.pod_state import PodReadResult
from nodewise.cli.explain.replica_queries import DECISIONS, EVALUATION, PodQuery, ReplicaResponse
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, ReplicaOptions, settings_command
from nodewise.cli.parameter_types import NamespaceName, PodName
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.cli.terminal_output import Progress
from nodewise.engine import scheduling_attempt_explanation
from nodewise.kube import replicas
from nodewise.kube.api_client_creation import connect
from nodewise.kube.http_client import HttpApi
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.replicas import Replica
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_WATCH_PERIOD_S: Final = 2.0
_POD_WORDS: Final = frozenset({"pod", "pods", "po"})
_OWNER_WORDS: Final = frozenset(
    word
    for kind, short in {
        "deployment": "deploy",
        "replicaset": "rs",
        "statefulset": "sts",
        "daemonset": "ds",
        "replicationcontroller": "rc",
        "job": "",
        "cronjob": "cj",
    }.items()
    for word in (kind, f"{kind}s", short)
    if word
)
"""What kubectl accepts before the name of an object that creates pods."""


class ExplainOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise explain`."""

    pod: Annotated[str, Argument(metavar="POD", type=PodName())]

    namespace: Annotated[str, Option("-n --namespace", metavar="NAMESPACE", type=NamespaceName())] = ""
    """Namespace of the pod; default: that of the context."""

    output: Annotated[Literal["text", "wide", "json"], Option("-o --output")] = "text"
    """Output format."""

    every_node: Annotated[bool, Option("--nodes")] = False
    """Show all nodes, even if there are many."""

    watch: Annotated[bool, Option("-w --watch")] = False
    """Print again whenever the answer changes, until Ctrl-C; with -o json one document per line."""


class TimeoutOptions(CommandOptions, frozen=True, kw_only=True):
    """The timeout, which the help shows after the options of the cluster."""

    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """Timeout per call."""


class ExplainRequest(NamedTuple):
    """What to explain, from the command line."""

    pod: str
    namespace: str
    servers: Sequence[str]
    nodewise_namespaces: Sequence[str]
    kube: KubeOptions
    timeout_s: float


@settings_command(
    "explain",
    ExplainOptions,
    ReplicaOptions,
    ClusterOptions,
    TimeoutOptions,
    short_help="Explain why a pod is on its node, or still waits.",
)
def command(command_line: CommandLine) -> None:
    """Explain why a pod is on its node or still waits, node by node: the rules of its policies, the values, and which
    changes would let more nodes pass.

    POD is NAME, pod/NAME or NAMESPACE/NAME. In native mode the controller evaluates the policies of the pod for all
    nodes; where the labels of nodes differ, both are shown. Otherwise every replica of the extender is asked for its
    decisions about the last scheduling attempt, of which it keeps as many as fit into its --decisions-bytes. The API
    server forwards the request to the pods of nodewise, as kubectl port-forward does. This needs rights in nodewise's
    namespace: to list pods, and to get and create pods/portforward. Nothing is written.

    Without these rights, the output has the labels of nodes, the pod's events and the status of the policies that
    select it, as far as you may read them, and names the rights that would show more.

    \b
    Examples:
      nodewise explain pod/shop-7 -n web
      nodewise explain web/shop-7 --watch
      nodewise explain shop-7 --server http://127.0.0.1:9002

    \b
    Exit codes:
      0  explained
      1  no replica could be asked
      2  the command line or a setting is invalid
      3  no decision about the pod is known
    """
    logs.configure("error", "messages")
    own = command_line.settings(ExplainOptions)
    request = _build_request(own, command_line)

    def show(pod_explanation: PodExplanation) -> None:
        for message in _messages(pod_explanation):
            terminal_output.print_message(message)
        rendering.PRINTERS[own.output](pod_explanation, every_node=own.every_node)
        if own.watch and own.output != "json":
            terminal_output.print_line("")

    pod_explanation = cooperative_scheduling.run_event_loop(_explain(request, show if own.watch else None))
    show(pod_explanation)
    visible = pod_explanation.visible
    is_explained = (
        pod_explanation.explanation is not None
        or explanation.is_placed_natively(pod_explanation)
        or (visible is not None and bool(visible.events))
    )
    if not is_explained:
        click.get_current_context().exit(terminal_output.NO)


def _build_request(own: ExplainOptions, command_line: CommandLine) -> ExplainRequest:
    """The request of the command line. `BadSettings` if pod and namespace contradict each other."""
    namespace, name = parse_pod_argument(own.pod, own.namespace)
    replica_options = command_line.settings(ReplicaOptions)
    return ExplainRequest(
        name,
        namespace,
        replica_options.servers,
        replica_options.nodewise_namespaces,
        command_line.settings(ClusterOptions).kube,
        command_line.settings(TimeoutOptions).timeout_s,
    )


def parse_pod_argument(text: str, namespace: str) -> tuple[str, str]:
    """Namespace and name of a pod. An empty namespace is that of the context.

    The text is `NAME`, `pod/NAME` as in kubectl, or `NAMESPACE/NAME`. `BadSettings` for anything else, and for another
    namespace than that of `--namespace`.
    """
    before, slash, name = text.rpartition("/")
    word = before.lower()
    if slash and name and word in _OWNER_WORDS:
        raise BadSettings(
            "settings",
            [Problem("POD", repr(text), "a pod")],
            remedy=f"kubectl describe {text} shows its selector, and kubectl get pods --selector its pods",
        )
    if slash and word in _POD_WORDS:
        before, slash = "", ""
    if not name or "/" in before or (slash and (not before or namespace not in {"", before})):
        raise BadSettings(
            "settings", [Problem("POD", repr(text), "NAME, pod/NAME or NAMESPACE/NAME, and one namespace")]
        )
    return before or namespace, name


async def _explain(
    request: ExplainRequest, show: terminal_output.Show[PodExplanation] | None
) -> PodExplanation:
    """The explanation. With `show`, pass it each time that it changes, and do not return."""
    api = _open_api_client(request)

    async def explain() -> PodExplanation:
        with Progress() as progress:
            return await _query_and_explain(request, api, progress)

    try:
        if show is None:
            return await explain()
        return await terminal_output.show_changes(
            explain, explanation.comparable_answer, show, _WATCH_PERIOD_S, clock.SystemClock()
        )
    finally:
        if api is not None:
            await api.close()


def _open_api_client(request: ExplainRequest) -> HttpApi | None:
    """The API server's client; None if none is configured and --server names the replicas."""
    try:
        return connect(request.kube, MetricsRegistry())
    except BadSettings as error:
        if request.servers and not request.kube.kubeconfig and not request.kube.context:
            return None
        remedy = f"{error.remedy}; or name a replica's admin port with --server".lstrip("; ")
        raise BadSettings(error.what, error.problems, remedy=remedy) from error


async def _query_and_explain(
    request: ExplainRequest, api: HttpApi | None, progress: Progress
) -> PodExplanation:
    namespace = request.namespace or (api.namespace if api else "default")
    query = PodQuery(namespace, request.pod, request.timeout_s)
    if api is not None and not request.servers:
        return await _explain_through_api_server(request, api, query, progress)
    progress.say(f"asking {len(request.servers)} replicas about pod {namespace}/{request.pod}")
    lookup = await _read_pod_state(api, namespace, request, request.nodewise_namespaces[0])
    responses = await _ask_servers(request.servers, lookup, query)
    if lookup.native is None:
        _check_any_response(responses)
    return _build_explanation(query, lookup, responses)


async def _ask_servers(urls: Sequence[str], lookup: PodReadResult, query: PodQuery) -> list[ReplicaResponse]:
    """The evaluations of a pod of native mode, and decisions about any pod, as far as the servers have them."""
    if lookup.native is None:
        return await replica_queries.query_servers(urls, [DECISIONS, EVALUATION], query)
    responses = await replica_queries.query_servers(urls, [EVALUATION, DECISIONS], query)
    if lookup.state and lookup.state.asks:  # an extender may have decided, too
        evaluating = [response.replica for response in responses if response.evaluation]
        decided = await replica_queries.query_servers(evaluating, [DECISIONS], query)
        responses += [response for response in decided if response.page]
    return responses


async def _explain_through_api_server(
    request: ExplainRequest, api: HttpApi, query: PodQuery, progress: Progress
) -> PodExplanation:
    """The explanation by the replicas, or by what the user may read in the pod's namespace."""
    progress.say("looking for replicas of nodewise")
    running = await _find_replicas(api, request)
    own_namespace = running[0].namespace if isinstance(running, list) else request.nodewise_namespaces[0]
    lookup = await _read_pod_state(api, query.namespace, request, own_namespace)
    progress.say(f"asking replicas about pod {query.namespace}/{query.name}")
    responses, error = await _ask_replicas(api, running, lookup, query)
    explained = _build_explanation(query, lookup, responses)
    if isinstance(error, Refused):
        state = explained.lookup.state
        if state is None and not explained.lookup.gone:
            raise Refused("explain", [Problem("the pod", explained.lookup.error, ""), *error.problems])
        hidden = error.remedy or "; ".join(map(str, error.problems)) or error.what
        uid = state.uid if state else ""
        visible = await explanation.read_visible_state(
            api, query.namespace, query.name, uid, query.timeout_s, hidden
        )
        return explained._replace(visible=visible)
    return explained._replace(evaluation_error=str(error)) if error and lookup.native else explained


async def _find_replicas(api: HttpApi, request: ExplainRequest) -> list[Replica] | NodewiseError:
    """The replicas, or why they are not known: a pod of native mode is explained without them."""
    try:
        return await replicas.find_replicas(api, request.nodewise_namespaces, request.timeout_s)
    except NodewiseError as error:
        return error


async def _ask_replicas(
    api: HttpApi, running: list[Replica] | NodewiseError, lookup: PodReadResult, query: PodQuery
) -> tuple[list[ReplicaResponse], NodewiseError | None]:
    """The responses, and why there are no more of them.

    An error is raised if the pod cannot be explained without replicas, as in native mode, and if none answers.
    """
    if isinstance(running, NodewiseError):
        if isinstance(running, Refused) or lookup.native or explanation.is_never_decided(lookup):
            return [], running
        raise running
    responses: list[ReplicaResponse] = []
    try:
        for path, endpoints in _replicas_by_path(running, lookup).items():
            responses += await replica_queries.query_replicas(api, endpoints, path, query)
    except Refused as error:
        return responses, error
    if responses and lookup.native is None:
        _check_any_response(responses)
    return responses, None


def _replicas_by_path(  # complexity: two kinds of replicas, with and without native mode
    running: list[Replica], lookup: PodReadResult
) -> dict[str, list[Replica]]:
    """The replicas to ask, by path; none if the API server's answer suffices.

    The extenders have decisions. Where native mode places the pod, or may do so by a policy without labels, replicas
    evaluate it: the controllers, else the extenders, of which one then leads in native mode.
    """
    extenders = [replica for replica in running if replica.component == replicas.EXTENDER]
    controllers = [replica for replica in running if replica.component == replicas.CONTROLLER]
    if lookup.native is None:
        has_no_effect = explanation.has_no_policy if extenders else explanation.is_never_decided
        is_evaluated = not (lookup.gone or has_no_effect(lookup))
        return {DECISIONS: extenders, EVALUATION: controllers if is_evaluated else []}
    # an extender may have other agents, or be there during the change to native mode
    is_decided = bool(extenders and lookup.state and lookup.state.asks)
    return {EVALUATION: controllers or extenders} | ({DECISIONS: extenders} if is_decided else {})


async def _read_pod_state(
    api: HttpApi | None, namespace: str, request: ExplainRequest, own_namespace: str
) -> PodReadResult:
    """The pod's state in the cluster, if there is a cluster and it responds."""
    if api is None:
        return PodReadResult(None)
    lookup = await pod_state.read_pod(
        api, namespace, request.pod, request.timeout_s, own_namespace=own_namespace or replicas.NAMESPACE
    )
    if lookup.gone and not request.namespace:
        hint = f"{namespace} is the namespace of the context, -n names another one"
        return lookup._replace(missing=f"{lookup.missing} ({hint})")
    return lookup


def _check_any_response(responses: Sequence[ReplicaResponse]) -> None:
    """Raises `Unavailable` if no replica responded."""
    if all(response.error for response in responses):
        problems = [Problem(response.replica, response.error, "") for response in responses]
        raise Unavailable("no replica of nodewise answers", problems)


def _build_explanation(
    query: PodQuery, lookup: PodReadResult, responses: Sequence[ReplicaResponse]
) -> PodExplanation:
    known = [decision for response in responses if response.page for decision in response.decisions]
    uid = lookup.state.uid if lookup.state else ""
    attempt = scheduling_attempt_explanation.last_attempt(
        known, uid
    ) or scheduling_attempt_explanation.last_attempt(known)
    return PodExplanation(
        f"{query.namespace}/{query.name}",
        lookup,
        responses,
        scheduling_attempt_explanation.explain(attempt) if attempt else None,
        clock.SystemClock().now(),
        evaluation=native_evaluation.choose_evaluation(responses),
    )


def _messages(pod_explanation: PodExplanation) -> list[str]:
    """What is not known, one sentence each, for stderr."""
    lookup = pod_explanation.lookup
    failed = [response for response in pod_explanation.responses if response.error]
    messages = [f"{response.replica} is left out: {response.error}" for response in failed]
    if pod_explanation.evaluation_error:
        messages.append(f"the values behind the labels are not known: {pod_explanation.evaluation_error}")
    if lookup.error:
        messages.append(f"the pod's own state is not known: {lookup.error}")
    if lookup.policies_error and pod_explanation.visible is None:
        messages.append(f"not all policies that select the pod now are known: {lookup.policies_error}")
    return messages
