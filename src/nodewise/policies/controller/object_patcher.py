"""Makes fields of objects equal to desired ones, level-triggered: each step writes what differs, within limits."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from nodewise.agent.controller_interface import Handle
from nodewise.base.errors import Conflict, NodewiseError, Unavailable
from nodewise.kube.api_server_interface import run_api_calls
from nodewise.policies.placement_policy import PolicyKey, PolicyKind
from nodewise.policies.policy_objects import RESOURCES, PolicyObject

K = TypeVar("K")
"""Identifies an object."""
F = TypeVar("F")
"""What is known about the fields of an object."""
S = TypeVar("S")
"""The fields of a status."""
Write = Callable[[], Awaitable[None]]

STEP_S: Final = 2.0
"""The longest time that objects are written from one snapshot. Otherwise the last of thousands would be minutes old,
and objects that change all the time would delay others."""
_LONGEST_PAUSE_S: Final = 60.0
"""The longest pause of an object after writes without a response, which delay the step."""


class PatchFailure(NamedTuple):
    """The failed last write of an object."""

    cause: str
    not_before_s: float
    """Monotonic time at which it is tried again."""
    pause_s: float


class ObjectPatcher(Generic[K, F]):
    """Runs the writes of a step, and remembers what was written and what failed.

    An error for which `is_isolated` is true does not affect other objects. Its object is tried again after `pause_s`,
    or, after a timeout or a conflict, after a pause that doubles. Other errors are raised.
    """

    def __init__(
        self, handle: Handle, is_isolated: Callable[[NodewiseError], bool], pause_s: float = 0.0
    ) -> None:
        self._handle = handle
        self._is_isolated = is_isolated
        self._pause_s = pause_s
        self.written: dict[K, F] = {}
        """What objects have by their last writes, which set it."""
        self.failures: dict[K, PatchFailure] = {}

    def begin(self) -> None:
        """Start as the leader: another one may have written the objects."""
        self.written.clear()
        self.failures.clear()

    def retain(self, keys: Collection[K]) -> None:
        """Forget objects that are gone."""
        for known in (self.written, self.failures):
            for key in [key for key in known if key not in keys]:
                del known[key]

    async def run(
        self,
        writes: Iterable[tuple[K, Write]],
        is_admitted: Callable[[K], bool] = lambda _: True,
        step_s: float = STEP_S,
    ) -> list[NodewiseError]:
        """Run writes in their order for `step_s` at most, without objects in a pause, and without those that are not
        admitted when their turn comes. Returns the isolated errors; others are raised after all calls have ended.
        """
        errors: list[NodewiseError] = []
        clock = self._handle.clock
        until_s = clock.monotonic() + step_s

        def due() -> Iterator[Awaitable[None]]:
            for key, write in writes:
                now_s = clock.monotonic()
                if now_s >= until_s:
                    return
                is_paused = key in self.failures and now_s < self.failures[key].not_before_s
                if not is_paused and is_admitted(key):
                    yield self._write(key, write, errors)

        await run_api_calls(due())
        return errors

    async def _write(self, key: K, write: Write, errors: list[NodewiseError]) -> None:
        try:
            await write()
        except NodewiseError as error:
            if not self._is_isolated(error):
                raise
            first_s = longest_s = self._pause_s
            if isinstance(error, Unavailable) and error.timeout_s:
                first_s, longest_s = error.timeout_s, _LONGEST_PAUSE_S
            elif isinstance(error, Conflict):  # mostly the watch lags behind, for example after a recreation
                first_s = min(STEP_S, longest_s)
            before_s = self.failures[key].pause_s if key in self.failures else 0.0
            pause_s = max(first_s, min(2 * before_s, longest_s))
            not_before_s = self._handle.clock.monotonic() + pause_s
            self.failures[key] = PatchFailure(failure_cause(error), not_before_s, pause_s)
            errors.append(error)
        else:
            self.failures.pop(key, None)


def failure_cause(error: NodewiseError) -> str:
    """Why a write failed, without the call."""
    return "; ".join(map(str, error.problems)) or str(error)


def find_policy_object(handle: Handle, key: PolicyKey, uid: str) -> PolicyObject | None:
    """The object of exactly this policy; None if it is gone."""
    policy_object: PolicyObject | None = handle.objects[RESOURCES[key.kind].plural].get(
        key.namespace, key.name
    )
    return policy_object if policy_object is not None and policy_object.metadata.uid == uid else None


class WrittenStatus(NamedTuple, Generic[S]):
    """The status of a policy as it was last written."""

    uid: str
    """Of the policy; another policy may have the same name later."""
    status: S
    at_s: float
    """Monotonic; -inf if it was read."""


class StatusPatcher(ObjectPatcher[tuple[str, ...], WrittenStatus[S]]):
    """Writes the fields of one field manager to the status of policies, which are identified by `PolicyKey`."""

    def __init__(
        self,
        handle: Handle,
        field_manager: str,
        status_of: Callable[[PolicyKind, PolicyObject], S],
        isolated: tuple[type[NodewiseError], ...],
        *,
        pause_s: float = 0.0,
        confirmed_s: float = float("inf"),
    ) -> None:
        super().__init__(handle, lambda error: isinstance(error, isolated), pause_s)
        self._apply = {"fieldManager": field_manager, "force": "true"}
        self._status_of = status_of
        self._confirmed_s = confirmed_s
        """The time after which the object of the watch counts again."""

    def current(self, key: PolicyKey, policy_object: PolicyObject) -> WrittenStatus[S]:
        """The status as it was written, or else as the watch shows it."""
        written, uid = self.written.get(key), policy_object.metadata.uid
        now_s = self._handle.clock.monotonic()
        if written and written.uid == uid and now_s - written.at_s < self._confirmed_s:
            return written
        return WrittenStatus(uid, self._status_of(key.kind, policy_object), float("-inf"))

    def written_s(self, key: PolicyKey) -> float:
        """The monotonic time of the last write; -inf if there was none."""
        return self.written[key].at_s if key in self.written else float("-inf")

    async def write(self, key: PolicyKey, uid: str, status: S) -> None:
        """Write the status unless another policy has the name now."""
        resource = RESOURCES[key.kind]
        identity = {"name": key.name, "namespace": key.namespace, "uid": uid}
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {field: value for field, value in identity.items() if value},
            "status": status,
        }
        now_s = self._handle.clock.monotonic()
        path = resource.path(key.namespace, key.name, "status")
        await self._handle.api.patch(path, body, "apply", self._apply)
        self.written[key] = WrittenStatus(uid, status, now_s)
