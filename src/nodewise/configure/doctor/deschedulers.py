"""A descheduler's policy, whatever is in it: which plugins run, and which node affinities they look at.

Source: descheduler v0.36 `pkg/api/v1alpha2`, and v0.29 `pkg/api/v1alpha1`.
"""

from typing import Any

import msgspec

from nodewise.configure.doctor.facts import Descheduler, Unread
from nodewise.configure.doctor.objects import at, fields, items, text, texts
from nodewise.errors import UNREADABLE, BadInput
from nodewise.kube import documents
from nodewise.visible import short

_AFFINITY = "RemovePodsViolatingNodeAffinity"


def parse(where: str, given: bytes) -> Descheduler:
    """What a policy's text says."""
    try:
        found = [msgspec.json.decode(one) for _, one in documents.documents(given[:_LARGEST], "policy")]
    except (BadInput, *UNREADABLE) as error:
        return Descheduler(where, Unread(where, f"its policy: {short(str(error))}"))
    return read(where, found[0] if found else None)


_LARGEST = 2**20


def read(where: str, policy: Any) -> Descheduler:
    """What a policy's document says, of either version."""
    plugins: dict[str, None] = {}
    affinities: list[str] = []
    for profile in items(policy, "profiles"):
        for point in ("deschedule", "balance"):
            plugins |= dict.fromkeys(texts(profile, "plugins", point, "enabled"))
        for one in items(profile, "pluginConfig"):
            if text(one, "name") == _AFFINITY:
                affinities += texts(one, "args", "nodeAffinityType")
    for name, strategy in fields(policy, "strategies").items():
        if at(strategy, "enabled") is True:
            plugins[name] = None
            if name == _AFFINITY:
                affinities += texts(strategy, "params", "nodeAffinityType")
    return Descheduler(where, tuple(map(short, plugins)), tuple(affinities))
