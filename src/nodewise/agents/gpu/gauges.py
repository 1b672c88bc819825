"""The books as numbers for Prometheus: totals, and per card and node where these are not too many.

To write 1,000 series takes the metrics page 7 ms, in which nothing else is answered.
"""

from collections.abc import Generator, Mapping
from typing import Final

from nodewise.agents.gpu.profile import Profile
from nodewise.agents.gpu.state import NodeSlot, Slot

Gauge = tuple[str, tuple[tuple[str, str], ...]]
"""Name, and labels."""

CARD_SHARE: Final = "gpu_card_held_share"
PROBLEMS: Final = "gpu_node_problems"


def totals(agent_state: Slot, profile: Profile) -> Mapping[Gauge, float]:
    """Of all nodes; a few milliseconds at 40,000 cards."""
    layout = agent_state.layout
    exists = layout.name_codes >= 0
    held = has = 0.0
    for resource in profile.counts:
        if resource in layout.capacity:
            capacity = layout.capacity[resource]
            some = capacity > 0
            has += float(capacity[some].sum(dtype=float))
            held += float((capacity[some] - layout.free[resource][some]).sum(dtype=float))
    return {
        ("gpu_nodes", ()): layout.size,
        ("gpu_cards", (("state", "usable"),)): int(layout.usable.sum()),
        ("gpu_cards", (("state", "unusable"),)): int((exists & ~layout.usable).sum()),
        ("gpu_held_share", ()): held / has if has else 0.0,
        ("gpu_pods", ()): sum(len(node.books.held) for node in agent_state.nodes.values()),
        ("gpu_nodes_with_problems", ()): sum(bool(node.problems) for node in agent_state.nodes.values()),
    }


def details(agent_state: Slot, profile: Profile, most: int) -> Generator[None, None, Mapping[Gauge, float]]:
    """By card, and by node with problems; nothing where there are more than `most` of them altogether."""
    cards = int((agent_state.layout.name_codes >= 0).sum())
    if cards + sum(bool(node.problems) for node in agent_state.nodes.values()) > most:
        return {}
    yield
    found: dict[Gauge, float] = {}
    for name, node in agent_state.nodes.items():
        for at, card in enumerate(node.cards.cards):
            labels = (("node", name), ("card", card))
            found[CARD_SHARE, labels] = _share(node, at, card, profile)
        if node.problems:
            found[PROBLEMS, (("node", name),)] = len(node.problems)
        yield
    return found


def _share(node: NodeSlot, at: int, card: str, profile: Profile) -> float:
    """How much of the card's counting resource is held; 0 to 1, more where more is held than there is."""
    capacity = sum(node.cards.capacity[one][at] for one in profile.counts if one in node.cards.capacity)
    held = sum(node.books.amounts.get(card, {}).get(one, 0) for one in profile.counts)
    return held / capacity if capacity else 0.0
