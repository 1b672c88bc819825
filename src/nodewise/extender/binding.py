"""The bind verb: the pod's entry in the node's ledger, then one Binding that carries its annotations.

    read the pod ─▶ entry in the ledger (`reservations`) ─▶ POST pods/binding ─▶ done
         ▲                                                   │ changed, or nobody knows
         └───────────────────────────────────────────────────┘

The Binding is for the very version of the pod that the entry was planned on: whoever changes the pod makes every
Binding on the way fail. So an entry is taken out only after the pod was seen on another node, or gone, or was changed
for this purpose. A bind goes on when its client leaves, and ends before kube-scheduler stops waiting.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Final, Literal, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from nodewise.agent import ObjectKey, Reason
from nodewise.binder import BindPlan, Refusal
from nodewise.clock import format_rfc3339
from nodewise.errors import UNREADABLE, BadInput, Conflict, NodewiseError, Problem, Unavailable
from nodewise.extender.reservations import CALL_S, Desk, Ground
from nodewise.extender.wire_format import BindingArgs
from nodewise.kube.api import NotFound
from nodewise.kube.resources import PODS
from nodewise.kube.store import Store
from nodewise.observe import logs

DROPPED: Final = "nodewise.io/claim-dropped"
"""The annotation of a pod whose bind never came: when its cards were given back, RFC 3339."""
MOST_TRIES: Final = 6
"""Versions of a pod on which it is tried to be bound, in one call."""
_PAUSE_S: Final = 0.05

Result = Literal["bound", "already", "refused", "failed"]


class Outcome(NamedTuple):
    """What came of a bind."""

    result: Result
    error: str = ""
    """What kube-scheduler is answered; empty where the pod is on the node."""
    told: str = ""
    """What the pod holds, in words; empty where it holds nothing."""
    reason: Reason | None = None
    """Why it was refused, where an agent did."""


class _Failed(Exception):
    """The bind ends without success."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class _Try(NamedTuple):
    """A Binding that was sent: the version of the pod that it was for."""

    seen: str
    told: str


class RequestsNothing(msgspec.Struct, frozen=True):
    """The pod requests no resource for which kube-scheduler sends pods to nodewise."""

    resources: tuple[str, ...]
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return f"nodewise: the pod requests none of {', '.join(self.resources)}, and only such pods are bound"

    def remedy(self) -> str:
        return "list these resources in managedResources of the entry with bindVerb, so that no other pods are sent"


class Eligibility:
    """Which pods nodewise binds: those that name one of the agents' resources, be it with the amount 0.

    kube-scheduler sends exactly these if the entry's managedResources are as `nodewise configure` writes them. For all
    others its own checks, such as a nodeSelector, must not be passed by.
    """

    def __init__(self, resources: Iterable[str]) -> None:
        self._resources = frozenset(resources)

    def refusal(self, pod: Any) -> RequestsNothing | None:
        """None for a pod that may be bound."""
        containers = (*(pod.spec.containers or ()), *(pod.spec.initContainers or ()))
        resources = (container.resources for container in containers if container.resources)
        amounts = (listed for entry in resources for listed in (entry.requests, entry.limits) if listed)
        if any(not self._resources.isdisjoint(listed) for listed in amounts):
            return None
        return RequestsNothing(tuple(sorted(self._resources)))


class Bindings:
    """Binds pods, each in a task of its own."""

    def __init__(
        self,
        ground: Ground,
        pods: Store[Any],
        pod_type: type[Any],
        deadline_s: float,
        eligibility: Eligibility | None,
    ) -> None:
        """None for `eligibility` binds every pod that the agent plans, for pods whose type has no containers."""
        self._on = ground
        self._eligibility = eligibility
        self._pods = pods
        self._read_pod = msgspec.json.Decoder(pod_type).decode
        self._deadline_s = deadline_s
        self._desks: WeakValueDictionary[str, Desk] = WeakValueDictionary()
        """By node: while anybody holds it, or it writes, and so never two of them."""
        self._binding: dict[BindingArgs, asyncio.Task[Outcome]] = {}
        self._clearing: set[asyncio.Task[None]] = set()

    async def bind(self, args: BindingArgs) -> Outcome:
        """What came of it. It goes on if the caller is cancelled; who asks again meanwhile gets the same answer."""
        task = self._binding.get(args)
        if task is None:
            task = self._binding[args] = asyncio.create_task(self._timed(args))
            task.add_done_callback(lambda _: self._binding.pop(args, None))
        return await asyncio.shield(task)

    async def drop(self, node: str, pod: ObjectKey, uid: str, seen: str) -> bool:
        """`agent.Ledgers`: of a bind that another process began and did not end."""
        until_s = self._on.clock.monotonic() + self._deadline_s
        bind = _Bind(
            BindingArgs(pod[1], pod[0], uid, node), self._on, self._desk(node), self._read_pod, until_s
        )
        return await bind.give_back({seen})

    async def prune(self, node: str, entries: Mapping[str, str]) -> None:
        """`agent.Ledgers`: all in one write."""
        desk = self._desk(node)
        releases = (desk.release(uid, {seen}) for uid, seen in entries.items())
        outcomes = await asyncio.gather(*releases, return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if errors:
            raise errors[0]

    async def close(self) -> None:
        """Wait for what is under way, no longer than a bind takes."""
        tasks = [*self._binding.values(), *self._clearing]
        if tasks:
            await asyncio.wait(tasks, timeout=self._deadline_s)

    async def _timed(self, args: BindingArgs) -> Outcome:
        began_s = self._on.clock.monotonic()
        outcome = await self._one(args, began_s + self._deadline_s)
        seconds = self._on.clock.monotonic() - began_s
        self._on.meters.count("bind_total", outcome=outcome.result)
        self._on.meters.observe("bind_seconds", seconds)
        pod = f"{args.pod_namespace}/{args.pod_name}"
        if outcome.error:
            logs.emit("bind_failed", pod=pod, node=args.node, error=outcome.error)
        else:
            logs.emit("bound", pod=pod, node=args.node, holds=outcome.told, seconds=round(seconds, 3))
        return outcome

    async def _one(self, args: BindingArgs, until_s: float) -> Outcome:
        try:
            bind = _Bind(args, self._on, self._desk(args.node), self._read_pod, until_s)
        except BadInput as error:  # names that cannot be part of a path
            return Outcome("failed", _words(error))
        try:
            return await bind.run(self._pods.get(args.pod_namespace, args.pod_name), self._eligibility)
        except _Failed as failed:
            return Outcome("failed", failed.error)
        finally:
            self._clear(bind)

    def _clear(self, bind: "_Bind") -> None:
        """What a bind leaves behind is looked after while its client has its answer."""
        if bind.leaves_entry:
            task = asyncio.create_task(bind.clear())
            self._clearing.add(task)
            task.add_done_callback(self._clearing.discard)

    def _desk(self, node: str) -> Desk:
        desk = self._desks.get(node)
        if desk is None:
            desk = self._desks[node] = Desk(node, self._on)
        return desk


class _Bind:
    """One call of the verb: versions of the pod are tried until it is bound, or cannot be."""

    def __init__(
        self,
        args: BindingArgs,
        on: Ground,
        desk: Desk,
        read: Callable[[bytes], Any],
        until_s: float,
    ) -> None:
        self._asked = args
        self._on = on
        self._desk = desk
        self._read = read
        self._until_s = until_s
        self._path = PODS.path(args.pod_namespace, args.pod_name)
        self._refused_at = ""
        """The version for which a Binding was refused."""
        self._seen: set[str] = set()
        """Versions of the pod that an entry may stand on."""

    @property
    def leaves_entry(self) -> bool:
        """Whether an entry may stand in the ledger for a pod that we do not know to be on the node."""
        return bool(self._seen)

    async def run(self, pod: Any | None, eligibility: Eligibility | None) -> Outcome:
        """`pod` is what we hold of it; it may be old, and None is nothing."""
        last: NodewiseError | None = None
        if pod is not None and pod.metadata.uid != self._asked.pod_uid:
            pod = None
        for number in range(MOST_TRIES):
            await self._on.clock.sleep(_PAUSE_S * max(number - 1, 0))
            if self._left_s() <= 0.0:
                break
            try:
                current = pod or await self._get(min(CALL_S, self._left_s()))
                is_same = current.metadata.uid == self._asked.pod_uid
                refusal = eligibility.refusal(current) if eligibility and is_same else None
                if refusal:
                    return Outcome("refused", refusal.text(), reason=refusal)
                return await self._attempt(current)
            except (Conflict, Unavailable) as error:
                last, pod = error, None
            except TimeoutError:
                break
            except NodewiseError as error:
                raise _Failed(_words(error)) from error
        raise _Failed(_words(last) if last else "there was no time left to bind the pod")

    async def _attempt(self, pod: Any) -> Outcome:
        """With one version of the pod. `Conflict` and `Unavailable`: read it again."""
        args, version = self._asked, pod.metadata.resourceVersion
        if pod.metadata.uid != args.pod_uid:
            raise _Failed("provided UID is incorrect")
        if pod.spec.nodeName:
            return self._placed(pod)
        planned = await self._claimed(pod)
        if isinstance(planned, Refusal):
            return Outcome("refused", planned.error, reason=planned.reason)
        try:
            await self._post(version, planned)
        except Conflict as error:
            if self._refused_at == version:
                raise _Failed(_words(error)) from error  # it is not the version that is wrong
            self._refused_at = version
            raise
        self._seen.clear()
        return Outcome("bound", told=planned.told if planned else "")

    def _placed(self, pod: Any) -> Outcome:
        """The pod is on a node already: by an earlier call, or by somebody else."""
        if pod.spec.nodeName != self._asked.node:
            raise _Failed(f'pod {self._asked.pod_name} is already assigned to node "{pod.spec.nodeName}"')
        self._seen.clear()
        return Outcome("already")

    async def _claimed(self, pod: Any) -> BindPlan | Refusal | None:
        before = set(self._seen)
        self._seen.add(pod.metadata.resourceVersion)
        async with asyncio.timeout(self._left_s()):
            planned = await self._desk.claim(pod)
        if not isinstance(planned, BindPlan):
            self._seen = before
        return planned

    async def _post(self, version: str, plan: BindPlan | None) -> None:
        meta: dict[str, Any] = {"name": self._asked.pod_name, "uid": self._asked.pod_uid}
        if plan is not None:
            meta |= {"resourceVersion": version, "annotations": dict(plan.annotations)}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": meta,
            "target": {"apiVersion": "v1", "kind": "Node", "name": self._asked.node},
        }
        await self._on.api.create(f"{self._path}/binding", body, timeout_s=max(self._left_s(), 0.001))

    async def _get(self, timeout_s: float) -> Any:
        try:
            return self._decoded(await self._on.api.get(self._path, timeout_s=timeout_s))
        except NotFound as error:
            name = self._asked.pod_name
            raise _Failed(
                f'could not retrieve pod {name}: pod fetch error: pod "{name}" not found'
            ) from error

    def _decoded(self, body: bytes) -> Any:
        try:
            return self._read(body)
        except UNREADABLE as error:
            raise BadInput(f"pod {self._asked.pod_name}", [Problem("", str(error), "a Pod")]) from error

    def _left_s(self) -> float:
        return self._until_s - self._on.clock.monotonic()

    async def clear(self) -> None:
        """Take the entry out, if the pod does not come to the node any more. The leader does what fails here."""
        error: NodewiseError | None = None
        for number in range(MOST_TRIES):
            await self._on.clock.sleep(_PAUSE_S * (2**number - 1))
            try:
                await self.give_back(self._seen)
            except NodewiseError as failure:
                error = failure
                continue
            return
        logs.emit("claims_left", node=self._asked.node, pods=[self._asked.pod_uid], error=str(error))

    async def give_back(self, seen: Collection[str]) -> bool:
        """Take out the entry that was planned on one of these versions, unless the pod is on the node; whether so."""
        try:
            goes = await self._stays_away(seen)
        except _Failed:  # the pod is gone
            goes = True
        if goes:
            await self._desk.release(self._asked.pod_uid, seen)
        return goes

    async def _stays_away(self, seen: Collection[str]) -> bool:
        """Whether no Binding for one of these versions can succeed any more. The pod is changed to make sure of it."""
        pod = await self._get(CALL_S)
        if pod.metadata.uid != self._asked.pod_uid:
            return True
        if pod.spec.nodeName:
            return bool(pod.spec.nodeName != self._asked.node)
        version = pod.metadata.resourceVersion
        if version in seen:
            now = format_rfc3339(self._on.clock.now())
            meta = {"uid": self._asked.pod_uid, "resourceVersion": version, "annotations": {DROPPED: now}}
            await self._on.api.patch(self._path, {"metadata": meta}, "merge", timeout_s=CALL_S)
        return True


def _words(error: NodewiseError) -> str:
    """The API server's own, as the older system passed them on."""
    return "; ".join(map(str, error.problems)) or str(error)
