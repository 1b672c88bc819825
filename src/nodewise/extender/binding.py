"""The bind verb: write the pod's reservation, then create one Binding that sets the pod's annotations.

    read the pod ─▶ write the reservation (`reservation_writer`) ─▶ POST pods/binding ─▶ bound
         ▲                                                          │
         └────────────── conflict, or the result is unknown ────────┘

The Binding carries the resourceVersion of the pod that the reservation was planned on, so it fails after any change of
the pod. A reservation is removed only after the pod was found on another node or deleted, or after nodewise has changed
it for this purpose. A bind continues when its client disconnects, and ends before kube-scheduler's timeout.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Final, Literal, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from nodewise.agent import ObjectKey, Reason
from nodewise.agent.bind_plugin_interface import BindPlan, Refusal
from nodewise.agent.verdicts import OWN_REASON
from nodewise.base.clock import format_rfc3339
from nodewise.base.errors import UNREADABLE, BadInput, Conflict, NodewiseError, Problem, Unavailable
from nodewise.extender.reservation_writer import CALL_TIMEOUT_S, BindContext, ReservationWriter
from nodewise.extender.wire_format import BindingArgs
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import PODS
from nodewise.kube.store import Store
from nodewise.observe import logs, traces

RESERVATION_DROPPED_ANNOTATION: Final = "nodewise.io/claim-dropped"
"""The annotation of a pod whose bind did not complete: when its reservation was dropped, RFC 3339."""
MAX_TRIES: Final = 6
"""Versions of the pod for which one call tries a bind."""
_BACKOFF_S: Final = 0.05

BindResult = Literal["bound", "already", "refused", "failed"]


class BindOutcome(NamedTuple):
    result: BindResult
    error: str = ""
    """The error in the response to kube-scheduler; empty if the pod is on the node."""
    description: str = ""
    """What the pod holds, as text; empty if it holds nothing."""
    reason: Reason | None = None
    """Why an agent refused the bind; None if none did."""


class _BindFailed(Exception):
    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


class RequestsNothing(msgspec.Struct, frozen=True):
    """The pod requests no resource for which kube-scheduler sends pods to nodewise."""

    resources: tuple[str, ...]
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return (
            f"{OWN_REASON}the pod requests none of {', '.join(self.resources)}, and only such pods are bound"
        )

    def remedy(self) -> str:
        return "list these resources in managedResources of the entry with bindVerb, so that no other pods are sent"


class Eligibility:
    """Which pods nodewise binds: those that name one of the agents' resources, even with the amount 0.

    kube-scheduler sends exactly these pods if the entry's managedResources are as `nodewise configure` writes them.
    Other pods must not bypass kube-scheduler's own checks, such as a nodeSelector.
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
        context: BindContext,
        pods: Store[Any],
        pod_type: type[Any],
        deadline_s: float,
        eligibility: Eligibility | None,
    ) -> None:
        """None for `eligibility` binds every pod that the agent plans, for pods whose type has no containers."""
        self._context = context
        self._eligibility = eligibility
        self._pods = pods
        self._decode_pod = msgspec.json.Decoder(pod_type).decode
        self._deadline_s = deadline_s
        self._writers: WeakValueDictionary[str, ReservationWriter] = WeakValueDictionary()
        """By node. A writer lives as long as it is referenced or writes, so a node never has two."""
        self._tasks: dict[BindingArgs, asyncio.Task[BindOutcome]] = {}
        self._cleanups: set[asyncio.Task[None]] = set()

    async def bind(self, args: BindingArgs) -> BindOutcome:
        """Bind a pod. The bind continues if the caller is cancelled; a repeated call waits for the same bind."""
        task = self._tasks.get(args)
        if task is None:
            task = self._tasks[args] = asyncio.create_task(self._bind(args))
            task.add_done_callback(lambda _: self._tasks.pop(args, None))
        return await asyncio.shield(task)

    async def drop(self, node: str, pod: ObjectKey, uid: str, pod_version: str) -> bool:
        """As `controllers.ReservationCleaner`: for a bind that another process began and did not complete."""
        until_s = self._context.clock.monotonic() + self._deadline_s
        args = BindingArgs(pod[1], pod[0], uid, node)
        bind = _Bind(args, self._context, self._writer(node), self._decode_pod, until_s)
        return await bind.drop_reservation({pod_version})

    async def prune(self, node: str, pod_versions: Mapping[str, str]) -> None:
        """As `controllers.ReservationCleaner`: all in one write."""
        writer = self._writer(node)
        releases = (writer.release(uid, {version}) for uid, version in pod_versions.items())
        results = await asyncio.gather(*releases, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]

    async def close(self) -> None:
        """Wait for the binds under way, at most for the deadline of a bind."""
        tasks = [*self._tasks.values(), *self._cleanups]
        if tasks:
            await asyncio.wait(tasks, timeout=self._deadline_s)

    async def _bind(self, args: BindingArgs) -> BindOutcome:
        began_s = self._context.clock.monotonic()
        names = {
            "k8s.namespace.name": args.pod_namespace,
            "k8s.pod.name": args.pod_name,
            "k8s.node.name": args.node,
        }
        with traces.span("bind", **names) as span:
            outcome = await self._bind_until_deadline(args, began_s + self._deadline_s)
            if outcome.error:
                span.fail(outcome.error)
        seconds = self._context.clock.monotonic() - began_s
        self._context.metrics_registry.count("bind_total", outcome=outcome.result)
        self._context.metrics_registry.observe("bind_seconds", seconds)
        pod = f"{args.pod_namespace}/{args.pod_name}"
        if outcome.error:
            logs.emit("bind_failed", pod=pod, node=args.node, error=outcome.error)
        else:
            logs.emit("bound", pod=pod, node=args.node, holds=outcome.description, seconds=round(seconds, 3))
        return outcome

    async def _bind_until_deadline(self, args: BindingArgs, until_s: float) -> BindOutcome:
        try:
            bind = _Bind(args, self._context, self._writer(args.node), self._decode_pod, until_s)
        except BadInput as error:  # names that cannot be part of a path
            return BindOutcome("failed", _api_server_error_text(error))
        try:
            return await bind.run(self._pods.get(args.pod_namespace, args.pod_name), self._eligibility)
        except _BindFailed as failure:
            return BindOutcome("failed", failure.error)
        finally:
            if bind.reserved_versions:  # removed while the client has its response
                task = asyncio.create_task(bind.clean_up())
                self._cleanups.add(task)
                task.add_done_callback(self._cleanups.discard)

    def _writer(self, node: str) -> ReservationWriter:
        writer = self._writers.get(node)
        if writer is None:
            writer = self._writers[node] = ReservationWriter(node, self._context)
        return writer


class _Bind:
    """One call of the verb: tries versions of the pod until it is bound or cannot be bound."""

    def __init__(
        self,
        args: BindingArgs,
        context: BindContext,
        writer: ReservationWriter,
        decode_pod: Callable[[bytes], Any],
        until_s: float,
    ) -> None:
        self._args = args
        self._context = context
        self._writer = writer
        self._decode_pod = decode_pod
        self._until_s = until_s
        self._path = PODS.path(args.pod_namespace, args.pod_name)
        self._refused_version = ""
        """The version of the pod for which the API server refused a Binding."""
        self.reserved_versions: set[str] = set()
        """Versions of the pod for which a reservation may be written, while the pod is not known to be on the node."""

    async def run(self, pod: Any | None, eligibility: Eligibility | None) -> BindOutcome:
        """Bind the pod. `pod` is the pod of the store, which may be old; None if the store has none.

        A pod of which the store has only a part is read, like one that it does not have.
        """
        if pod is not None and (pod.metadata.uid != self._args.pod_uid or pod.metadata.oversized_bytes):
            pod = None
        error: NodewiseError | None = None
        for number in range(MAX_TRIES):
            await self._context.clock.sleep(_BACKOFF_S * max(number - 1, 0))
            if self._seconds_to_deadline() <= 0.0:
                break
            try:
                current = pod or await self._get_pod(min(CALL_TIMEOUT_S, self._seconds_to_deadline()))
                return self._refusal_of_pod(current, eligibility) or await self._bind_pod_version(current)
            except (Conflict, Unavailable) as failure:
                error, pod = failure, None
            except TimeoutError:
                break
            except NodewiseError as failure:
                raise _BindFailed(_api_server_error_text(failure)) from failure
        raise _BindFailed(
            _api_server_error_text(error) if error else "there was no time left to bind the pod"
        )

    def _refusal_of_pod(self, pod: Any, eligibility: Eligibility | None) -> BindOutcome | None:
        """The refusal of a pod that nodewise does not bind; None for others, and for another pod of the name."""
        if eligibility is None or pod.metadata.uid != self._args.pod_uid:
            return None
        refusal = eligibility.refusal(pod)
        return BindOutcome("refused", refusal.text(), reason=refusal) if refusal else None

    async def _bind_pod_version(self, pod: Any) -> BindOutcome:
        """Bind this version of the pod. After `Conflict` and `Unavailable` the pod is to be read again."""
        args, version = self._args, pod.metadata.resourceVersion
        if pod.metadata.uid != args.pod_uid:
            raise _BindFailed("provided UID is incorrect")
        if pod.spec.nodeName:  # an earlier call, or another client, has bound it
            if pod.spec.nodeName != args.node:
                raise _BindFailed(f'pod {args.pod_name} is already assigned to node "{pod.spec.nodeName}"')
            self.reserved_versions.clear()
            return BindOutcome("already")
        plan = await self._reserve(pod)
        if isinstance(plan, Refusal):
            return BindOutcome("refused", plan.error, reason=plan.reason)
        try:
            await self._create_binding(version, plan)
        except Conflict as error:
            if self._refused_version == version:
                raise _BindFailed(
                    _api_server_error_text(error)
                ) from error  # the version is not the cause of the conflict
            self._refused_version = version
            raise
        self.reserved_versions.clear()
        return BindOutcome("bound", description=plan.description if plan else "")

    async def _reserve(self, pod: Any) -> BindPlan | Refusal | None:
        before = set(self.reserved_versions)
        self.reserved_versions.add(pod.metadata.resourceVersion)
        async with asyncio.timeout(self._seconds_to_deadline()):
            plan = await self._writer.reserve(pod)
        if not isinstance(plan, BindPlan):
            self.reserved_versions = before
        return plan

    async def _create_binding(self, version: str, plan: BindPlan | None) -> None:
        meta: dict[str, Any] = {"name": self._args.pod_name, "uid": self._args.pod_uid}
        if plan is not None:
            meta |= {"resourceVersion": version, "annotations": dict(plan.annotations)}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": meta,
            "target": {"apiVersion": "v1", "kind": "Node", "name": self._args.node},
        }
        await self._context.api.create(
            f"{self._path}/binding", body, timeout_s=max(self._seconds_to_deadline(), 0.001)
        )

    async def _get_pod(self, timeout_s: float) -> Any:
        name = self._args.pod_name
        try:
            body = await self._context.api.get(self._path, timeout_s=timeout_s)
        except NotFound as error:
            raise _BindFailed(
                f'could not retrieve pod {name}: pod fetch error: pod "{name}" not found'
            ) from error
        try:
            return self._decode_pod(body)
        except UNREADABLE as error:
            raise BadInput(f"pod {name}", [Problem("", str(error), "a Pod")]) from error

    def _seconds_to_deadline(self) -> float:
        return self._until_s - self._context.clock.monotonic()

    async def clean_up(self) -> None:
        """Drop the reservation, with retries. The leader drops what remains."""
        error: NodewiseError | None = None
        for number in range(MAX_TRIES):
            await self._context.clock.sleep(_BACKOFF_S * (2**number - 1))
            try:
                await self.drop_reservation(self.reserved_versions)
            except NodewiseError as failure:
                error = failure
                continue
            return
        logs.emit("claims_left", node=self._args.node, pods=[self._args.pod_uid], error=str(error))

    async def drop_reservation(self, pod_versions: Collection[str]) -> bool:
        """Remove the reservation that was planned on one of these versions, unless the pod is on the node.

        Returns whether the pod is not on the node.
        """
        try:
            is_unbound = await self._prevent_binding(pod_versions)
        except _BindFailed:  # the pod is gone
            is_unbound = True
        if is_unbound:
            await self._writer.release(self._args.pod_uid, pod_versions)
        return is_unbound

    async def _prevent_binding(self, pod_versions: Collection[str]) -> bool:
        """Make sure that no Binding for one of these versions can succeed any more; False if the pod is on the node.

        A Binding may still be on its way to the API server. A change of the pod makes it fail.
        """
        pod = await self._get_pod(CALL_TIMEOUT_S)
        if pod.metadata.uid != self._args.pod_uid:
            return True
        if pod.spec.nodeName:
            return bool(pod.spec.nodeName != self._args.node)
        version = pod.metadata.resourceVersion
        if version in pod_versions:
            now = format_rfc3339(self._context.clock.now())
            annotations = {RESERVATION_DROPPED_ANNOTATION: now}
            meta = {"uid": self._args.pod_uid, "resourceVersion": version, "annotations": annotations}
            await self._context.api.patch(self._path, {"metadata": meta}, "merge", timeout_s=CALL_TIMEOUT_S)
        return True


def _api_server_error_text(error: NodewiseError) -> str:
    """The API server's own texts, which the older system passed on."""
    return "; ".join(map(str, error.problems)) or str(error)
