"""What is to be cleared out of ledgers: entries of binds that never came to an end, and what does not count any more.

A process that is stopped between its two writes leaves an entry for a pod that is on no node. The leader finds it here
and has it taken out when it has stood for longer than a bind takes. No card can be given twice by that, however long
the bind is late: the pod is changed first, so its Binding is refused (`extender.binding`).
"""

from collections.abc import Container, Generator, Iterator, Mapping
from typing import Literal, NamedTuple

from nodewise.agent import ObjectKey
from nodewise.agents.gpu import books as accounts
from nodewise.agents.gpu import ledger as ledgers
from nodewise.agents.gpu.ledger import Ledger
from nodewise.agents.gpu.state import LEDGER_PREFIX, NodeSlot, Slot
from nodewise.binder import LedgerLease

Why = Literal["unbound", "unknown", "stale"]
"""`unbound`: the pod is on no node. `unknown`: nobody knows of the pod, which may be news to us, or gone. `stale`: the
entry does not count any more, and the next bind to the node takes it out if nobody does before."""


class Loose(NamedTuple):
    """An entry that is not known to be of a pod on the node."""

    node: str
    uid: str
    pod: ObjectKey
    seen: str
    """The version of the pod on which it was planned."""
    why: Why


def loose(agent_state: Slot, leases: Mapping[ObjectKey, LedgerLease]) -> Generator[None, None, list[Loose]]:
    """All there are, in ledgers of nodes that are gone as well."""
    found: list[Loose] = []
    for name, node in agent_state.nodes.items():
        if _is_suspect(node, agent_state):
            found += _of(name, ledgers.read_text(node.holdings), agent_state)
        yield
    for name, lease in _others(leases, agent_state.nodes):
        found += _of(name, ledgers.read(lease), agent_state)
        yield
    return found


def abandoned(
    agent_state: Slot, leases: Mapping[ObjectKey, LedgerLease], nodes: Container[str]
) -> Generator[None, None, list[LedgerLease]]:
    """The ledgers of nodes that are gone in which nothing counts, and nothing stands that we cannot read."""
    found: list[LedgerLease] = []
    for name, lease in _others(leases, nodes):
        ledger = ledgers.read(lease)
        fates = {accounts.fate(uid, entry, name, agent_state.pods) for uid, entry in ledger.entries.items()}
        if fates <= {"stale"} and not ledger.unreadable and not ledger.problem:
            found.append(lease)
        yield
    return found


def _others(
    leases: Mapping[ObjectKey, LedgerLease], nodes: Container[str]
) -> Iterator[tuple[str, LedgerLease]]:
    for (_, key), lease in leases.items():
        name = key.removeprefix(LEDGER_PREFIX)
        if name != key and name not in nodes:
            yield name, lease


def _is_suspect(node: NodeSlot, agent_state: Slot) -> bool:
    """Whether it is worth reading the ledger: of thousands only some."""
    if node.books.stale or node.books.undecided:
        return True
    return any(
        one.source == "ledger" and _is_unbound(one.pod, agent_state) for one in node.books.held.values()
    )


def _is_unbound(pod: str, agent_state: Slot) -> bool:
    namespace, _, name = pod.partition("/")
    known = agent_state.pods.by_key.get((namespace, name))
    return known is None or not known.spec.nodeName


def _of(node: str, ledger: Ledger, agent_state: Slot) -> Iterator[Loose]:
    for uid, entry in ledger.entries.items():
        fate = accounts.fate(uid, entry, node, agent_state.pods)
        if fate != "counts":
            why: Why = "stale" if fate == "stale" else "unknown"
            yield Loose(node, uid, entry.key, entry.seen, why)
        elif not agent_state.pods.by_key[entry.key].spec.nodeName:
            yield Loose(node, uid, entry.key, entry.seen, "unbound")
