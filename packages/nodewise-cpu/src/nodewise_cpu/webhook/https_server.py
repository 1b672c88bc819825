"""The webhook's HTTPS server, which has one path, and its two configuration files.

`server.yaml` is for the server, and `mutations.yaml` for pods. Each may be a file, a folder (all of its *.yaml files,
ordered by name) or a pattern such as `/etc/webhook/*.yaml`. Several files are merged, and later ones take precedence.
"""

import asyncio
import glob
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec

from nodewise.base.errors import UNREADABLE, BadInput, BadSettings, Problem, shown
from nodewise.kube import object_files
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Application, ConcurrencyLimit, Request, Response, Route
from nodewise.server.options import ServeOptions
from nodewise.server.server import HttpServer
from nodewise_cpu.webhook import pod_mutation
from nodewise_cpu.webhook.pod_mutation import Mutations, ReviewResponse, merge_json

DEFAULT_FILE: Final = "/etc/webhook/server.yaml"
_WHAT: Final = "the webhook's files"
_PARTS: Final[Mapping[str, Any]] = {
    "perPod": {"metadata": {"annotations": {}, "labels": {}}, "spec": {}},
    "perContainer": {"env": [], "volumeMounts": [], "resources": {}},
}
"""The partial objects, and the fields that have to be mappings."""
_TEXTS: Final = ("metadata.annotations", "metadata.labels")


class ServerFile(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """The key `server` of server.yaml. All keys are required."""

    binding_address: str
    port: int
    """With 0 a free port is chosen."""
    cert: str
    key: str
    """Paths of PEM files."""
    mutations: str
    """The path of mutations.yaml."""


Contents = Mapping[str, bytes]
"""The content of each file, by path, in order."""


def read_webhook_config_files(source: str) -> Contents:
    """The content of the files. BadSettings if there is no file, or one cannot be read."""
    path = Path(source)
    paths = [path]
    try:
        if path.is_dir():
            paths = sorted(file for file in path.glob("*.yaml") if not file.name.startswith("."))
        elif not path.exists() and glob.has_magic(source):
            paths = sorted(map(Path, glob.glob(source)))  # noqa: PTH207 - an absolute pattern, as the file has it
        documents = {str(path): path.read_bytes() for path in paths}
    except OSError as error:
        seen = f"{error.filename or source}: {error.strerror or error}"
        raise BadSettings.of(_WHAT, "", seen, "a readable YAML file") from error
    if not documents:
        raise BadSettings.of(_WHAT, "", f"{source}: no *.yaml there", "at least one YAML file")
    return documents


def _merge_documents(held: Contents) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for path, text in held.items():
        try:
            for _, document in object_files.split_documents(text, path):
                merged = merge_json(merged, msgspec.json.decode(document))
        except (BadInput, *UNREADABLE) as error:
            raise BadSettings.of(_WHAT, path, str(error), "YAML") from error
        except BadSettings as error:
            raise BadSettings(
                _WHAT, [problem._replace(field=f"{path}: {problem.field}") for problem in error.problems]
            ) from error
    return merged


def parse_server_settings(source: str) -> ServerFile:
    """The settings of the server. BadSettings names every missing and every invalid key."""
    server = _merge_documents(read_webhook_config_files(source)).get("server")
    if not isinstance(server, dict):
        seen = "missing" if server is None else shown(server)
        raise BadSettings.of(_WHAT, f"{source}: server", seen, "a mapping")
    keys = [field.encode_name for field in msgspec.structs.fields(ServerFile)]
    lacking = [Problem(f"{source}: server.{key}", "missing", "") for key in keys if server.get(key) is None]
    if lacking:
        raise BadSettings(_WHAT, lacking)
    try:
        return msgspec.convert(server, ServerFile, strict=False)
    except msgspec.ValidationError as error:
        seen, _, path = str(error).partition(" - at `$")
        raise BadSettings.of(_WHAT, f"{source}: server{path.rstrip('`')}", seen) from error


def parse_mutations(held: Contents) -> Mutations:
    """The mutations of pods. BadSettings names everything that cannot be merged into a pod."""
    source = ", ".join(held)
    mutations = _merge_documents(held).get("mutations")
    if not isinstance(mutations, dict):
        seen = "missing" if mutations is None else shown(mutations)
        raise BadSettings.of(_WHAT, f"{source}: mutations", seen, "perPod and perContainer")
    parts = {key: {} if mutations.get(key) is None else mutations[key] for key in _PARTS}
    problems = [
        Problem(f"mutations.{key}", "unknown", " or ".join(_PARTS)) for key in mutations.keys() - parts.keys()
    ]
    for key, value in parts.items():
        problems += _find_invalid_mutation_parts(f"mutations.{key}", value, _PARTS[key])
    if problems:
        raise BadSettings(
            _WHAT, [problem._replace(field=f"{source}: {problem.field}") for problem in problems]
        )
    return Mutations(parts["perPod"], parts["perContainer"])


def _find_invalid_mutation_parts(  # complexity: one rule for each part
    path: str, value: Any, shape: Mapping[str, Any]
) -> Iterator[Problem]:
    """The parts that the API server would reject in every mutated pod."""
    try:
        merge_json(shape, value, path)
    except BadSettings as error:
        yield from error.problems
        return
    for name in _TEXTS:
        texts: Any = value
        for key in name.split("."):
            texts = texts.get(key) or {}
        yield from (
            Problem(f"{path}.{name}.{key}", shown(text), "a text in quotes")
            for key, text in texts.items()
            if not isinstance(text, str)
        )
    env = value.get("env") or []
    for index, variable in enumerate(env if isinstance(env, list) else [env]):
        if not isinstance(variable, dict) or not isinstance(variable.get("name"), str):
            yield Problem(f"{path}.env[{index}]", shown(variable), "a name, and a value")
        elif not isinstance(variable.get("value", ""), str):
            yield Problem(f"{path}.env[{index}].value", shown(variable["value"]), "a text in quotes")


class LiveMutations:
    """The mutations in the files, which are checked for changes at each call.

    While the files are invalid, each call fails: earlier mutations could lack what new pods need. The log reports
    the reason once, and a metric the state.
    """

    def __init__(self, source: str, metrics_registry: MetricsRegistry) -> None:
        """BadSettings if the files are invalid now."""
        self._source = source
        self._metrics_registry = metrics_registry
        self._contents: Contents = read_webhook_config_files(source)
        self._mutations = parse_mutations(self._contents)
        self._failure = ""
        metrics_registry.set("cpu_mutations_failing", 0)

    def __call__(self) -> Mutations:
        """BadSettings if the files are invalid now."""
        try:
            contents = read_webhook_config_files(self._source)
            if contents != self._contents or self._failure:
                self._mutations = parse_mutations(contents)
        except BadSettings as error:
            if str(error) != self._failure:
                self._failure = str(error)
                self._metrics_registry.set("cpu_mutations_failing", 1)
                logs.emit("cpu_mutations_failed", error=self._failure)
            raise
        if contents != self._contents or self._failure:
            self._contents, self._failure = contents, ""
            self._metrics_registry.set("cpu_mutations_failing", 0)
            logs.emit("cpu_mutations_read", files=", ".join(contents))
        return self._mutations


LONGEST_BYTES: Final = 3 * 2**20
"""A review contains a pod, whose size the API server limits to about 1.5 MiB; this leaves a margin."""


_LARGE_BYTES: Final = 2**16
_MOST_LARGE: Final = 8  # the number of large reviews in memory at once


def create_webhook_server(
    mutations: LiveMutations, options: ServeOptions, metrics_registry: MetricsRegistry, *, any_client: bool
) -> HttpServer:
    """The server, not started yet: for clients with a certificate of `options.client_ca`, or for `any_client`."""
    aside = ThreadPoolExecutor(1, thread_name_prefix="large-reviews")

    def log_and_render(request: Request, answer: ReviewResponse) -> Response:
        metrics_registry.count("cpu_reviews_total", outcome=answer.outcome)
        if answer.outcome == "mutated":
            logs.emit("cpu_pod_mutated", namespace=answer.detail)
        elif answer.outcome == "refused":
            logs.emit("cpu_pod_refused", error=answer.detail, peer=request.peer)
        return Response(200, answer.body)

    async def mutate(request: Request) -> Response:
        """Respond to a review. Large ones are processed in another thread, one at a time, and delay no others."""
        if len(request.body) < _LARGE_BYTES:
            return log_and_render(request, pod_mutation.respond_to_review(request.body, mutations))
        valid_mutations: Mutations | BadSettings
        try:
            valid_mutations = mutations()
        except BadSettings as error:
            valid_mutations = error

        def get_mutations() -> Mutations:
            if isinstance(valid_mutations, BadSettings):
                raise valid_mutations  # an error only if the pod requests cores
            return valid_mutations

        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(
            aside, pod_mutation.respond_to_review, request.body, get_mutations
        )
        return log_and_render(request, answer)

    limit = ConcurrencyLimit(_MOST_LARGE, _LARGE_BYTES)
    app = Application(
        [Route("POST", pod_mutation.PATH, mutate, limit)], metrics_registry, max_body_bytes=LONGEST_BYTES
    )
    return HttpServer(app, options, metrics_registry, verify_clients=not any_client)
