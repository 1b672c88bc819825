"""Deschedulers and the plugins that their policies enable.

Source: descheduler v0.36 `pkg/api/v1alpha2`, and v0.29 `pkg/api/v1alpha1`.
"""

import asyncio
from typing import Any, Final

import msgspec

from nodewise.base.errors import UNREADABLE, BadInput, short
from nodewise.doctor.collectors.collection_session import Session
from nodewise.doctor.collectors.scheduling_program_workloads import (
    collect_program_workloads,
    find_container,
    is_descheduler,
)
from nodewise.doctor.facts import Descheduler, UnavailableFact
from nodewise.doctor.parsing import workloads
from nodewise.doctor.parsing.object_fields import get, get_list, get_mapping, get_text, get_text_list
from nodewise.doctor.parsing.workloads import Workload
from nodewise.kube import object_files

_AFFINITY: Final = "RemovePodsViolatingNodeAffinity"
_MAX_BYTES: Final = 2**20


async def collect_deschedulers(session: Session) -> tuple[Descheduler, ...]:
    listed = (await session.require(collect_program_workloads)).deschedulers
    return tuple(await asyncio.gather(*(_read_descheduler(session, workload) for workload in listed)))


async def _read_descheduler(session: Session, workload: Workload) -> Descheduler:
    container = find_container(workload, is_descheduler)
    path = workloads.flag(container, "policy-config-file")
    if not path:
        return Descheduler(workload.where, ())
    data = await session.files.read(workload, container, path)
    if isinstance(data, UnavailableFact):
        return Descheduler(workload.where, data)
    return parse_descheduler_policy(workload.where, data)


def parse_descheduler_policy(where: str, text: bytes) -> Descheduler:
    """A descheduler with the policy in a text."""
    try:
        values = [
            msgspec.json.decode(json) for _, json in object_files.split_documents(text[:_MAX_BYTES], "policy")
        ]
    except (BadInput, *UNREADABLE) as error:
        return Descheduler(where, UnavailableFact(where, f"its policy: {short(str(error))}"))
    return read_descheduler_policy(where, values[0] if values else None)


def read_descheduler_policy(where: str, policy: Any) -> Descheduler:
    """A descheduler with a policy of either version."""
    plugins: dict[str, None] = {}
    affinity_types: list[str] = []
    for profile in get_list(policy, "profiles"):
        for point in ("deschedule", "balance"):
            plugins |= dict.fromkeys(get_text_list(profile, "plugins", point, "enabled"))
        for plugin in get_list(profile, "pluginConfig"):
            if get_text(plugin, "name") == _AFFINITY:
                affinity_types += get_text_list(plugin, "args", "nodeAffinityType")
    for name, strategy in get_mapping(policy, "strategies").items():
        if get(strategy, "enabled") is True:
            plugins[name] = None
            if name == _AFFINITY:
                affinity_types += get_text_list(strategy, "params", "nodeAffinityType")
    return Descheduler(where, tuple(map(short, plugins)), tuple(affinity_types))
