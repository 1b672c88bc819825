"""A bound pod of the burst simulation: its usage, its restarts and its Pod object."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nodewise.base.clock import format_rfc3339
from nodewise_scorers.bursts import bursts_workload
from nodewise_scorers.bursts.bursts_workload import CONTAINER, BurstyPod

Object = dict[str, Any]

_NOT_TERMINATED: Final[Object] = {}


class PlacedPod:
    """A pod from the minute in which it was bound."""

    def __init__(self, pod: BurstyPod, node: str, minute: int, now: float) -> None:
        self.pod = pod
        self.node = node
        self.restarts = 0
        self._placed = self._started = minute
        self._started_s = now
        made = bursts_workload.build_pod_object(pod)
        self._pod_object = {**made, "spec": {**made["spec"], "nodeName": node}}
        self.obj = self._pod_with_last_state(_NOT_TERMINATED)
        """The Pod object with its current status."""

    @property
    def end_minute(self) -> int:
        """The first minute in which the pod no longer exists."""
        return self._placed + self.pod.minutes

    def use(self, minute: int) -> NDArray[np.float64]:
        """Usage in a minute: milli-CPU and bytes."""
        return self.pod.use[:, minute - self._started]

    def failure_draws(self, minute: int) -> float:
        """A random number from 0 to 1; the pod fails on an overloaded node if it is below the failure probability."""
        return float(self.pod.failure_draws[minute - self._placed])

    def restart(self, minute: int, now: float) -> None:
        """Record a failure in this minute; the container runs again from the next one."""
        began = format_rfc3339(self._started_s)
        ended = {"exitCode": 137, "reason": "Error", "startedAt": began, "finishedAt": format_rfc3339(now)}
        self.restarts += 1
        self._started, self._started_s = minute + 1, now
        self.obj = self._pod_with_last_state({"terminated": ended})

    def _pod_with_last_state(self, last_state: Object) -> Object:
        container = {
            "name": CONTAINER,
            "restartCount": self.restarts,
            "state": {"running": {"startedAt": format_rfc3339(self._started_s)}},
            "lastState": last_state,
        }
        return {**self._pod_object, "status": {"phase": "Running", "containerStatuses": [container]}}
