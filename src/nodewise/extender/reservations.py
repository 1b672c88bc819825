"""Entries in nodes' ledgers: what a pod is to hold on a node stands there before the pod is bound.

A ledger is a Lease that every replica writes by compare-and-swap. Each node has a desk of its own. Claims that come
while one write is under way wait together, each planned upon those before it, and go in the next write together: any
number of binds to one node is a few writes, and no node waits for another. From its planning on, a claim shows in the
snapshot, so that no filter call gives its cards to somebody else.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from nodewise.agent import Snapshot
from nodewise.binder import (
    HOLDINGS,
    LEDGER,
    AllocationStateBuilder,
    BindPlan,
    BindPlugin,
    LedgerLease,
    LedgerMetadata,
    Refusal,
)
from nodewise.clock import Clock
from nodewise.errors import UNREADABLE, Conflict, NodewiseError, Unavailable
from nodewise.extender.snapshot_cache import Override
from nodewise.kube.api import Api, NotFound
from nodewise.kube.resources import LEASES
from nodewise.kube.store import Store
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

CALL_S: Final = 2.0
"""Deadline of one call about a ledger: two fit before kube-scheduler gives up."""
MOST_TRIES: Final = 10
"""Writes that lose against another replica, in a row. Each means that another one won."""
_PAUSE_S: Final = 0.01
"""After the second lost write in a row, times the number of lost ones."""

Holdings = dict[str, msgspec.Raw]
"""Entries by pod uid, as JSON."""

_encode: Final = msgspec.json.Encoder().encode
_read: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Views(Protocol):
    """Who keeps the snapshot (`world.WorldKeeper`)."""

    snapshot: Snapshot

    def apply_response(self, name: str, response: bytes) -> Any: ...

    def amend(
        self, key: Hashable, agent: str, amend: Callable[[Any], Any], override: Override | None = None
    ) -> None: ...

    def withdraw(self, key: Hashable) -> None: ...


class Ground(NamedTuple):
    """What desks stand on."""

    api: Api
    namespace: str
    """Where ledgers are: our own."""
    ledgers: Store[Any]
    """Of `LedgerLease`."""
    snapshots: Views
    binder: BindPlugin[Any, Any]
    state: AllocationStateBuilder[Any]
    clock: Clock
    meters: MetricsRegistry


class _Claim:
    """A pod that waits for its entry."""

    def __init__(self, pod: Any, plan: BindPlan) -> None:
        self.pod = pod
        self.plan = plan
        self.answer: asyncio.Future[BindPlan | Refusal | None] = asyncio.get_running_loop().create_future()

    @property
    def uid(self) -> str:
        return str(self.pod.metadata.uid)

    def settle(self, answer: BindPlan | Refusal | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: NodewiseError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Desk:
    """One node's ledger, as one process writes it."""

    def __init__(self, node: str, ground: Ground) -> None:
        self._node = node
        self._on = ground
        self._name = f"{ground.binder.name}-{node}"
        self._path = LEASES.path(ground.namespace, self._name)
        self._waiting: dict[str, _Claim] = {}
        self._under_way: Mapping[str, BindPlan] = {}
        """What is being written; it may come through though nobody waits for it any more."""
        self._leaving: dict[str, frozenset[str]] = {}
        """By pod uid: an entry that was planned on one of these versions of the pod is to go."""
        self._planned_on: LedgerLease | None = None
        self._gone: LedgerLease | None = None
        """What the store still shows and the server no longer has."""
        self._writing: asyncio.Task[None] | None = None
        self._foreseen: tuple[LedgerLease | None, Mapping[str, BindPlan], LedgerLease] | None = None

    async def claim(self, pod: Any) -> BindPlan | Refusal | None:
        """Have what the pod is to hold in the ledger, or say why it cannot be; None: it needs no entry.

        Kinds of `NodewiseError` where the API server does not take it; then it may stand there all the same.
        """
        planned = self._plan(pod)
        if not isinstance(planned, BindPlan):
            return planned
        claim = self._waiting[str(pod.metadata.uid)] = _Claim(pod, planned)
        self._show()
        self._start()
        try:
            return await claim.answer
        finally:
            self._forget([claim])

    async def release(self, uid: str, seen: Collection[str]) -> None:
        """Take out the pod's entry, if it was planned on one of these versions.

        Only for versions on which the pod can no longer be bound to this node.
        """
        self._leaving[uid] = self._leaving.get(uid, frozenset()) | frozenset(seen)
        self._start()
        writing = self._writing
        if writing is not None:
            await asyncio.shield(writing)

    def _ledger(self) -> LedgerLease | None:
        """The newest that we know of; None: there is none."""
        record: LedgerLease | None = self._on.ledgers.get(self._on.namespace, self._name)
        return None if record is not None and record is self._gone else record

    def _plan(self, pod: Any) -> BindPlan | Refusal | None:
        """Upon the newest ledger and all that wait; each plan upon the ones before it."""
        if not self._plans():
            self._planned_on = self._ledger()
        self._show()
        return self._on.binder.bind(pod, self._node, self._on.snapshots.snapshot, self._on.clock.now())

    def _show(self) -> None:
        """Have the snapshot show the ledger with what waits."""
        ledger, on = self._expected(), self._on
        on.snapshots.amend(
            self._path,
            on.binder.name,
            lambda agent_state: on.state.amended(agent_state, self._node, ledger),
            Override(on.binder.allocation_records, (on.namespace, self._name), ledger),
        )
        if not self._plans():
            on.snapshots.withdraw(self._path)

    def _plans(self) -> Mapping[str, BindPlan]:
        """What is not in the ledger and may come there."""
        return {**self._under_way, **{uid: claim.plan for uid, claim in self._waiting.items()}}

    def _expected(self) -> LedgerLease | None:
        """The ledger as it will be; the same object while nothing changes."""
        ledger = self._ledger()
        plans = self._plans()
        if self._foreseen is None or self._foreseen[0] is not ledger or self._foreseen[1] != plans:
            meta = ledger.metadata if ledger else LedgerMetadata(self._name, self._on.namespace)
            written = _encode(_changed(holdings(ledger), plans, {})).decode()
            annotations = {**(meta.annotations or {}), HOLDINGS: written}
            shown = LedgerLease(msgspec.structs.replace(meta, annotations=annotations))
            self._foreseen = (ledger, plans, shown)
        return self._foreseen[2] if plans else ledger

    def _start(self) -> None:
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())

    def _forget(self, claims: Iterable[_Claim]) -> None:
        """These wait no longer; one that came again in between does."""
        claims = [reservation for reservation in claims if self._waiting.get(reservation.uid) is reservation]
        for reservation in claims:
            del self._waiting[reservation.uid]
        if claims:
            self._show()

    async def _write_all(self) -> None:
        """Write until nothing waits. Whatever happens, nobody waits for ever."""
        error = NodewiseError(f"ledger {self._name}: this is a defect of ours; the log says more")
        lost = 0
        try:
            while self._waiting or self._leaving:
                failed = await self._round()
                lost = lost + 1 if failed else 0
                if failed and lost == MOST_TRIES:
                    error = failed
                    break
                await self._on.clock.sleep(_PAUSE_S * max(lost - 1, 0))
        except NodewiseError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - who waits is told, and the next one may have more luck
            logs.emit("agent_failed", agent=self._on.binder.name, exc_info=failure)
        finally:
            self._writing = None
            self._give_up(error)

    def _give_up(self, error: NodewiseError) -> None:
        for claim in self._waiting.values():
            claim.fail(error)
        if self._leaving:
            logs.emit("claims_left", node=self._node, pods=sorted(self._leaving), error=str(error))
        self._leaving.clear()
        self._waiting.clear()
        self._show()

    async def _round(self) -> NodewiseError | None:
        """One write of all that waits. If it was not done, why; then what stands there is known now."""
        ledger = self._ledger()
        if ledger is not self._planned_on:
            self._plan_again()
        self._planned_on = ledger
        batch = {uid: (claim, claim.plan) for uid, claim in self._waiting.items()}
        leaving = dict(self._leaving)
        before = holdings(ledger)
        self._under_way = {uid: plan for uid, (_, plan) in batch.items()}
        try:
            after = _changed(before, self._under_way, leaving)
            failed = await self._write(ledger, after) if after != before else None
        finally:
            self._under_way = {}
        if failed:
            self._show()
            return failed
        for uid, seen in leaving.items():
            if self._leaving.get(uid) == seen:
                del self._leaving[uid]
        for claim, plan in batch.values():
            claim.settle(plan)
        self._forget(claim for claim, _ in batch.values())
        self._show()
        return None

    def _plan_again(self) -> None:
        """Somebody else wrote: what waits is planned anew, in the order in which it came."""
        claims = list(self._waiting.values())
        self._waiting.clear()
        try:
            for claim in claims:
                planned = self._plan(claim.pod)  # upon those before it, which wait again
                if isinstance(planned, BindPlan):
                    claim.plan = planned
                    self._waiting[claim.uid] = claim
                else:
                    claim.settle(planned)
        except Exception:
            self._waiting = {claim.uid: claim for claim in claims}  # who are told that nothing comes of it
            raise
        self._show()

    async def _write(self, ledger: LedgerLease | None, after: Holdings) -> NodewiseError | None:
        """Errors that trying again does not help against are raised, the others returned."""
        body = self._body(ledger, after)
        try:
            if ledger is None:
                path = LEASES.path(self._on.namespace)
                answer = await self._on.api.create(path, body, timeout_s=CALL_S)
            else:
                answer = await self._replaced(body)
        except (Conflict, Unavailable) as error:
            outcome = "conflict" if isinstance(error, Conflict) else "failed"
            self._on.meters.count("ledger_writes_total", outcome=outcome)
            await self._look()  # a write that failed may have come through all the same
            return error
        self._on.meters.count("ledger_writes_total", outcome="ok")
        written = self._learn(answer)
        if written is not None and written.metadata.resourceVersion == _version(answer):
            self._planned_on = written  # what came in the meantime was planned upon this write
        return None

    async def _replaced(self, body: Mapping[str, Any]) -> bytes:
        try:
            return await self._on.api.replace(self._path, body, timeout_s=CALL_S)
        except NotFound as error:
            raise Conflict(error.what, error.problems) from error

    def _body(self, ledger: LedgerLease | None, after: Holdings) -> Mapping[str, Any]:
        meta: dict[str, Any] = {
            "name": self._name,
            "namespace": self._on.namespace,
            "labels": {LEDGER: self._on.binder.name},
            "annotations": {HOLDINGS: _encode(after).decode()},
        }
        if ledger is not None:
            meta["resourceVersion"] = ledger.metadata.resourceVersion
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta}

    async def _look(self) -> None:
        """What stands there now."""
        known = self._ledger()
        try:
            self._learn(await self._on.api.get(self._path, timeout_s=CALL_S))
        except NotFound:
            self._gone = known

    def _learn(self, answer: bytes) -> LedgerLease | None:
        record: LedgerLease | None = self._on.snapshots.apply_response(
            self._on.binder.allocation_records, answer
        )
        return record


def holdings(ledger: LedgerLease | None) -> Holdings:
    """The entries of a ledger; none where they cannot be read, which the agent notes as a problem."""
    text = (ledger.metadata.annotations or {}).get(HOLDINGS) if ledger is not None else None
    try:
        return _read(text) if text else {}
    except UNREADABLE:
        return {}


def _changed(
    before: Holdings, plans: Mapping[str, BindPlan], leaving: Mapping[str, frozenset[str]]
) -> Holdings:
    """The entries without those that no longer count or are to go, and with the planned ones."""
    stale = frozenset[str]().union(*(plan.stale for plan in plans.values()))
    kept = {
        uid: entry
        for uid, entry in before.items()
        if uid not in stale and not (uid in leaving and _seen(entry) in leaving[uid])
    }
    return kept | {uid: msgspec.Raw(_encode(plan.entry)) for uid, plan in plans.items()}


class _Planned(msgspec.Struct, frozen=True):
    seen: str = ""


_planned: Final = msgspec.json.Decoder(_Planned).decode
_lease: Final = msgspec.json.Decoder(LedgerLease).decode


def _version(answer: bytes) -> str:
    try:
        return _lease(answer).metadata.resourceVersion
    except UNREADABLE:
        return ""


def _seen(entry: msgspec.Raw) -> str:
    """The version of the pod that an entry was planned on."""
    try:
        return _planned(entry).seen
    except UNREADABLE:
        return ""
