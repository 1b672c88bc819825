"""Nodes, pods and ledgers in, the gpu agent's state out; the same code online and offline.

Changes are applied one by one, and only the nodes that they concern are computed again: at 80 binds a second there is
no time to look at 20,000 pods. The state is the same as one that is built from nothing.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ClusterState, Inputs, NodeIndex, ObjectKey
from nodewise.agents.gpu import books as accounts
from nodewise.agents.gpu import cards as decks
from nodewise.agents.gpu import census as censuses
from nodewise.agents.gpu import fragmentation, limits, processors
from nodewise.agents.gpu import layout as layouts
from nodewise.agents.gpu import ledger as ledgers
from nodewise.agents.gpu import typical as typicals
from nodewise.agents.gpu.books import NodeBooks, Pods
from nodewise.agents.gpu.cards import NodeCards
from nodewise.agents.gpu.census import Census
from nodewise.agents.gpu.fragmentation import NOBODY, Typical
from nodewise.agents.gpu.layout import Layout
from nodewise.agents.gpu.ledger import Ledger
from nodewise.agents.gpu.pods import BookedPod
from nodewise.agents.gpu.processors import Processors
from nodewise.agents.gpu.profile import Profile
from nodewise.agents.gpu.rations import Rations
from nodewise.binder import HOLDINGS, AllocationStateBuilder, LedgerLease
from nodewise.state import NODES, Change

PODS: Final = "pods"
LEDGERS: Final = "ledgers"
CENSUS: Final = "gpu_typical_pods"
"""Keys of `World.objects`."""
LEDGER_PREFIX: Final = "gpu-"
"""Of the name of a node's ledger; the rest is the node's name."""

_PODS: Final = 256
"""Pods that are taken in between two pauses."""
_MANY: Final = 8
"""Where more than one node in so many is another, all are laid out anew."""
_NAMES: Final = 1024
"""Names that came since all nodes were laid out, besides as many as there were: most of them are gone again."""


class NodeSlot(NamedTuple):
    """One node, and who holds what of it."""

    cards: NodeCards
    books: NodeBooks
    holdings: str
    """The text of its ledger."""
    bound: tuple[BookedPod, ...]
    """The pods there that ask for cards."""
    problems: tuple[str, ...]
    """What is wrong with the node's labels, its books and its pods, in words."""
    cpu_held: int
    """Milli-CPU that pods with cards request."""


class Slot(NamedTuple):
    """All nodes that have cards, or of which somebody says that a pod holds some."""

    layout: Layout
    rows: Mapping[str, int]
    """By node name: its column in the layout; only nodes with cards."""
    nodes: Mapping[str, NodeSlot]
    pods: Pods
    cpu_free: NDArray[np.int64] | None = None
    """(N+1), by column of the layout: milli-CPU that no pod requests, as far as pods are kept; None: nobody knows."""
    typical: Typical = NOBODY
    """The pods that usually come."""


class GpuState(AllocationStateBuilder[Slot]):
    """Remembers what was read and laid out."""

    inputs = Inputs(frozenset({PODS, LEDGERS, CENSUS}), node_objects=True, metrics=False)

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._reset()

    def _reset(self) -> None:
        """Begin from nothing."""
        self._version = ""
        """Until which the pods were known when undecided entries were looked at last."""
        self._cards: dict[str, NodeCards] = {}
        self._rations = Rations()
        self._names = 0
        """So many names in the layout, and all nodes are laid out anew."""
        self._bound: dict[str, dict[ObjectKey, BookedPod]] = {}
        """By node."""
        self._holdings: dict[str, tuple[str, Ledger]] = {}
        """By node: its ledger as text, and as read."""
        self._claimed: dict[ObjectKey, set[str]] = {}
        """By pod: the nodes whose ledgers name it."""
        self._nodes: dict[str, NodeSlot] = {}
        self._problems: dict[str, tuple[str, ...]] = {}
        self._undecided: set[str] = set()
        """Nodes with an entry that a newer version of the pods may end."""
        self._dirty: set[str] = set()
        """Nodes to be computed again."""
        self._moved: set[str] = set()
        """Nodes to be laid out again."""
        self._processors = Processors()
        self._seen_census: tuple[Any, int] = (None, 0)
        """What was counted, and the day on which that was looked at."""
        self._classes: typicals.Classes = {}
        self._typical = NOBODY
        self._index = NodeIndex()
        self._rows: dict[str, int] = {}
        self._layout = layouts.build((), np.zeros(1, np.intp), self._profile.tiles)

    def problems(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> Mapping[str, tuple[str, ...]]:  # noqa: ARG002
        """What is wrong with nodes and their books, as of the newest slot."""
        return {f"node {name}": problems for name, problems in self._problems.items()}

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Slot]:
        """Apply the changes and compute the nodes that they concern."""
        if cluster_state.changes is None:
            self._reset()
        yield from self._apply_nodes(cluster_state.changes_of(NODES))
        yield from self._apply_ledgers(cluster_state.changes_of(LEDGERS))
        yield from self._apply_pods(cluster_state.changes_of(PODS))
        pods = Pods(cluster_state.objects.get(PODS, {}), cluster_state.versions.get(PODS, ""))
        if pods.version != self._version:
            # an entry that a version ended stays ended only as long as versions grow
            self._dirty |= (
                self._undecided if _is_later(pods.version, self._version) else self._holdings.keys()
            )
            self._version = pods.version
        yield from self._renew(pods)
        yield from self._lay_out(cluster_state.nodes)
        cpu_free = yield from self._processors.free(self._rows, self._cpu_held)
        yield from self._follow_census(cluster_state.objects.get(CENSUS, {}), typicals.day(cluster_state.now))
        return Slot(self._layout, self._rows, dict(self._nodes), pods, cpu_free, self._typical)

    def amended(self, agent_state: Slot, node: str, ledger: LedgerLease | None) -> Slot:
        """The slot with another ledger of one node."""
        before = agent_state.nodes.get(node)
        text = holdings(ledger)
        if before is None or before.holdings == text:
            return agent_state
        read = ledgers.read(ledger)
        one = self._computed(node, before.cards, (text, read), before.bound, agent_state.pods)
        nodes, row = {**agent_state.nodes, node: one}, agent_state.rows.get(node)
        if row is None:
            return agent_state._replace(nodes=nodes)
        layout, cpu_free = (
            layouts.with_row(agent_state.layout, row, one.cards, one.books),
            agent_state.cpu_free,
        )
        if cpu_free is not None and one.cpu_held != before.cpu_held:
            cpu_free = cpu_free.copy()
            cpu_free[row] += before.cpu_held - one.cpu_held
        return agent_state._replace(layout=layout, nodes=nodes, cpu_free=cpu_free)

    def _apply_nodes(self, changes: Iterable[tuple[ObjectKey, Change[Any]]]) -> Generator[None, None, None]:
        for (_, name), change in changes:
            if change.new is not None:
                self._cards[name] = decks.read(change.new, self._profile)
            else:
                self._cards.pop(name, None)
            self._rations.put(name, self._cards.get(name))
            self._processors.node(name, change.new)
            self._dirty.add(name)
            yield
        self._dirty.update(self._rations.settle())

    def _apply_ledgers(
        self, changes: Iterable[tuple[ObjectKey, Change[LedgerLease]]]
    ) -> Generator[None, None, None]:
        for (_, name), change in changes:
            if name.startswith(LEDGER_PREFIX):
                self._take_ledger(name.removeprefix(LEDGER_PREFIX), change.new)
            yield

    def _take_ledger(self, node: str, lease: LedgerLease | None) -> None:
        for pod in _named(self._holdings.pop(node, None)):
            self._claimed.get(pod, set()).discard(node)
            if not self._claimed.get(pod):
                self._claimed.pop(pod, None)
        if lease is not None:
            self._holdings[node] = (holdings(lease), ledgers.read(lease))
            for pod in _named(self._holdings[node]):
                self._claimed.setdefault(pod, set()).add(node)
        self._dirty.add(node)

    def _follow_census(self, found: Mapping[ObjectKey, Census], today: int) -> Generator[None, None, None]:
        """Make the tables of typical pods anew where others count now."""
        only = next(iter(found.values()), None)
        if self._seen_census == (only, today):
            return
        counted = yield from censuses.read(only)
        classes = typicals.classes(counted.history, today)
        if classes != self._classes:
            self._typical = yield from fragmentation.building(classes, self._profile.counts)
            self._classes = classes
        self._seen_census = (only, today)

    def _apply_pods(
        self, changes: Iterable[tuple[ObjectKey, Change[BookedPod]]]
    ) -> Generator[None, None, None]:
        for number, (key, change) in enumerate(changes):
            self._take_pod(key, change.old, change.new)
            if number % _PODS == 0:
                yield

    def _take_pod(self, key: ObjectKey, old: BookedPod | None, new: BookedPod | None) -> None:
        old, plain_old = _sorted(old)
        new, plain_new = _sorted(new)
        self._processors.move(plain_old, plain_new)
        if old is not None and old.spec.nodeName:
            there = self._bound.get(old.spec.nodeName, {})
            there.pop(key, None)
            if not there:
                self._bound.pop(old.spec.nodeName, None)
            self._dirty.add(old.spec.nodeName)
        if new is not None and new.spec.nodeName:
            self._bound.setdefault(new.spec.nodeName, {})[key] = new
            self._dirty.add(new.spec.nodeName)
        self._dirty |= self._claimed.get(key, set())

    def _renew(self, pods: Pods) -> Generator[None, None, None]:
        """Compute the nodes that are to be; those that went, or hold nothing and have no cards, are left out."""
        while self._dirty:
            name = next(iter(self._dirty))
            cards = self._cards.get(name)
            bound = tuple(self._bound.get(name, {}).values())
            one = None
            if cards is not None and (cards.cards or cards.problems or bound or name in self._holdings):
                cards = self._rations.limited(cards)
                one = self._computed(name, cards, self._holdings.get(name, _NO_LEDGER), bound, pods)
            self._put(name, one)
            self._dirty.discard(name)
            yield

    def _computed(
        self,
        node: str,
        cards: NodeCards,
        ledger: tuple[str, Ledger],
        bound: tuple[BookedPod, ...],
        pods: Pods,
    ) -> NodeSlot:
        books = accounts.of_node(node, ledger[1], bound, pods, self._profile)
        books = books._replace(ledger_bytes=limits.ledger_bytes(node, ledger[0]))
        problems = (*cards.problems, *books.problems, *accounts.conflicts(books, cards))
        return NodeSlot(cards, books, ledger[0], bound, problems, processors.held(books, bound, pods))

    def _put(self, name: str, one: NodeSlot | None) -> None:
        self._problems.pop(name, None)
        self._undecided.discard(name)
        if one is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = one
            if one.books.undecided:
                self._undecided.add(name)
            if one.problems:
                self._problems[name] = one.problems
        self._moved.add(name)
        self._processors.touch(name)

    def _lay_out(self, index: NodeIndex) -> Generator[None, None, None]:
        """Bring the layout up to date: what moved, or everything where other nodes have cards."""
        with_cards = {name for name in self._moved if self._has_cards(name)}
        known = {name for name in self._moved if name in self._rows}
        is_worn = len(self._layout.capacity) > len(self._rations) or _names(self._layout) > self._names
        if is_worn or with_cards != known or len(self._moved) * _MANY > len(self._nodes) + _MANY * _MANY:
            yield from self._lay_out_all(index)
            return
        if index is not self._index:
            self._layout = self._layout._replace(rows=_numbered(index, self._rows))
            self._index = index
        while self._moved:
            name = self._moved.pop()
            if name in self._rows:
                one = self._nodes[name]
                self._layout = layouts.with_row(self._layout, self._rows[name], one.cards, one.books)
            yield

    def _cpu_held(self, name: str) -> int:
        return self._nodes[name].cpu_held

    def _has_cards(self, name: str) -> bool:
        return name in self._nodes and bool(self._nodes[name].cards.cards)

    def _lay_out_all(self, index: NodeIndex) -> Generator[None, None, None]:
        names = [name for name in index.known if self._has_cards(name)]
        rows = {name: row for row, name in enumerate(names)}
        given = [(self._nodes[name].cards, self._nodes[name].books) for name in names]
        self._layout = yield from layouts.building(given, _numbered(index, rows), self._profile.tiles)
        self._rows, self._index = rows, index
        self._names = 2 * _names(self._layout) + _NAMES
        self._moved.clear()


_NO_LEDGER: Final = ("", ledgers.EMPTY)


def holdings(ledger: LedgerLease | None) -> str:
    """The text of a ledger's entries; empty where there is none."""
    return (ledger.metadata.annotations or {}).get(HOLDINGS, "") if ledger is not None else ""


def _is_later(version: str, before: str) -> bool:
    return version.isdecimal() and before.isdecimal() and int(version) > int(before)


def _sorted(pod: BookedPod | None) -> tuple[BookedPod | None, BookedPod | None]:
    """One that may hold cards comes first, any other one second."""
    return (pod, None) if pod is not None and accounts.may_hold_cards(pod) else (None, pod)


def _names(layout: Layout) -> int:
    return len(layout.names) + len(layout.models)


def _named(ledger: tuple[str, Ledger] | None) -> Iterable[ObjectKey]:
    """The pods that a ledger names."""
    return [entry.key for entry in ledger[1].entries.values()] if ledger is not None else ()


def _numbered(index: NodeIndex, rows: Mapping[str, int]) -> Any:
    """By node number: the column of the layout; the one after the last for a node without cards."""
    found = [rows.get(name, len(rows)) for name in index.known]
    return np.array([*found, len(rows)], np.intp)
