"""Nodes of equal cards, as layouts, and a plain reckoning of fragmentation to compare with."""

from collections.abc import Mapping, Sequence

import numpy as np

from nodewise.agents.gpu import books, layout
from nodewise.agents.gpu.amounts import Amounts
from nodewise.agents.gpu.cards import NodeCards
from nodewise.agents.gpu.demand import ContainerDemand, Demand
from nodewise.agents.gpu.layout import Layout
from nodewise.agents.gpu.typical import PodClass

COUNT = "nvidia.com/gpu"
MILLI = "nvidia.com/gpu-milli"
WHOLE = 1000


def board(*nodes: Sequence[int], models: Mapping[int, Sequence[str]] | None = None) -> Layout:
    """By node, what is free of each of its cards, in thousandths."""
    rows = [_node(free, (models or {}).get(at)) for at, free in enumerate(nodes)]
    return layout.build(rows, np.arange(len(rows) + 1), "")


def _node(free: Sequence[int], models: Sequence[str] | None) -> tuple[NodeCards, books.NodeBooks]:
    names = tuple(f"card{at}" for at in range(len(free)))
    capacity = {COUNT: (WHOLE,) * len(free), MILLI: (WHOLE,) * len(free)}
    held = {name: {MILLI: WHOLE - left} for name, left in zip(names, free, strict=True)}
    cards = NodeCards(names, capacity, tuple(models or [""] * len(free)))
    return cards, books.EMPTY._replace(amounts=held)


def share(milli: int, cards: int = 1, cpu_milli: int = 0, models: Sequence[str] | None = None) -> PodClass:
    wanted = Amounts({COUNT: 1, MILLI: milli})
    return PodClass(cards, wanted, cpu_milli, None if models is None else frozenset(models))


def demand(milli: int, cards: int = 1, cpu_milli: int = 0) -> Demand:
    one = ContainerDemand("main", cards, Amounts({COUNT: 1, MILLI: milli}))
    return Demand((one,), cpu_milli=cpu_milli)


def plain(
    classes: Mapping[PodClass, float], free: Sequence[int], cpu_milli: float, models: Sequence[str]
) -> float:
    """The measure of one node, in cards, as the paper writes it."""
    total = sum(classes.values())
    found = 0.0
    for one, often in classes.items():
        wanted = one.per_card[MILLI]
        fit = [
            left
            for left, model in zip(free, models, strict=True)
            if left >= wanted and (one.models is None or model in one.models)
        ]
        hosted = len(fit) >= one.cards and cpu_milli >= one.cpu_milli
        found += often / total * (sum(free) - (sum(fit) if hosted else 0))
    return found / WHOLE
