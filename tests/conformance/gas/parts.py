"""The parts that the rows of parts.yaml ask, each with values as a table has them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from nodewise.agents.gpu import amounts, books, cards, demand, labels, ledger, tiles
from nodewise.agents.gpu.books import Pods
from nodewise.agents.gpu.cards import GpuNode
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.pods import BookedPod, GpuPod
from nodewise.agents.gpu.profile import INTEL
from tests.cluster.api import Object
from tests.conformance.gas import notation
from tests.conformance.gas.rows import PartRow


def asked(row: PartRow) -> Any:
    """What the part gives; of a node's cards the fields that the row names. ValueError, OverflowError: it refuses."""
    if row.part == "demand":
        return _demand(row.given, row.annotations)
    found = _plain(_PARTS[row.part](row.given))
    return {field: found[field] for field in row.gives} if row.part == "cards" else found


def _demand(text: str, annotations: Mapping[str, str]) -> None:
    pod = msgspec.convert(notation.pod("p", text, annotations), GpuPod)
    problem = demand.read(pod, INTEL, GpuOptions()).problem
    if problem is not None:
        raise ValueError(problem.text())


def _joined(given: dict[str, str]) -> str:
    return labels.joined(given, min(given))


def _groups(given: list[Any]) -> list[frozenset[str]]:
    tags, *names = given
    groups = labels.groups(labels.joined(tags, min(tags)))
    return [labels.with_groups([name], groups) for name in names]


def _cards(text: str) -> dict[str, Any]:
    return cards.read(_node(text), INTEL)._asdict()


def _node(text: str) -> GpuNode:
    return msgspec.json.decode(msgspec.json.encode(notation.node("n", text)), type=GpuNode)


def _books(given: list[str]) -> list[Any]:
    """What all pods hold, and what is held when the last one is gone."""
    pods = [_running(f"p{number}", text) for number, text in enumerate(given)]
    return [_held(pods), _held(pods[:-1])]


def _held(pods: list[BookedPod]) -> Any:
    by_key = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods}
    found = books.of_node("n1", ledger.EMPTY, pods, Pods(by_key, "1"), INTEL)
    return {card: _short(held) for card, held in found.amounts.items()}


def _running(name: str, text: str) -> BookedPod:
    told = notation.running(text)
    made = notation.pod(name, told.containers, told.annotations)
    made["metadata"]["uid"] = name
    made["spec"]["nodeName"] = told.node
    return msgspec.convert(made, BookedPod)


def _ended(given: dict[str, str]) -> bool:
    metadata = {"name": "p", "deletionTimestamp": given.get("deletionTimestamp")}
    pod: Object = {"metadata": metadata, "status": {"phase": given["phase"]}}
    return books.has_ended(msgspec.convert(pod, BookedPod))


def _short(held: Mapping[str, int]) -> dict[str, int]:
    return {notation.short(resource): amount for resource, amount in held.items()}


def _plain(value: Any) -> Any:
    """Sets in order, tuples as lists, mappings as dicts: as a table has them."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


_PARTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "amount": amounts.exact,
    "books": _books,
    "cards": _cards,
    "devices": labels.devices,
    "divided": lambda given: amounts.divided(*given),
    "ended": _ended,
    "groups": _groups,
    "joined": _joined,
    "links": lambda given: labels.links(given[0], labels.devices(given[1]))[0],
    "reordered": lambda given: tiles.reorder(*given),
    "tiles": ledger.read_tiles,
    "total": amounts.total,
}
