"""Replicas of the controller whose leader is killed, and the comparison of what they write with what is expected."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from tests.cluster import api_client, extender_process
from tests.cluster.api_client import ClusterApi
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import wait

LEASE: Final = "/apis/coordination.k8s.io/v1/namespaces/nodewise/leases/nodewise-controller"
Key = tuple[str, str]
State = Mapping[Key, str]
"""Values, such as those of labels by node and key."""


class StateComparison:
    """Compares a state with the expected one all the time, and measures for how long they differ."""

    def __init__(self, plane: ControlPlane, read: Callable[[ClusterApi], State]) -> None:
        """`read` returns the state: values by key, without those that are empty."""
        self.expected: State = {}
        self.longest_s = 0.0
        self.checks = 0
        self._read = read
        self._context = plane.authority.client_context(plane.admin.pair)
        self._url = plane.url
        self._ended = threading.Event()
        self._since_s: dict[Key, float] = {}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def is_right(self) -> bool:
        """Whether all values have been right for at least one more check."""
        before = self.checks
        while self.checks < before + 2:
            time.sleep(0.05)
        return not self._since_s

    def count_from_now(self) -> None:
        """Counts the time of values that are wrong now from now on."""
        self._since_s = dict.fromkeys(self._since_s, time.monotonic())

    def wrong(self) -> dict[Key, float]:
        """For how many seconds each value has been wrong."""
        now_s = time.monotonic()
        return {key: now_s - since_s for key, since_s in self._since_s.items()}

    def _run(self) -> None:
        api = api_client.ClusterApi(self._url, self._context)
        while not self._ended.wait(0.1):
            expected = self.expected
            state = self._read(api)
            now_s = time.monotonic()
            differing = {key for key in {*expected, *state} if expected.get(key, "") != state.get(key, "")}
            self._since_s = {key: self._since_s.get(key, now_s) for key in differing}
            self.longest_s = max([self.longest_s, *(now_s - since for since in self._since_s.values())])
            self.checks += 1
        api.close()


class ControllerReplicas:
    """Two controllers; one of them leads."""

    def __init__(
        self, account: User, folder: Path, stack: contextlib.ExitStack, options: Sequence[str]
    ) -> None:
        self._options = options
        self._account = account
        self._folder = folder
        self._stack = stack
        self._running = [self._start(), self._start()]

    def _start(self) -> Process:
        return self._stack.enter_context(
            extender_process.controller(self._account, self._folder, *self._options)
        )

    def kill(self, holder: str) -> None:
        """Kills the replica with this identity, and starts another one."""
        killed = next(process for process in self._running if holder in process.log.read_text())
        killed.kill()
        self._running.remove(killed)
        self._running.append(self._start())


def wait_for_leader(api: ClusterApi, killed: str) -> str:
    """The identity of the replica that leads, once it is another one than that which was killed."""

    def holder() -> str | None:
        identity = (api.find(LEASE) or {}).get("spec", {}).get("holderIdentity")
        return identity if identity and identity != killed else None

    return wait("another replica leads", holder)
