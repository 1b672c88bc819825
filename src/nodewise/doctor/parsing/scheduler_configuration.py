"""kube-scheduler's configuration, from a file, a ConfigMap, or its /configz.

Field names match in any case, as /configz prints kube-scheduler's internal type. Source: kube-scheduler v0.36
`apis/config/v1/types.go` and `apis/config/types.go`.
"""

import base64
import re
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from nodewise.base.errors import BadInput, short, shown
from nodewise.doctor.parsing.objects import (
    get_field_ignoring_case,
    get_list,
    get_number,
    get_text,
)
from nodewise.install import scheduler_configuration_fields
from nodewise.install.scheduler_configuration import DEFAULT_SCHEDULER
from nodewise.install.scheduler_configuration_fields import KIND, NEWEST_FIELD
from nodewise.install.scheduler_versions import NEWEST, SchedulerVersion
from nodewise.kube import object_files
from nodewise.tls.x509_certificates import public_key_of_private_key

_NODEWISE_PATH: Final = re.compile(r"/(?:scheduler|agents/(?P<agent>[^/]+))/[^/]")
_MAX_PATH: Final = 1000
_MAX_BYTES: Final = 2**20
_MAX_ENTRIES: Final = 100


class ManagedResource(NamedTuple):
    """A resource of an entry's managedResources: pods that request it are sent to the extender."""

    name: str
    is_ignored: bool = False
    """ignoredByScheduler."""


class ExtenderEntry(NamedTuple):
    """An entry of `extenders` in a KubeSchedulerConfiguration."""

    number: int
    url: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int | None = None
    node_cache_capable: bool = False
    http_timeout: str = ""
    """As written; empty if not set."""
    ignorable: bool = False
    enable_https: bool = False
    insecure: bool = False
    server_name: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_data: bytes = b""
    cert_data: bytes = b""
    key_data: bytes = b""
    """The public key of the private key in the configuration, DER; empty if it is invalid, too."""
    has_key_data: bool = False
    """Whether keyData is set."""
    managed_resources: tuple[ManagedResource, ...] = ()
    agent: str = ""
    """The agent that the path names; empty if the path is that of all agents."""
    is_nodewise: bool = False
    """Whether its paths are nodewise's."""

    @property
    def field(self) -> str:
        return f"extenders[{self.number}]"


class Profile(NamedTuple):
    scheduler_name: str
    percentage: int | None = None
    """percentageOfNodesToScore; None: that of the configuration."""
    plugins: tuple[str, ...] = ()
    """The plugins that it enables, by name."""


class SchedulerConfiguration(NamedTuple):
    """The fields of a KubeSchedulerConfiguration that checks read."""

    profiles: tuple[Profile, ...] = (Profile(DEFAULT_SCHEDULER),)
    percentage: int = 0
    entries: tuple[ExtenderEntry, ...] = ()
    problem: str = ""
    """Why it is no configuration; empty if it is one."""
    document: Any = None
    """As it is written; None if kube-scheduler itself printed it, which has accepted it."""
    duplicate_keys: tuple[str, ...] = ()
    """The paths of keys that occur twice. The last one counts here, and kube-scheduler refuses them."""

    @property
    def nodewise_entries(self) -> tuple[ExtenderEntry, ...]:
        return tuple(entry for entry in self.entries if entry.is_nodewise)

    def has_profile_for_scheduler(self, scheduler_name: str) -> bool:
        return any(profile.scheduler_name == scheduler_name for profile in self.profiles)


def parse(text: bytes) -> SchedulerConfiguration:
    """The configuration in a YAML or JSON text, of several documents the first, as kube-scheduler reads it. A text
    that contains none has a problem and no profile.
    """
    if len(text) > _MAX_BYTES:
        return _invalid_configuration(f"found {len(text)} bytes, expected at most {_MAX_BYTES}")
    try:
        documents = object_files.load_with_duplicate_keys(text, "configuration")
    except BadInput as error:
        return _invalid_configuration(short(str(error)))
    document, duplicate_keys = documents[0] if documents else (None, ())
    return read(document)._replace(duplicate_keys=tuple(map(short, duplicate_keys)))


def parse_configz(value: Any) -> SchedulerConfiguration:
    """The response of kube-scheduler's /configz: the configuration is the value of a single key."""
    if isinstance(value, dict) and len(value) == 1:
        return read(next(iter(value.values())), has_kind=False)
    return read(value, has_kind=False)


def read(
    value: Any, *, has_kind: bool = True
) -> SchedulerConfiguration:  # complexity: one condition for each field
    """A configuration from a document; `has_kind` if it must have its kind."""
    if not isinstance(value, dict):
        return _invalid_configuration(f"found {shown(value)}, expected a KubeSchedulerConfiguration")
    kind = get_field_ignoring_case(value, "kind")
    if has_kind and kind != KIND:
        return _invalid_configuration(f"kind: found {shown(kind)}, expected {KIND}")
    extenders, profiles = (get_field_ignoring_case(value, name) for name in ("extenders", "profiles"))
    items = get_list(extenders)[:_MAX_ENTRIES]
    entries = tuple(_parse_extender_entry(at, item) for at, item in enumerate(items))
    listed = tuple(_parse_profile(item) for item in get_list(profiles) if isinstance(item, dict))
    percentage = get_number(get_field_ignoring_case(value, "percentageOfNodesToScore")) or 0
    return SchedulerConfiguration(
        listed or (Profile(DEFAULT_SCHEDULER),), percentage, entries, document=value if has_kind else None
    )


def list_refusals(document: Any, version: SchedulerVersion | None) -> list[str]:
    """Why kube-scheduler does not start with a document of the kind KubeSchedulerConfiguration; empty if it does.

    Without a version, every field of the newest known version is accepted. A finding of its own reports a weight that
    is missing beside prioritizeVerb.
    """
    known = version or SchedulerVersion(max(NEWEST, NEWEST_FIELD))
    api_version = get_text(document, "apiVersion")
    if not known.loads(api_version):
        text = f"apiVersion: found {shown(document.get('apiVersion'))}"
        return [f"{text}, which kube-scheduler {known} does not load; expected {known.api_version}"]
    problems = scheduler_configuration_fields.list_problems(document, known)
    return [
        f"{field}: found {actual}, expected {expected}" if expected else f"{field}: {actual}"
        for field, actual, expected in problems
    ]


def list_plugins_without_effect(document: Any) -> list[str]:
    """Misspelt plugins that a document without `list_refusals` disables or configures."""
    problems = scheduler_configuration_fields.list_plugins_without_effect(document)
    return [f"{field}: {actual}" for field, actual, _ in problems]


def split_url(url: str) -> tuple[str, str, str, int]:
    """Scheme, host, path and port of a URL; empty, and port 0, if it is invalid."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "", "", "", 0
    return parts.scheme, host, parts.path, port or {"https": 443, "http": 80}.get(parts.scheme, 0)


def _invalid_configuration(problem: str) -> SchedulerConfiguration:
    return SchedulerConfiguration((), problem=problem)


def _parse_profile(value: Any) -> Profile:
    plugins = get_field_ignoring_case(value, "plugins")
    names = [
        _get_text_field(item, "name")
        for point in ("multiPoint", "score", "filter")
        for item in get_list(get_field_ignoring_case(get_field_ignoring_case(plugins, point), "enabled"))
    ]
    return Profile(
        _get_text_field(value, "schedulerName") or DEFAULT_SCHEDULER,
        get_number(get_field_ignoring_case(value, "percentageOfNodesToScore")),
        tuple(dict.fromkeys(filter(None, names))),
    )


def _parse_extender_entry(number: int, value: Any) -> ExtenderEntry:
    tls, url = get_field_ignoring_case(value, "tlsConfig"), _get_text_field(value, "urlPrefix")
    filter_verb, prioritize_verb, preempt_verb, bind_verb = verbs = [
        _get_text_field(value, f"{name}Verb") for name in ("filter", "prioritize", "preempt", "bind")
    ]
    path = split_url(url)[2].rstrip("/")
    paths = (f"{path}/{verb}"[:_MAX_PATH] for verb in verbs if verb)
    match = next(filter(None, map(_NODEWISE_PATH.match, paths)), None)
    resources = get_list(get_field_ignoring_case(value, "managedResources"))
    return ExtenderEntry(
        number,
        url,
        filter_verb,
        prioritize_verb,
        preempt_verb,
        bind_verb,
        weight=get_number(get_field_ignoring_case(value, "weight")),
        node_cache_capable=get_field_ignoring_case(value, "nodeCacheCapable") is True,
        http_timeout=_format_timeout_field(get_field_ignoring_case(value, "httpTimeout")),
        ignorable=get_field_ignoring_case(value, "ignorable") is True,
        enable_https=get_field_ignoring_case(value, "enableHTTPS") is True,
        insecure=get_field_ignoring_case(tls, "insecure") is True,
        server_name=_get_text_field(tls, "serverName"),
        ca_file=_get_text_field(tls, "caFile"),
        cert_file=_get_text_field(tls, "certFile"),
        key_file=_get_text_field(tls, "keyFile"),
        ca_data=_decode_base64_field(tls, "caData"),
        cert_data=_decode_base64_field(tls, "certData"),
        key_data=public_key_of_private_key(_decode_base64_field(tls, "keyData")),
        has_key_data=bool(get_field_ignoring_case(tls, "keyData")),
        managed_resources=tuple(
            ManagedResource(name, get_field_ignoring_case(item, "ignoredByScheduler") is True)
            for item in resources
            if (name := _get_text_field(item, "name"))
        ),
        agent=(match["agent"] or "") if match else "",
        is_nodewise=match is not None,
    )


def _get_text_field(value: Any, key: str) -> str:
    return get_text(get_field_ignoring_case(value, key))


def _format_timeout_field(value: Any) -> str:
    """As written. /configz prints 0s if it is not set; numbers are nanoseconds."""
    if isinstance(value, str):
        return "" if value in ("0s", "0") else value
    return f"{value}ns" if isinstance(value, int) and not isinstance(value, bool) and value else ""


def _decode_base64_field(value: Any, key: str) -> bytes:
    try:
        return base64.b64decode(_get_text_field(value, key), validate=True)
    except ValueError:
        return b""
