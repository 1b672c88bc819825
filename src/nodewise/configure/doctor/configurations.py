"""kube-scheduler's configuration, whatever is in it: of a file, a ConfigMap, or its own /configz.

Field names count in any case, as /configz prints kube-scheduler's internal form. Source: kube-scheduler v0.36
`apis/config/v1/types.go` and `apis/config/types.go`.
"""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from nodewise.configure.doctor import papers
from nodewise.configure.doctor.facts import Configuration, Entry, Managed, Profile
from nodewise.configure.doctor.objects import items, named
from nodewise.errors import UNREADABLE, BadInput, shown
from nodewise.kube import documents
from nodewise.visible import short

_OURS: Final = re.compile(r"/(?:scheduler|agents/(?P<agent>[^/]+))/[^/]")
_DEFAULT: Final = "default-scheduler"
_LARGEST_BYTES: Final = 2**20
_MOST_ENTRIES: Final = 100


def parse(text: bytes) -> Configuration:
    """What a text says, YAML or JSON; what is none has a problem and nothing else."""
    if len(text) > _LARGEST_BYTES:
        return Configuration((), problems=(f"{len(text)} bytes, no configuration is as large",))
    try:
        found = [msgspec.json.decode(one) for _, one in documents.documents(text, "configuration")]
    except (BadInput, *UNREADABLE) as error:
        return Configuration((), problems=(short(str(error)),))
    if len(found) != 1:
        return Configuration((), problems=(f"{len(found)} documents; wanted one",))
    return read(found[0])


def of_configz(value: Any) -> Configuration:
    """What kube-scheduler's /configz says: the configuration under a name of its own."""
    if isinstance(value, dict) and len(value) == 1:
        return read(next(iter(value.values())), is_whole=False)
    return read(value, is_whole=False)


def read(value: Any, *, is_whole: bool = True) -> Configuration:
    """A configuration from a document; `is_whole` where it says its kind."""
    if not isinstance(value, dict):
        return Configuration((), problems=(f"{shown(value)} is no KubeSchedulerConfiguration",))
    kind = named(value, "kind")
    if is_whole and kind != "KubeSchedulerConfiguration":
        return Configuration((), problems=(f"kind: {shown(kind)}; wanted KubeSchedulerConfiguration",))
    listed, profiles = named(value, "extenders"), named(value, "profiles")
    problems = [
        f"{name}: {shown(one)} is no list"
        for name, one in (("extenders", listed), ("profiles", profiles))
        if one is not None and not isinstance(one, list)
    ]
    entries = tuple(_entry(at, one) for at, one in enumerate(items(listed)[:_MOST_ENTRIES]))
    problems += [f"extenders[{at}] is no object" for at, one in enumerate(items(listed)) if not _is(one)]
    own = tuple(_profile(one) for one in items(profiles) if _is(one)) or (Profile(_DEFAULT),)
    return Configuration(own, _count(named(value, "percentageOfNodesToScore")) or 0, entries, tuple(problems))


def _is(value: Any) -> bool:
    return isinstance(value, dict)


def _profile(value: Any) -> Profile:
    plugins = named(value, "plugins")
    enabled = [
        _text(one, "name")
        for point in ("multiPoint", "score", "filter")
        for one in items(named(named(plugins, point), "enabled"))
    ]
    names = tuple(dict.fromkeys(name for name in enabled if name))
    return Profile(
        _text(value, "schedulerName") or _DEFAULT, _count(named(value, "percentageOfNodesToScore")), names
    )


def _entry(number: int, value: Any) -> Entry:
    tls, url = named(value, "tlsConfig"), _text(value, "urlPrefix")
    filter_, prioritize = _text(value, "filterVerb"), _text(value, "prioritizeVerb")
    preempt, bind = _text(value, "preemptVerb"), _text(value, "bindVerb")
    ours, agent = _owner(url, (filter_, prioritize, preempt, bind))
    return Entry(
        number=number,
        url=url,
        filter=filter_,
        prioritize=prioritize,
        preempt=preempt,
        bind=bind,
        weight=_count(named(value, "weight")),
        names_only=named(value, "nodeCacheCapable") is True,
        timeout=_timeout(named(value, "httpTimeout")),
        ignorable=named(value, "ignorable") is True,
        https=named(value, "enableHTTPS") is True,
        insecure=named(tls, "insecure") is True,
        server_name=_text(tls, "serverName"),
        ca_file=_text(tls, "caFile"),
        cert_file=_text(tls, "certFile"),
        key_file=_text(tls, "keyFile"),
        ca_data=_data(tls, "caData"),
        cert_data=_data(tls, "certData"),
        key_data=papers.public(_data(tls, "keyData")),
        resources=tuple(_managed(value)),
        agent=agent,
        is_ours=ours,
    )


def _owner(url: str, verbs: tuple[str, ...]) -> tuple[bool, str]:
    """Whether the paths are nodewise's, and of which agent alone."""
    path = parts(url)[2].rstrip("/")
    for verb in filter(None, verbs):
        match = _OURS.match(f"{path}/{verb}"[:_MOST_PATH])
        if match:
            return True, match["agent"] or ""
    return False, ""


_MOST_PATH: Final = 1000


def parts(url: str) -> tuple[str, str, str, int]:
    """Scheme, host, path and port of an address; empty, and port 0, where it is none."""
    try:
        found = urlsplit(url)
        host, port = found.hostname or "", found.port
    except ValueError:
        return "", "", "", 0
    return found.scheme, host, found.path, port or {"https": 443, "http": 80}.get(found.scheme, 0)


def _managed(value: Any) -> Iterator[Managed]:
    for one in items(named(value, "managedResources")):
        if name := _text(one, "name"):
            yield Managed(name, named(one, "ignoredByScheduler") is True)


def _text(value: Any, key: str) -> str:
    found = named(value, key)
    return found if isinstance(found, str) else ""


def _timeout(value: Any) -> str:
    """As written; /configz prints 0s for one that is not given, and numbers are nanoseconds."""
    if isinstance(value, str):
        return "" if value in ("0s", "0") else value
    return f"{value}ns" if isinstance(value, int) and not isinstance(value, bool) and value else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _data(value: Any, key: str) -> bytes:
    """What stands in the configuration itself, in base64."""
    try:
        return base64.b64decode(_text(value, key), validate=True)
    except (binascii.Error, ValueError):
        return b""
