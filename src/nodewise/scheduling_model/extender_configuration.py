"""Extenders of a KubeSchedulerConfiguration, with the validation that kube-scheduler performs at start.

Sources: k8s.io/kube-scheduler v0.36.3 config/v1/types.go (Extender), kubernetes v1.36.3
pkg/scheduler/apis/config/validation, pkg/scheduler/extender.go (defaults).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nodewise.base import clock
from nodewise.base.errors import BadSettings, Problem, shown

_WHAT = "the extenders of the scheduler's configuration"


class _Struct(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Keys as in the configuration; unknown keys are errors, as in kube-scheduler."""


class ManagedResource(_Struct, frozen=True):
    """A resource by which pods opt in to the extender."""

    name: str
    ignored_by_scheduler: bool = False
    """Whether the scheduler itself ignores this resource."""


class TlsConfig(_Struct, frozen=True):
    """TLS settings; files are PEM. Without `ca_file` the server is not verified."""

    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""


class ConfiguredExtender(_Struct, frozen=True):
    """One extender. An empty verb is not called."""

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 0
    enable_https: bool = msgspec.field(name="enableHTTPS", default=False)
    tls_config: TlsConfig | None = None
    http_timeout: str = "0s"
    """A Go duration; zero means five seconds, as in kube-scheduler."""
    node_cache_capable: bool = False
    """Whether the extender receives node names instead of whole nodes."""
    managed_resources: tuple[ManagedResource, ...] = ()
    """The extender is called for pods that request one of these; for all pods if empty."""
    ignorable: bool = False

    @property
    def timeout_s(self) -> float:
        return clock.parse_duration(self.http_timeout) or 5.0

    @property
    def ignored(self) -> frozenset[str]:
        """The resources that the scheduler ignores."""
        return frozenset(
            resource.name for resource in self.managed_resources if resource.ignored_by_scheduler
        )


def entries(documents: Sequence[Mapping[str, Any]]) -> tuple[ConfiguredExtender, ...]:
    """Decode the list `extenders`. BadSettings names every field that kube-scheduler or the simulated one rejects.

    Ignorable extenders come last, as in kube-scheduler.
    """
    problems: list[Problem] = []
    valid: list[ConfiguredExtender] = []
    for index, document in enumerate(documents):
        entry, entry_problems = _decode_extender_entry(document, f"extenders[{index}]")
        problems += entry_problems
        valid += [entry] if entry else []
    problems += _duplicate_resource_problems(valid)
    if problems:
        raise BadSettings(_WHAT, problems)
    return tuple(sorted(valid, key=lambda entry: entry.ignorable))


def _decode_extender_entry(
    document: Mapping[str, Any], field: str
) -> tuple[ConfiguredExtender | None, list[Problem]]:
    try:
        entry = msgspec.convert(document, ConfiguredExtender)
    except msgspec.ValidationError as error:
        return None, [Problem(field, str(error), "the fields of an extender")]
    return entry, _extender_entry_problems(entry, field)


def _extender_entry_problems(entry: ConfiguredExtender, field: str) -> list[Problem]:
    problems = []
    if entry.prioritize_verb and entry.weight <= 0:
        problems.append(Problem(f"{field}.weight", str(entry.weight), "a positive weight"))
    if entry.bind_verb:
        wanted = "none: the simulated scheduler binds by itself"
        problems.append(Problem(f"{field}.bindVerb", shown(entry.bind_verb), wanted))
    try:
        clock.parse_duration(entry.http_timeout)
    except ValueError as error:
        problems.append(Problem(f"{field}.httpTimeout", str(error), "a duration such as 1s"))
    if entry.tls_config and entry.tls_config.insecure and entry.tls_config.ca_file:
        problems.append(Problem(f"{field}.tlsConfig", "both insecure and caFile", "one of them"))
    return problems


def _duplicate_resource_problems(valid: Sequence[ConfiguredExtender]) -> list[Problem]:
    counts = Counter(resource.name for entry in valid for resource in entry.managed_resources)
    return [
        Problem("extenders", f"{name} in {count} managedResources", "each resource once")
        for name, count in counts.items()
        if count > 1
    ]
