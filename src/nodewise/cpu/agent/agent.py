"""The node agent: gives CPUs to who asks at its socket, takes them back when they are over, and tells of the node."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from socket import socket
from typing import Final, NamedTuple

from nodewise.cpu.agent import doorway, reclaiming
from nodewise.cpu.agent.claiming import Desk
from nodewise.cpu.agent.listening import Limits, Listener
from nodewise.cpu.node import peers
from nodewise.cpu.node.peers import Peer
from nodewise.cpu.node.sweeping import Round
from nodewise.cpu.state import Task
from nodewise.errors import NodewiseError, Unavailable
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_PATIENCE_S: Final = 1.0
"""For a process to be over whose connection is."""
_GAP_S: Final = 0.2
"""Between sweeps, however many connections end."""
_LATE_PERIODS: Final = 3
_LATE_S: Final = 10.0


class Chore(NamedTuple):
    """What is to be done after sweeps, in its own time; what it raises is logged, and it is tried again."""

    name: str
    do: Callable[[Round], None]


class Agent:
    """One node's. `stop` ends `run`, from any thread."""

    def __init__(
        self,
        desk: Desk,
        chores: Sequence[Chore],
        limits: Limits,
        interval_s: float,
        meters: MetricsRegistry,
    ) -> None:
        self._desk = desk
        self._chores = chores
        self._limits = limits
        self._interval_s = interval_s
        self._meters = meters
        self._lock = threading.Lock()
        self._over: set[Task] = set()
        """Tasks whose connection ended since the last sweep."""
        self._awake = threading.Event()
        self._stopped = False
        self._swept_s = float("-inf")
        self._failed: dict[str, str] = {}
        """Of what failed the last time the reason, so that it is told once."""

    def waiting_for(self) -> Sequence[str]:
        """What is missing for readiness."""
        age_s = time.monotonic() - self._swept_s
        is_late = age_s > _LATE_PERIODS * self._interval_s + _LATE_S
        return [f"a sweep: {self._failed.get('sweep', 'not yet')}"] if is_late else []

    def stop(self) -> None:
        self._stopped = True
        self._awake.set()

    def run(self, path: Path) -> None:
        """Serve at `path`, and sweep, until `stop`; then what was begun is finished, and the state left as it is.

        BadSettings or Unavailable if it cannot listen there.
        """
        with doorway.opened(path) as listening:
            listener = Listener(
                listening, self._identify, self._desk.answer, self._ended, self._limits, self._meters
            )
            thread = threading.Thread(target=listener.run, name="connections")
            thread.start()
            logs.emit("listening", url=f"unix:{path}")
            try:
                self._sweep_for_ever(thread)
            finally:
                listener.stop()
                thread.join()

    def _identify(self, connected: socket) -> Peer:
        return peers.identify(connected, self._desk.node.proc, self._desk.node.boot)

    def _ended(self, peer: Peer) -> None:
        with self._lock:
            self._over.add(peer.task)
        self._awake.set()

    def _sweep_for_ever(self, serving: threading.Thread) -> None:
        while not self._stopped:
            if not serving.is_alive():
                raise Unavailable("the node agent's socket is no longer served, by a defect of ours")
            self._round()
            self._wait()

    def _wait(self) -> None:
        """Until the next sweep is due, or somebody's connection ends who held something."""
        time.sleep(min(_GAP_S, self._interval_s))
        if self._awake.wait(max(0.0, self._interval_s - _GAP_S)):
            self._awake.clear()
        with self._lock:
            over, self._over = self._over, set()
        for task in over:
            reclaiming.wait_for_end(self._desk.node.proc, task, _PATIENCE_S / len(over))

    def _round(self) -> None:
        swept: list[Round] = []
        self._try("sweep", lambda: swept.append(self._sweep()))
        for done, chore in product(swept, self._chores):
            if not self._stopped:
                self._try(chore.name, partial(chore.do, done))

    def _sweep(self) -> Round:
        begun_s = time.monotonic()
        done = self._desk.sweeper.sweep()
        self._swept_s = time.monotonic()
        self._meters.observe("cpu_sweep_seconds", self._swept_s - begun_s)
        return done

    def _try(self, name: str, do: Callable[[], None]) -> None:
        """Do it; log why it failed where that is new, and that it works again."""
        try:
            do()
        except NodewiseError as error:
            self._meters.count("cpu_failures_total", what=name)
            if self._failed.get(name) != str(error):
                self._failed[name] = str(error)
                logs.emit("cpu_chore_failed", what=name, error=str(error))
        except Exception:  # noqa: BLE001 - a defect in one chore must not keep the agent from the others
            self._meters.count("cpu_failures_total", what=name)
            self._failed[name] = "a defect of ours"
            logs.emit("task_failed", task=name, exc_info=True)
        else:
            if self._failed.pop(name, None) is not None:
                logs.emit("cpu_chore_back", what=name)
