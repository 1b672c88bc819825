"""The page of ports and paths."""

from collections.abc import Iterator

from nodewise import agents
from nodewise.extender.routes import RequestHandler, is_predicate_or_priority_path
from nodewise.server.options import AdminOptions, ServeOptions
from tools.reference.markdown_formatting import MADE, code, table

_DOES = {
    "filter": "the nodes that accept the pod",
    "prioritize": "a score from 0 to 10 for each node",
    "preempt": "the nodes that accept the pod after an eviction",
}


def serving_page() -> str:
    """Addresses and paths of all servers."""
    kinds = agents.built_in_agent_kinds()
    request_handler = RequestHandler(kinds, {kind.name: kind.options() for kind in kinds})
    port, health = ServeOptions().port, AdminOptions().health_port
    ports = (
        (
            "`nodewise extender --port`",
            code(str(port)),
            "every address, mutual TLS",
            "kube-scheduler, `nodewise explain`",
        ),
        (
            "`nodewise extender --health-port`",
            code(str(health)),
            "loopback, plain HTTP",
            "probes, Prometheus",
        ),
        (
            "`nodewise controller --health-port`",
            code(str(health)),
            "loopback, plain HTTP",
            "probes, Prometheus",
        ),
        (
            "`nodewise annotate --health-port`",
            code(str(health)),
            "loopback, plain HTTP",
            "probes, Prometheus",
        ),
        (
            "`nodewise cpu agent --health-port`",
            code(str(health)),
            "loopback, plain HTTP",
            "probes, Prometheus",
        ),
        (
            "`nodewise cpu agent --socket`",
            "`/run/nodewise/cpu.sock`",
            "Unix socket",
            "`cmk isolate` in containers",
        ),
        (
            "`nodewise cpu webhook --conf-file`",
            "`8443`, Service 443",
            "as the file says, TLS",
            "the API server",
        ),
        (
            "`nodewise cpu webhook --health-port`",
            code(str(health)),
            "loopback, plain HTTP",
            "probes, Prometheus",
        ),
    )
    return "".join(
        [
            MADE,
            "# Ports and paths\n\n",
            table(("server", "port", "listens on", "who calls"), ports),
            "\nTo change these addresses, set `--address` and `--health-address`. With the port 0, the server\n",
            "uses a free port and logs it. Without certificates (`--unsafe`), the port of kube-scheduler\n",
            "listens on loopback only.\n\n",
            "## Paths for kube-scheduler\n\n",
            "kube-scheduler sends `POST` requests with JSON as in its extender protocol, with node names\n",
            "(`nodeCacheCapable: true`) or whole nodes. The paths of an agent exist if `--agents` contains it.\n\n",
            table(("path", "answers"), _asked(request_handler)),
            "\n`POST /scheduler/bind` and `/agents/<agent>/bind` bind pods if an agent binds, such as `gpu`.\n",
            "Without such an agent, nodewise refuses bind requests with a reason if it serves the paths of\n",
            "kube-safe-scheduler.\n\n",
            "## Paths for users and programs\n\n",
            table(("path", "on", "answers"), _shown(request_handler)),
            "\n## Status\n\n",
            table(("status", "means"), _STATUSES),
            "\nA rejected node is not an error: the status is 200, and `FailedNodes` contains the reason, or\n",
            "`FailedAndUnresolvableNodes` if evicting pods from the node does not help. The body of an error is\n",
            "JSON with the field, the found value and the expected value.\n",
        ]
    )


def _asked(request_handler: RequestHandler) -> Iterator[tuple[str, str]]:
    for path, verb in request_handler.verbs.items():
        if path.startswith("/scheduler/") and not is_predicate_or_priority_path(path):
            yield code(path), f"every agent: {_DOES[verb]}"
    for verb, does in _DOES.items():
        yield code(f"/agents/<agent>/{verb}"), f"that agent alone: {does}"
    for path, verb in request_handler.verbs.items():
        if is_predicate_or_priority_path(path):
            yield code(path), f"as kube-safe-scheduler's path: {_DOES[verb]}"


def _shown(request_handler: RequestHandler) -> Iterator[tuple[str, str, str]]:
    yield "`GET /healthz`", "health port", "200 while the process lives"
    yield "`GET /readyz`", "health port", "200 when it is ready; otherwise 503 with the reason"
    yield "`GET /metrics`", "health port", "[metrics](observability.md#metrics) in Prometheus' form"
    private = "health port on loopback, and the port with mutual TLS"
    yield (
        "`GET /decisions`",
        private,
        "the last decisions; of one pod with `?namespace=` and `?pod=`; `?limit=`, or 20; `?form=words` or `arrays`",
    )
    yield (
        "`GET /evaluation`",
        f"{private}; in a cluster, with the agent telemetry",
        "what the policies of a pod say about all nodes now; `?namespace=` and `?pod=`",
    )
    parameters = {
        "gpu": "; `?node=` for one node",
        "load": "; `?node=` for one node",
        "learned": "; `?type=` for one type of pods",
    }
    for agent in request_handler.exporters:
        yield (
            code(f"GET /state/{agent.name}"),
            private,
            f"the state of the agent{parameters.get(agent.name, '')}",
        )
    yield (
        "`GET /metric-values`",
        private,
        "the settings that decisions depend on, and metric values; those of later metrics with `?after=`",
    )
    yield "`GET /version`", "the port", "the version"


_STATUSES = (
    ("`200`", "answered"),
    ("`400`", "the request cannot be read"),
    (
        "`403`",
        (
            "the client's certificate lacks a name of `--client-name` or the usage clientAuth, or is a CA's with"
            " `--refuse-ca-client`; with `--any-client` for bind, `/decisions`, `/evaluation`, `/metric-values` and"
            " `/state` only"
        ),
    ),
    ("`404`", "no such path; or a bind that was refused, with `--bind-errors status`"),
    ("`405`", "the path has another method"),
    ("`408`", "the header or the body took too long"),
    ("`413`", "the body is longer than `--max-body-bytes`"),
    ("`431`", "the header is longer than `--header-bytes`"),
    ("`500`", "an error in nodewise; the log contains it"),
    ("`503`", "temporarily unavailable: not ready, or too many large requests at once"),
)
