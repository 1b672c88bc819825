"""What rounds of a sweep came to, as log lines: what stays as it is, is told once."""

from nodewise.cpu.node.sweeping import Round
from nodewise.observe import logs


class Told:
    """One `reconcile`'s, or one node agent's."""

    def __init__(self) -> None:
        self._known: set[tuple[int, str]] = set()

    def tell(self, done: Round) -> None:
        """What was done, and what is new of what is not as it should be."""
        for one in done.reclaimed:
            where = {"pod": one.task.pod, "container": one.task.container}
            logs.emit("cpu_reclaimed", pid=one.task.pid, cpus=one.cpus, pool=one.pool, **where)
        elsewhere = {(wrong["pid"], wrong["cpus"]): wrong for wrong in done.elsewhere}
        doubtful = {(task.pid, ""): task for task in done.doubtful}
        for key in elsewhere.keys() - self._known:
            logs.emit("cpu_elsewhere", **elsewhere[key])
        for key in doubtful.keys() - self._known:
            task = doubtful[key]
            logs.emit("cpu_doubtful", pid=task.pid, pod=task.pod, container=task.container)
        self._known = {*elsewhere, *doubtful}
