"""Renders kube-scheduler's configuration from a template, an existing file, or a built-in value."""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from nodewise.base.errors import BadInput, Problem, shown
from nodewise.install import scheduler_configuration_fields, scheduler_versions, yaml_editor
from nodewise.install.scheduler_configuration_fields import KIND
from nodewise.install.scheduler_versions import IgnoredFlag, SchedulerVersion
from nodewise.install.yaml_editor import Document
from nodewise.kube import yaml_writer

BUILTIN_NAME: Final = "the built-in template"
_VERSION_PLACEHOLDER: Final = "XVERSIONX"
"""In place of the version in templates of the older configurator; never part of a message."""
_WRAPPERS: Final = {"ConfigMap": "data", "Secret": "data"}
"""Kinds of objects that contain configurations, with the field that contains them."""
_HTTP_TIMEOUT: Final = "5s"
"""The default of kube-scheduler, written explicitly: an extender that hangs delays every pod by this time."""


class RenderContext(NamedTuple):
    """Properties of the host that a configuration depends on."""

    version: SchedulerVersion
    kubeconfig: str
    """For kube-scheduler's own connection: its flag has no effect together with a configuration file."""
    ca: str
    """Path of the CA as kube-scheduler sees it; empty: none."""
    insecure: bool
    """Whether to run without a CA."""
    ignored_flags: Sequence[IgnoredFlag] = ()
    """The flags of kube-scheduler that lose their effect beside a configuration file."""


class RenderedConfiguration(NamedTuple):
    data: bytes
    value: dict[str, Any]
    warnings: Sequence[str]
    carried: Sequence[str] = ()
    """The fields that replace flags, one line each."""


def render_template(data: bytes, name: str, context: RenderContext) -> RenderedConfiguration:
    """A template with the API version for this kube-scheduler, with defaults for missing fields, with the values of
    ignored flags, and with LF line ends. `BadInput` if it is invalid.
    """
    document = _parse_configuration(data.replace(b"\r\n", b"\n"), name, context)
    configuration = copy.deepcopy(document.value)
    written = str(configuration.get("apiVersion"))
    warnings = []
    if _VERSION_PLACEHOLDER not in written and written != context.version.api_version:
        warnings.append(f"{name} says {written}; written as {context.version.api_version}")
    configuration["apiVersion"] = context.version.api_version
    carried, conflicts = _carry_flags(configuration, name, context)
    if context.kubeconfig:
        connection = configuration.setdefault("clientConnection", {})
        if isinstance(connection, dict):
            connection.setdefault("kubeconfig", context.kubeconfig)
    for entry in configuration["extenders"]:
        _set_entry_defaults(entry, context)
    rendered = _rewrite_document(document, configuration, [*warnings, *conflicts], context)
    return rendered._replace(carried=carried)


def add_extender_entries(
    data: bytes, name: str, extenders: Sequence[Mapping[str, Any]], context: RenderContext
) -> RenderedConfiguration:
    """An existing configuration with our entries added; an entry with the same URL is replaced.

    Flags that kube-scheduler ignores beside a configuration had no effect before either, so they are not carried into
    it. A warning names those that differ from it.
    """
    document = _parse_configuration(data, name, context, extenders_needed=False)
    configuration = copy.deepcopy(document.value)
    if _VERSION_PLACEHOLDER in str(configuration.get("apiVersion")):
        expected = f"{context.version.api_version}, for example; a template is for -f"
        raise BadInput(name, [Problem("apiVersion", "the placeholder of a template", expected)])
    if not context.version.loads(str(configuration.get("apiVersion"))):
        expected = f"one that kube-scheduler {context.version} loads, such as {context.version.api_version}"
        raise BadInput(name, [Problem("apiVersion", repr(configuration.get("apiVersion")), expected)])
    left = {entry["urlPrefix"]: dict(entry) for entry in extenders}
    theirs = configuration.get("extenders") or []
    configuration["extenders"] = [left.pop(entry["urlPrefix"], entry) for entry in theirs] + list(
        left.values()
    )
    warnings = [
        f"{flag.text} has no effect beside --config, before and after this run: set {flag.field} in {name}"
        for flag in context.ignored_flags
        if flag.path and scheduler_versions.get_field(configuration, flag.path) != flag.value
    ]
    if context.kubeconfig and not (configuration.get("clientConnection") or {}).get("kubeconfig"):
        warnings.append(
            f"--kubeconfig={context.kubeconfig} has no effect beside --config, before and after this run: set "
            f"clientConnection.kubeconfig in {name}"
        )
    return _rewrite_document(document, configuration, warnings, context)


def render_builtin_configuration(value: Mapping[str, Any], context: RenderContext) -> RenderedConfiguration:
    """The configuration of a built-in value, with the values of ignored flags."""
    configuration = {**copy.deepcopy(dict(value)), "apiVersion": context.version.api_version}
    carried, conflicts = _carry_flags(configuration, BUILTIN_NAME, context)
    for entry in configuration["extenders"]:
        _set_entry_defaults(entry, context)
    _check_configuration(configuration, BUILTIN_NAME, context, extenders_needed=True)
    data = yaml_writer.dump(configuration).encode()
    return RenderedConfiguration(data, configuration, conflicts, carried)


def list_files_of_entries(value: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """The fields of extenders that name files, with the paths."""
    for at, entry in enumerate(value.get("extenders") or []):
        for field in ("caFile", "certFile", "keyFile"):
            path = (entry.get("tlsConfig") or {}).get(field)
            if path:
                yield f"extenders[{at}].tlsConfig.{field}", path


def has_inline_private_key(value: Mapping[str, Any]) -> bool:
    return any((entry.get("tlsConfig") or {}).get("keyData") for entry in value.get("extenders") or [])


def _carry_flags(
    configuration: dict[str, Any], name: str, context: RenderContext
) -> tuple[list[str], list[str]]:
    """Set the fields of ignored flags that the configuration does not set itself. Returns the lines about the fields
    that were set, and the warnings about the other flags.
    """
    carried, warnings = [], []
    for flag in context.ignored_flags:
        current = scheduler_versions.get_field(configuration, flag.path) if flag.path else None
        if not flag.path:
            warnings.append(
                f"{flag.text} has no effect beside --config, and no field of its own: set it in the profiles of a "
                "template (-f)"
            )
        elif current is None:
            scheduler_versions.set_field(configuration, flag.path, flag.value)
            carried.append(f"configuration: + {flag.field}: {json.dumps(flag.value)} (from {flag.text})")
        elif current != flag.value:
            warnings.append(
                f"{flag.text} has no effect beside --config: {name} sets {flag.field} to {current!r}"
            )
    return carried, warnings


def _set_entry_defaults(entry: dict[str, Any], context: RenderContext) -> None:
    """Set the timeout and the CA of an entry if they are missing: without them an extender can hang, or anyone can
    respond.
    """
    entry.setdefault("httpTimeout", _HTTP_TIMEOUT)
    if not entry.get("enableHTTPS"):
        return
    tls = entry["tlsConfig"] = entry.get("tlsConfig") or {}
    if context.insecure:
        if not (tls.get("caFile") or tls.get("caData")):
            tls["insecure"] = True
    elif context.ca and not tls.get("insecure") and not tls.get("caFile") and not tls.get("caData"):
        tls["caFile"] = context.ca


def _rewrite_document(
    document: Document, value: dict[str, Any], warnings: Sequence[str], context: RenderContext
) -> RenderedConfiguration:
    _check_configuration(value, document.name, context, extenders_needed=True)
    return RenderedConfiguration(
        yaml_editor.rewrite_document(document, value), value, [*warnings, *_entry_warnings(value)]
    )


def _entry_warnings(value: Mapping[str, Any]) -> Iterable[str]:
    for at, entry in enumerate(value["extenders"]):
        where = f"extenders[{at}]"
        if entry.get("filterVerb") and entry.get("ignorable"):
            yield f"{where}.ignorable is true: while it does not answer, pods are placed without it"
        if entry.get("filterVerb") and not entry.get("preemptVerb"):
            yield f"{where} has no preemptVerb: pods may be evicted from nodes that it then rejects"
        if entry.get("enableHTTPS") and not entry.get("nodeCacheCapable"):
            yield f"{where}.nodeCacheCapable is not true: whole nodes are sent with each call"
        tls = entry.get("tlsConfig") or {}
        if entry.get("enableHTTPS") and tls.get("insecure"):
            yield f"{where}.tlsConfig.insecure is true: kube-scheduler does not verify the server"


def _parse_configuration(
    data: bytes, name: str, context: RenderContext, *, extenders_needed: bool = True
) -> Document:
    document = yaml_editor.parse_document(data, name)
    if not isinstance(document.value, dict):
        raise BadInput(name, [Problem("", "no map", "a KubeSchedulerConfiguration")])
    _check_configuration(document.value, name, context, extenders_needed=extenders_needed)
    return document


def _check_configuration(
    value: Mapping[str, Any], name: str, context: RenderContext, *, extenders_needed: bool
) -> None:
    problems = (
        [*_wrapper_problems(value, context.version)]
        or [*_header_problems(value, context.version)]
        or scheduler_configuration_fields.list_problems(value, context.version)
        or [*_extenders_problems(value.get("extenders"), needed=extenders_needed)]
    )
    if problems:
        raise BadInput(name, problems)


def _wrapper_problems(value: Mapping[str, Any], version: SchedulerVersion) -> Iterable[Problem]:
    """The problem of an object that is no configuration but can contain one. Its fields are no further problems."""
    kind = value.get("kind")
    if isinstance(kind, str) and kind in _WRAPPERS:
        field = _WRAPPERS[kind]
        data = value.get(field)
        items = data.items() if isinstance(data, dict) else ()
        keys = [str(key) for key, text in items if KIND in str(text)]
        place = f"{field}[{shown(keys[0])}]" if len(keys) == 1 else f"its {field}"
        header = f"kind {KIND}, apiVersion {version.api_version}"
        actual = f"{kind}; the configuration is in {place}"
        yield Problem("kind", actual, f"a file with that text alone: {header}")


def _header_problems(value: Mapping[str, Any], version: SchedulerVersion) -> Iterable[Problem]:
    kind, api_version = value.get("kind"), value.get("apiVersion")
    if kind != KIND:
        yield Problem("kind", shown(kind), KIND)
    if not isinstance(api_version, str) or not api_version.startswith(f"{scheduler_versions.GROUP}/"):
        yield Problem("apiVersion", shown(api_version), version.api_version)


def _extenders_problems(entries: Any, *, needed: bool) -> Iterable[Problem]:
    """Values of entries that kube-scheduler refuses later, or with which its calls fail."""
    if needed and not entries:
        yield Problem("extenders", "no extender", "at least one extender")
    for at, entry in enumerate(entries or ()):
        for problem in _entry_problems(entry or {}):
            yield problem._replace(field=f"extenders[{at}].{problem.field}")


def _entry_problems(entry: Mapping[str, Any]) -> Iterable[Problem]:
    if not _is_url(entry.get("urlPrefix")):
        yield Problem("urlPrefix", repr(entry.get("urlPrefix")), "an address such as https://HOST:PORT/PATH")
    weight = entry.get("weight")
    if entry.get("prioritizeVerb") and (weight is None or weight < 1):
        yield Problem("weight", repr(weight), "a whole number from 1 on, beside prioritizeVerb")
    tls = entry.get("tlsConfig") or {}
    if tls.get("insecure") and (tls.get("caFile") or tls.get("caData")):
        expected = "one of them: kube-scheduler does not start so"
        yield Problem("tlsConfig.insecure", "true beside a CA", expected)
    for file, data in (("certFile", "keyFile"), ("certData", "keyData")):
        if bool(tls.get(file)) != bool(tls.get(data)):
            yield Problem(f"tlsConfig.{file}", f"{file} and {data} are not both given", "both, or none")


def _is_url(text: Any) -> bool:
    try:
        parts = urlsplit(text if isinstance(text, str) else "")
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
