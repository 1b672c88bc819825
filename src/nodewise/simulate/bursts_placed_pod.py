"""A pod on a node: what it uses there, and how its status tells what has become of it."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nodewise.clock import format_rfc3339
from nodewise.simulate import bursts_workload
from nodewise.simulate.bursts_workload import CONTAINER, BurstyPod

Object = dict[str, Any]

_NOTHING: Final[Object] = {}


class Placed:
    """A pod from its bind on."""

    def __init__(self, pod: BurstyPod, node: str, minute: int, now: float) -> None:
        self.pod = pod
        self.node = node
        self.restarts = 0
        self._placed = self._started = minute
        self._started_s = now
        made = bursts_workload.pod_object(pod)
        self._made = {**made, "spec": {**made["spec"], "nodeName": node}}
        self.obj = self._told(_NOTHING)
        """As the API server has it."""

    @property
    def ends(self) -> int:
        """The minute in which it is not there any more."""
        return self._placed + self.pod.minutes

    def use(self, minute: int) -> NDArray[np.float64]:
        """Milli-CPU and bytes."""
        return self.pod.use[:, minute - self._started]

    def luck(self, minute: int) -> float:
        """Whether it fails where it is in trouble; from 0 to 1, the less the sooner."""
        return float(self.pod.luck[minute - self._placed])

    def restart(self, minute: int, now: float) -> None:
        """It failed in this minute, and begins anew in the next."""
        began = format_rfc3339(self._started_s)
        ended = {"exitCode": 137, "reason": "Error", "startedAt": began, "finishedAt": format_rfc3339(now)}
        self.restarts += 1
        self._started, self._started_s = minute + 1, now
        self.obj = self._told({"terminated": ended})

    def _told(self, last_state: Object) -> Object:
        container = {
            "name": CONTAINER,
            "restartCount": self.restarts,
            "state": {"running": {"startedAt": format_rfc3339(self._started_s)}},
            "lastState": last_state,
        }
        return {**self._made, "status": {"phase": "Running", "containerStatuses": [container]}}
