"""Which pods hold what they request of a node: those that are bound and have not ended."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nodewise.statistics.requests import RequestingSpec

ENDED: Final = frozenset({"Succeeded", "Failed"})
"""Phases of pods that hold nothing any more."""
SELECTORS: Final[Mapping[str, str]] = {
    "fieldSelector": ",".join(["spec.nodeName!=", *(f"status.phase!={phase}" for phase in sorted(ENDED))])
}
"""Selects them at the API server."""


class HoldingSpec(RequestingSpec, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class HoldingStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


def is_holding(pod: Any) -> bool:
    """Whether the pod is one of them; objects of files are not selected."""
    return bool(pod.spec.nodeName) and pod.status.phase not in ENDED
