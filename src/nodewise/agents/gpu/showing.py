"""The books as `GET /state/gpu` shows them: per node its cards, what is held of each, and who holds it.

?node=NAME   one node only
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any

import msgspec

from nodewise.agents.gpu.state import NodeSlot, Slot

_encode = msgspec.json.encode


def state(agent_state: Slot, query: Mapping[str, str]) -> Generator[None, None, bytes]:
    """JSON, made node by node: `{"nodes": {name: {"cards", "pods", "problems"}}}`, in the order of their names."""
    wanted = query.get("node")
    names: Iterable[str] = (
        sorted(agent_state.nodes) if wanted is None else {wanted} & agent_state.nodes.keys()
    )
    parts = []
    for name in names:
        parts.append(_encode(name) + b": " + _encode(_node(agent_state.nodes[name])))
        yield
    return b'{"nodes": {' + b",\n".join(parts) + b"}}\n"


def _node(node: NodeSlot) -> dict[str, Any]:
    return {
        "cards": {name: _card(node, at, name) for at, name in enumerate(node.cards.cards)},
        "pods": {
            uid: {"pod": one.pod, "containers": one.cards, "cards": one.amounts, "by": one.source}
            for uid, one in node.books.held.items()
        },
        "problems": node.problems,
    }


def _card(node: NodeSlot, at: int, name: str) -> dict[str, Any]:
    cards = node.cards
    return {
        "model": cards.models[at],
        "usable": name not in cards.unusable,
        "capacity": {resource: amounts[at] for resource, amounts in cards.capacity.items() if amounts[at]},
        "held": node.books.amounts.get(name, {}),
        "tiles_held": sorted(node.books.tiles.get(name, ())),
        "tiles_off": sorted(cards.tiles_off.get(name, ())),
    }
