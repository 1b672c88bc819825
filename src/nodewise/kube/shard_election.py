"""Which replica of `nodewise controller --shards N` leads, and which shards each replica holds, by one Lease for the
leader and one for each shard.

A shard is a range of the 64-bit FNV-1a hash of `metadata.uid`, as in `shardSelector` of the API server (KEP-5866,
apimachinery v0.37 pkg/sharding). A replica with fewer shards than another one names itself in an annotation of one of
that replica's Leases, whose holder then stops writing and gives it the Lease. So every replica holds about N/R shards.

The leader's Lease records how many shards there are. Replicas with another number hold none. When the number changes,
the leader first writes it together with the number of Leases that the replicas before may hold, and then writes each of
these Leases once it is free. A replica reads the Lease of a shard, then the record, and then writes the Lease if nobody
else did. So one that read the old record cannot acquire a Lease any more after the leader has written it, and only then
the new number counts.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from nodewise.base.errors import UNREADABLE, Conflict, NodewiseError
from nodewise.kube import leader_election
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.leader_election import PROCESS_ANNOTATION, Elector, LeaseAccess, LeaseSpec, ObservedLease
from nodewise.kube.resource_kinds import LEASES
from nodewise.observe import logs

MOST_SHARDS: Final = 16
"""The rights of the controller name the Lease of each shard."""
SHARDS_ANNOTATION: Final = "nodewise.io/shards"
"""The annotation of the leader's Lease with the number of shards."""
CLOSING_ANNOTATION: Final = "nodewise.io/closing-shards"
"""The annotation of the leader's Lease with the number of Leases that replicas with another number of shards may still
hold; empty if there are none. Until then no shard is held."""
PREFERRED_ANNOTATION: Final = "nodewise.io/preferred-holder"
"""The annotation of a shard's Lease with the identity of the replica that shall get it."""
_HASH_BITS: Final = 64
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_TICK_S: Final = 1.0
_PATIENCE_S: Final = 0.25
"""The delay before a free Lease is acquired, for each shard that the replica holds: those with fewer are faster."""
_DRAIN_S: Final = 1.5
"""The time between the last write to nodes and the release of their Lease, for requests that are under way. It is the
same if a Lease expires (`LeaseTimings`)."""


def shard_lease(shard: int) -> str:
    return f"{leader_election.CONTROLLER_LEASE}-shard-{shard}"


def shard_of(uid: str, shards: int) -> int:
    value = _FNV_OFFSET
    for byte in uid.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return value * shards >> _HASH_BITS


def shard_selector(held: frozenset[int], shards: int) -> str:
    """The `shardSelector` of some of the shards; empty for all of them. Without any, it selects hardly any object."""
    if len(held) == shards:
        return ""
    bounds = [-(-(shard << _HASH_BITS) // shards) for shard in range(shards + 1)]
    ranges = [(bounds[shard], bounds[shard + 1]) for shard in sorted(held)] or [(0, 1)]
    return " || ".join(
        f"shardRange(object.metadata.uid, '{low:#018x}', '{high:#018x}')" for low, high in ranges
    )


class ShardLayout(NamedTuple):
    """The record in the leader's Lease."""

    shards: int = 1
    closing: int = 0

    def is_agreed(self, shards: int) -> bool:
        """Whether replicas with this number of shards may write to nodes."""
        return (self.shards, self.closing) == (shards, 0)


def parse_layout(annotations: Mapping[str, str]) -> ShardLayout:
    """The record; one shard if there is none, as with earlier versions. Fails closed if it cannot be read."""
    shards, closing = (annotations.get(key) or "" for key in (SHARDS_ANNOTATION, CLOSING_ANNOTATION))
    try:
        return ShardLayout(int(shards or 1), int(closing or 0))
    except ValueError:
        return ShardLayout(0, MOST_SHARDS)


class Tenure(NamedTuple):
    """What a replica holds. Equal tenures are the same one: numbers of acquisitions distinguish later ones."""

    lead: int = 0
    """The number of times that this replica has become the leader; 0 while it does not lead."""
    shards: frozenset[tuple[int, int]] = frozenset()
    """The shards that it holds, each with the number of times that it has acquired it."""

    def __bool__(self) -> bool:
        return bool(self.lead or self.shards)


class _ShardElector(Elector):
    """The candidate for the Lease of one shard."""

    def __init__(self, election: "ShardElection", shard: int, leader: LeaseAccess) -> None:
        access = leader._replace(lock=leader.lock._replace(name=shard_lease(shard)))
        super().__init__(access, self._own_annotations, election.admit)
        self._election = election
        self._shard = shard
        self._is_handing_over = False
        self.acquisitions = 0

    async def run(self) -> None:
        while True:
            await self._try_to_lead()
            self._report_change()
            successor = self.lease_annotations.get(PREFERRED_ANNOTATION, "")
            is_agreed = self._election.is_agreed()
            if self.leading and (not is_agreed or successor not in ("", self._lock.identity)):
                self._is_handing_over = True
                await self.stop(successor if is_agreed else "", _DRAIN_S)
                self._is_handing_over = False
            await self._clock.sleep(self._retry_pause_s())
            self._report_change()

    async def prefer(self, identity: str) -> None:
        """Name the replica that shall get the Lease, unless its holder writes it at the same time."""
        await self._read_lease()
        before = self._object or {}
        meta = before.get("metadata") or {}
        annotations = {**self.lease_annotations, PREFERRED_ANNOTATION: identity}
        body = {**before, "metadata": {**meta, "annotations": annotations}}
        self._observe_lease(await self._api.replace(self._path, body))

    def _own_annotations(self) -> dict[str, str]:
        if self._is_handing_over:
            # the next holder has another process
            return {PREFERRED_ANNOTATION: "", PROCESS_ANNOTATION: "", **self._election.shard_annotations(-1)}
        is_preferred = self.lease_annotations.get(PREFERRED_ANNOTATION) == self._lock.identity
        cleared = {PREFERRED_ANNOTATION: ""} if is_preferred else {}
        return {**cleared, **self._election.shard_annotations(self._shard)}

    def _record_leading(self, leading: bool) -> None:
        self.acquisitions += leading
        self._metrics_registry.set("shard_held", float(leading), shard=str(self._shard))
        event = "shard_acquired" if leading else "shard_released"
        logs.emit(event, shard=self._shard, lease=self._path, holder=self.holder)


class LeaseAnnotations(Protocol):
    """What the Leases tell about their holder."""

    def of_leader(self) -> Mapping[str, str]:
        """The annotations of the leader's Lease."""
        ...

    def of_shard(self, shard: int) -> Mapping[str, str]:
        """The annotations of the Lease of a shard that this replica holds, or, for -1, of one that it gives away."""
        ...


class ShardElection:
    """The candidate for all Leases. With one shard there is only the leader's Lease, as in an extender."""

    def __init__(self, leader: LeaseAccess, shards: int, annotations: LeaseAnnotations) -> None:
        self.shards = shards
        self.shard_annotations = annotations.of_shard
        self._api, self._lock, self._clock, metrics_registry, self._random = leader
        self._lead_annotations = annotations.of_leader
        self.leader = Elector(leader, self._annotations_of_leader)
        self._leads = 0
        self.leader.on_change(self._count_leads)
        self._electors = [_ShardElector(self, shard, leader) for shard in range(shards if shards > 1 else 0)]
        self._layout = ShardLayout(0)
        """As it was last read."""
        self._closed: dict[int, int] = {}
        """By Lease of a shard, the transitions of the leader's Lease when this replica wrote it as the leader."""
        self._observed: dict[int, ObservedLease] = {}
        metrics_registry.set("shards", shards)

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` whenever this replica acquires or loses a Lease."""
        for elector in (self.leader, *self._electors):
            elector.on_change(callback)

    @property
    def leads(self) -> bool:
        """Whether this replica leads, and the number of its shards is agreed."""
        return self.leader.leading and self.is_agreed()

    def is_agreed(self) -> bool:
        """Whether the record in the leader's Lease, as it was last read, has the number of shards of this replica."""
        return self._layout.is_agreed(self.shards)

    def tenure(self) -> Tenure:
        """What this replica holds now."""
        is_agreed = self.is_agreed()
        held = (
            (shard, elector.acquisitions) for shard, elector in enumerate(self._electors) if elector.leading
        )
        return Tenure(self._leads if self.leads else 0, frozenset(held if is_agreed else ()))

    def left_s(self, shard: int, acquisition: int) -> float:
        """For how long this replica holds a shard from now on, unless it renews the Lease; 0 if it has lost it since
        its acquisition of this number.
        """
        elector = self._electors[shard]
        return elector.left_s if elector.acquisitions == acquisition else 0.0

    def live_annotations(self) -> dict[int, Mapping[str, str]]:
        """By shard that a replica holds, the annotations of its Lease as they were last read."""
        return {
            shard: elector.lease_annotations
            for shard, elector in enumerate(self._electors)
            if elector.live_holder
        }

    async def admit(self) -> bool:
        """Whether this replica may acquire the Lease of a shard that was just read and is free."""
        await self._clock.sleep(_PATIENCE_S * sum(elector.leading for elector in self._electors))
        await self._read_layout()
        return self.is_agreed()

    def tasks(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [self.leader.run, *(elector.run for elector in self._electors), self.run]

    async def run(self) -> None:
        """Keep the record, and balance the shards, until cancelled."""
        while True:
            try:
                if self.leader.leading:
                    self._layout = parse_layout(self.leader.lease_annotations)
                    if self._layout.shards == self.shards and self._layout.closing:
                        await self._close_leases(self._layout.closing)
                elif self.shards > 1:
                    await self._read_layout()
                if self.is_agreed():
                    await self._balance()
            except Conflict:
                pass  # another replica was faster
            except NodewiseError as error:
                logs.emit("lease_failed", lease=self._lock.name, error=str(error), leading=self.leads)
            await self._clock.sleep(_TICK_S)

    async def stop(self) -> None:
        """Release all Leases."""
        for elector in (*self._electors, self.leader):
            await elector.stop()

    def _count_leads(self, leading: bool) -> None:
        self._leads += leading
        if leading:
            self._layout = parse_layout(self.leader.lease_annotations)

    async def _read_layout(self) -> None:
        """Read the record from the API server."""
        try:
            body = await self._api.get(LEASES.path(self._lock.namespace, self._lock.name))
        except NotFound:
            self._layout = ShardLayout(0)
            return
        self._layout = parse_layout((_decode(body).get("metadata") or {}).get("annotations") or {})

    def _annotations_of_leader(self) -> dict[str, str]:
        """The annotations of the leader's Lease with the next record. They replace those of `lease_annotations`."""
        before = self.leader.lease_annotations
        layout = following = parse_layout(before)
        if layout.shards != self.shards:
            following = ShardLayout(
                self.shards, max(layout.closing, layout.shards if layout.shards != 1 else 0)
            )
        elif layout.closing and all(
            self._closed.get(shard) == self.leader.transitions for shard in range(layout.closing)
        ):
            following = ShardLayout(self.shards)
        record = {}
        if following != ShardLayout() or SHARDS_ANNOTATION in before:
            closing = str(following.closing or "")
            record = {SHARDS_ANNOTATION: str(following.shards), CLOSING_ANNOTATION: closing}
        return {**self._lead_annotations(), **record}

    async def _close_leases(self, count: int) -> None:
        """Write each of the first Leases of shards once it is free, so that nobody can acquire it by an old record."""
        transitions = self.leader.transitions
        for shard in range(count):
            if self._closed.get(shard) == transitions:
                continue
            path, now_s = LEASES.path(self._lock.namespace, shard_lease(shard)), self._clock.monotonic()
            try:
                lease = _decode(await self._api.get(path))
            except NotFound:
                meta = {"name": shard_lease(shard), "namespace": self._lock.namespace}
                lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta, "spec": {}}
                await self._api.create(LEASES.path(self._lock.namespace), lease)
            else:
                spec = msgspec.convert(lease.get("spec") or {}, LeaseSpec)
                observed = leader_election.observe(self._observed.get(shard), spec, "", self._lock, now_s)
                self._observed[shard] = observed
                if leader_election.wait_s(observed, self._lock, now_s):
                    continue
                free = msgspec.to_builtins(leader_election.release(observed, self._clock.now()))
                await self._api.replace(path, {**lease, "spec": {**(lease.get("spec") or {}), **free}})
            self._closed[shard] = transitions
            logs.emit("shard_lease_closed", lease=path, shards=self.shards)

    async def _balance(self) -> None:
        """Request a shard of the replica with the most, if that has at least two more than this one."""
        holders = [elector.live_holder for elector in self._electors]
        own = holders.count(self._lock.identity)
        most = max((holder for holder in holders if holder), key=holders.count, default="")
        is_requested = any(
            elector.lease_annotations.get(PREFERRED_ANNOTATION) == self._lock.identity
            for elector, holder in zip(self._electors, holders, strict=True)
            if holder not in ("", self._lock.identity)
        )
        if not all(holders) or is_requested or holders.count(most) < own + 2:
            return
        shards = [shard for shard, holder in enumerate(holders) if holder == most]
        # several replicas rarely request the same one
        shard = shards[int(self._random() * len(shards))]
        await self._electors[shard].prefer(self._lock.identity)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        return {}
