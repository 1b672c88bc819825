"""`nodewise explain`: explains the placement of a pod by the decisions of all replicas."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import click

from nodewise import clock
from nodewise.cli import exit_codes, options_from_settings, terminal_output
from nodewise.cli.explain import pod_state, rendering, replica_queries
from nodewise.cli.explain.explanation import PodExplanation
from nodewise.cli.explain.pod_state import PodReadResult
from nodewise.cli.explain.replica_queries import (
    ClientCertificate,
    ReplicaEndpoint,
    ReplicaResponse,
    ReplicaService,
)
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine
from nodewise.cli.progress import Progress
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.errors import BadSettings, Problem, Unavailable
from nodewise.extender import scheduling_attempt_explanation
from nodewise.kube.api_client_creation import connect
from nodewise.kube.http_client import HttpApi
from nodewise.kube.options import KubeOptions
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.option import Argument, Option


class ExplainOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise explain`."""

    pod: Annotated[str, Argument(metavar="POD")]

    namespace: Annotated[str, Option("-n --namespace", metavar="NAMESPACE")] = ""
    """Namespace of the pod; default: that of the context."""

    output: Annotated[Literal["text", "wide", "json"], Option("-o --output")] = "text"
    """Output format."""

    every_node: Annotated[bool, Option("--nodes")] = False
    """Show all nodes, even if there are many."""

    servers: Annotated[tuple[str, ...], Option("--server", metavar="URL")] = ()
    """URL of a replica; repeat it for several."""

    cert: Annotated[str, Option(metavar="FILE")] = ""
    """Client certificate for mutual TLS, PEM."""

    key: Annotated[str, Option(metavar="FILE")] = ""
    """Private key of the client certificate, PEM."""

    ca: Annotated[str, Option(metavar="FILE")] = ""
    """CA of the replicas' certificate; default: the system's."""

    server_name: Annotated[str, Option(metavar="NAME")] = ""
    """Name in the replicas' certificate."""

    service: Annotated[str, Option(metavar="NAME")] = "nodewise"
    """Service of the replicas."""

    service_namespace: Annotated[str, Option(metavar="NAMESPACE")] = "nodewise"
    """Namespace of the Service."""


class TimeoutOptions(CommandOptions, frozen=True, kw_only=True):
    """The timeout, which the help shows after the options of the cluster."""

    timeout_s: float = 5.0
    """Timeout per call."""


class ExplainRequest(NamedTuple):
    """What to explain, from the command line."""

    pod: str
    namespace: str
    servers: Sequence[str]
    server_name: str
    certificate: ClientCertificate
    service: ReplicaService
    kube: KubeOptions
    timeout_s: float


def run(command_line: CommandLine) -> None:
    """Explain why a pod is on its node or still waits: its last scheduling attempt, node by node.

    POD is a name, or NAMESPACE/NAME. Every ready replica of the extender is queried for its decisions: the replicas of
    --server, or those of the Service, which are found through the API server and queried over mutual TLS with --cert,
    --key and --ca. To query a replica without a certificate, forward its admin port. A replica keeps as many decisions
    as fit into its --decisions-bytes. Nothing is written.

    \b
    Examples:
      kubectl -n nodewise port-forward deploy/nodewise 9002 &
      nodewise explain web/shop-7 --server http://127.0.0.1:9002
      nodewise explain shop-7 -n web --cert tls.crt --key tls.key --ca ca.crt

    \b
    Exit codes:
      0  explained
      1  no replica could be queried
      2  the command line or a setting is invalid
      3  no decision about the pod is known
    """
    logs.configure("error")
    own = command_line.settings(ExplainOptions)
    pod_explanation = asyncio.run(_run_explain_query(_build_request(own, command_line)))
    rendering.PRINTERS[own.output](pod_explanation, every_node=own.every_node)
    if pod_explanation.explanation is None:
        click.get_current_context().exit(exit_codes.NO)


def _build_request(own: ExplainOptions, command_line: CommandLine) -> ExplainRequest:
    """The request of the command line. `BadSettings` if pod and namespace contradict each other."""
    namespace, slash, name = own.pod.rpartition("/")
    if not name or (slash and own.namespace not in {"", namespace}):
        raise BadSettings(
            "settings", [Problem("POD", repr(own.pod), "a name, or NAMESPACE/NAME, and one namespace")]
        )
    return ExplainRequest(
        name,
        namespace or own.namespace,
        own.servers,
        own.server_name,
        ClientCertificate(own.cert, own.key, own.ca),
        ReplicaService(own.service_namespace, own.service),
        command_line.settings(ClusterOptions).kube,
        command_line.settings(TimeoutOptions).timeout_s,
    )


async def _run_explain_query(query: ExplainRequest) -> PodExplanation:
    api = _open_api_client(query)
    try:
        return await _query_and_explain(query, api)
    finally:
        if api is not None:
            await api.close()


def _open_api_client(query: ExplainRequest) -> HttpApi | None:
    """The API server's client; None if none is configured and --server names the replicas."""
    try:
        return connect(query.kube, MetricsRegistry())
    except BadSettings as error:
        if query.servers and not query.kube.kubeconfig and not query.kube.context:
            return None
        remedy = f"{error.remedy}; or name a replica's admin port with --server".lstrip("; ")
        raise BadSettings(error.what, error.problems, remedy=remedy) from error


async def _query_and_explain(query: ExplainRequest, api: HttpApi | None) -> PodExplanation:
    namespace = query.namespace or (api.namespace if api else "default")
    with Progress() as progress:
        progress.say("looking for replicas of nodewise")
        targets = await _find_replicas(query, api)
        progress.say(f"asking {len(targets)} of them about pod {namespace}/{query.pod}")
        responses, lookup = await asyncio.gather(
            replica_queries.query_replicas(targets, query.certificate, namespace, query.pod, query.timeout_s),
            _read_pod_state(api, namespace, query),
        )
    _print_replica_failures(responses, lookup)
    known = [decision for response in responses for decision in response.decisions]
    uid = lookup.state.uid if lookup.state else ""
    attempt = scheduling_attempt_explanation.last_attempt(
        known, uid
    ) or scheduling_attempt_explanation.last_attempt(known)
    explanation = scheduling_attempt_explanation.explain(attempt) if attempt else None
    return PodExplanation(
        f"{namespace}/{query.pod}", lookup, responses, explanation, clock.SystemClock().now()
    )


async def _find_replicas(query: ExplainRequest, api: HttpApi | None) -> list[ReplicaEndpoint]:
    if query.servers:
        return [ReplicaEndpoint(_check_replica_url(server), query.server_name) for server in query.servers]
    assert api is not None, "without --server there is an API server, or an error was raised"
    if not query.certificate.cert:
        remedy = (
            f"or forward a replica's admin port, kubectl -n {query.service.namespace} port-forward "
            f"deploy/{query.service.name} 9002, and name it: --server http://127.0.0.1:9002"
        )
        expected = "the certificate and key of a client that the extender accepts, and its --ca"
        raise BadSettings("settings", [Problem("--cert, --key", "not given", expected)], remedy=remedy)
    endpoints = await replica_queries.find_replicas(api, query.service)
    return [ReplicaEndpoint(endpoint.url, query.server_name or endpoint.host) for endpoint in endpoints]


def _check_replica_url(server: str) -> str:
    if server.startswith(("http://", "https://")):
        return server
    raise BadSettings(
        "settings", [Problem("--server", repr(server), "http://127.0.0.1:9002 or https://HOST:9001")]
    )


async def _read_pod_state(api: HttpApi | None, namespace: str, query: ExplainRequest) -> PodReadResult:
    """The pod's state in the cluster, if there is a cluster and it responds."""
    if api is None:
        return PodReadResult(None)
    return await pod_state.read_pod(
        api, namespace, query.pod, query.timeout_s, own_namespace=query.service.namespace
    )


def _print_replica_failures(responses: Sequence[ReplicaResponse], lookup: PodReadResult) -> None:
    """Print failures to stderr. Raises `Unavailable` if no replica responded."""
    silent = [response for response in responses if response.page is None]
    if len(silent) == len(responses):
        problems = [Problem(response.replica.url, response.error, "") for response in silent]
        raise Unavailable("no replica of nodewise answers", problems)
    for response in silent:
        terminal_output.print_message(f"{response.replica.url} is left out: {response.error}")
    if lookup.error:
        terminal_output.print_message(f"the pod's own state is not known: {lookup.error}")
    if lookup.policies_error:
        terminal_output.print_message(
            f"the policies that select the pod now are not known: {lookup.policies_error}"
        )


command = options_from_settings.create_click_command(
    "explain",
    run,
    options_from_settings.click_parameters(ExplainOptions, ClusterOptions, TimeoutOptions),
    short_help="Explain why a pod is on its node, or still waits.",
)
