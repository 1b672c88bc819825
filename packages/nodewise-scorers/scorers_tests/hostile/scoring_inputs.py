"""Nodes with hostile statistics, and pods with hostile requests, for the scoring agents."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tests.hostile.json_strategies import QUANTITIES

AGENTS: Final = "safe,congestion,pigeon"
PRIORITIES: Final = tuple(
    f"/scheduler/priorities/{name}"
    for name in ("safe-overload", "safe-balance", "congestion", "pigeon-holing")
)
FILTERS: Final = (
    "/scheduler/filter",
    "/scheduler/predicates/safe-overload",
    *(f"/agents/{name}/filter" for name in AGENTS.split(",")),
)
SCORES: Final = (
    "/scheduler/prioritize",
    *PRIORITIES,
    *(f"/agents/{name}/prioritize" for name in AGENTS.split(",")),
)
PREEMPTS: Final = ("/scheduler/preempt", *(f"/agents/{name}/preempt" for name in AGENTS.split(",")))
VERBS: Final[Mapping[str, str]] = {
    **dict.fromkeys(FILTERS, "filter"),
    **dict.fromkeys(SCORES, "prioritize"),
    **dict.fromkeys(PREEMPTS, "preempt"),
}
"""All paths that call an agent's calculation, and the verb that determines the form of the response."""

RESOURCES: Final = ("cpu", "memory", "pods", "gpu", "ephemeral-storage")
STATISTICS: Final = (
    *(f"{kind}-free-{resource}" for kind in ("mean", "std", "forcasted") for resource in ("cpu", "memory")),
    "congestion-factor",
    *(f"requested-{resource}" for resource in RESOURCES),
)
"""All annotations that the agents read, except the time."""
AGE: Final = "nodewise.io/annotated-at"
ROOM: Final = {"cpu": "4", "memory": "8Gi", "pods": "110", "gpu": "2", "ephemeral-storage": "100Gi"}


class AnnotationText(NamedTuple):
    """The text of an annotation, and whether it can be parsed as a number or as an integer."""

    text: str
    is_number: bool = False
    is_whole: bool = False


TEXTS: Final[Mapping[str, AnnotationText]] = {
    "one": AnnotationText("1000", is_number=True, is_whole=True),
    "signed": AnnotationText("+50", is_number=True, is_whole=True),
    "negative": AnnotationText("-1", is_number=True, is_whole=True),
    "minus zero": AnnotationText("-0", is_number=True, is_whole=True),
    "fraction": AnnotationText("50.5", is_number=True),
    "as pythons wrote it": AnnotationText("1610612736.0", is_number=True),
    "exponent": AnnotationText("1e1", is_number=True),
    "huge": AnnotationText("1e308", is_number=True),
    "hugely negative": AnnotationText("-1e308", is_number=True),
    "least": AnnotationText("5e-324", is_number=True),
    "beyond 64 bits": AnnotationText("99999999999999999999", is_number=True),
    "300 digits": AnnotationText("9" * 300, is_number=True),
    "beyond doubles": AnnotationText("1e400"),
    "400 digits": AnnotationText("9" * 400),
    "empty": AnnotationText(""),
    "a blank": AnnotationText(" "),
    "blanks around it": AnnotationText(" 2000 "),
    "a line's end": AnnotationText("2000\n"),
    "words": AnnotationText("abc"),
    "not available": AnnotationText("N/A"),
    "none": AnnotationText("None"),
    "null": AnnotationText("null"),
    "no number": AnnotationText("nan"),
    "no number, capital": AnnotationText("NaN"),
    "infinite": AnnotationText("inf"),
    "minus infinite": AnnotationText("-Infinity"),
    "a unit": AnnotationText("2000m"),
    "a binary unit": AnnotationText("2Gi"),
    "hexadecimal": AnnotationText("0x10"),
    "underscores": AnnotationText("1_000"),
    "a comma": AnnotationText("1,5"),
    "another script": AnnotationText("٣"),
    "wide digits": AnnotationText("\uff11\uff12"),
    "a zero byte": AnnotationText("1\x00"),
    "an object": AnnotationText('{"a": 1}'),
    "with a time, as another system has it": AnnotationText("0.63012,2023-10-17T15:04:32Z"),
    "100 kB of digits": AnnotationText("9" * 100_000),
    "100 kB of words": AnnotationText("x" * 100_000),
    "100 kB of signs": AnnotationText("-" * 100_000),
    "100 kB of exponents": AnnotationText("1e" + "0" * 100_000),
}

AMOUNTS: Final = (
    *QUANTITIES, "", " ", "0", "-1", "-9Ei", "1Ei", "9" * 400, "1e308", "5e-324", "0.0000000001", "1" * 5000,
    "x" * 100_000, "true", "4 cores", "1e", "e1", ".", "+", "Ki", 0, -1, 10**30, 1.5, 1e308, -0.0, True, None,
    [], [1], {}, {"a": 1},
)  # fmt: skip
"""Amounts of resources, valid or not."""


def node(name: str, annotations: Mapping[str, Any] | None = None, allocatable: Any = ROOM) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "annotations": annotations},
        "status": {"allocatable": dict(allocatable) if allocatable is ROOM else allocatable},
    }


def pod(name: str = "p", **requests: Any) -> dict[str, Any]:
    """A pod with one container in the namespace `d`."""
    container = {
        "name": "c",
        "resources": {"requests": {key.replace("_", "-"): amount for key, amount in requests.items()}},
    }
    return {"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"containers": [container]}}


def body(pod: Mapping[str, Any], nodes: Iterable[Any], verb: str = "prioritize") -> dict[str, Any]:
    """A request body with whole nodes; for preempt, with node names, as kube-scheduler sends it."""
    if verb == "preempt":
        victims = {
            node["metadata"]["name"]: {"Pods": [{"UID": "u"}], "NumPDBViolations": 0} for node in nodes
        }
        return {"Pod": pod, "NodeNameToMetaVictims": victims}
    return {"Pod": pod, "Nodes": {"items": list(nodes)}}
