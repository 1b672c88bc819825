"""The node agent's answer to who wants other pools on its node."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from nodewise.cpu import messages
from nodewise.cpu.agent.reclaiming import Sweeper
from nodewise.cpu.book import Book
from nodewise.cpu.confine.enforcing import Read
from nodewise.cpu.move import moving
from nodewise.cpu.node.machine import Machine
from nodewise.cpu.node.peers import Peer
from nodewise.cpu.reconfigure import Cpus
from nodewise.cpu.requests import Object
from nodewise.cpu.state import Task
from nodewise.errors import Problem, Refused

_ROOT: Final = 0


class Containers(Protocol):
    """`enforcing.Enforcer`."""

    def widen(self, read: Read, tasks: Collection[Task]) -> None: ...


class Pods(Protocol):
    """`requested.PodRequests`."""

    def pod(self, uid: str) -> Object | None: ...


class Guard:
    """Who may have a node reconfigured: root on the host, and root in a pod of the agent's own namespace."""

    def __init__(self, pods: Pods | None, namespace: str) -> None:
        self._pods = pods
        self._namespace = namespace

    def check(self, peer: Peer) -> None:
        """Refused for everybody else; Unavailable if it cannot be told."""
        uid = peer.task.pod
        if peer.user == _ROOT and (not uid or self._is_ours(uid)):
            return
        seen = f"user {peer.user}" + (f" in pod {uid}" if uid else "")
        wanted = "root, outside of pods"
        wanted += f" or in one of namespace {self._namespace}" if self._pods and self._namespace else ""
        raise Refused("cannot reconfigure the node", [Problem("who asks", seen, wanted)])

    def _is_ours(self, uid: str) -> bool:
        pod = self._pods.pod(uid) if self._pods and self._namespace else None
        return pod is not None and pod["metadata"]["namespace"] == self._namespace


class Reconfiguring:
    """Answers `messages.RECONFIGURE`."""

    def __init__(
        self,
        book: Book,
        proc: Path,
        machine: Callable[[], Machine],
        sweeper: Sweeper,
        guard: Guard,
        containers: Containers | None = None,
    ) -> None:
        self._book = book
        self._proc = proc
        self._machine = machine
        self._sweeper = sweeper
        self._guard = guard
        self._containers = containers

    def answer(self, peer: Peer, fields: Mapping[str, Any]) -> bytes:
        """What was moved, or with `only_check` would be; `NodewiseError` says why nothing is."""
        self._guard.check(peer)
        request = messages.parse_reconfigure(fields)
        lists = self._machine().plan(request.ask).pools
        known = self._sweeper.sweep().known
        found = moving.reconfigure(
            self._book, lists, self._proc, known=known, widen=self._widen, only_check=request.only_check
        )
        return messages.reconfigured(found.moves)

    def _widen(self, wanted: Mapping[Task, Cpus]) -> None:
        """Before tasks are moved; a sweep narrows their containers again."""
        if self._containers is not None:
            self._containers.widen(self._book.read, wanted.keys())
