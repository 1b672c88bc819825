"""Over and over: what nodes use, what is to be written of it, and the writing, in one burst at most once a period."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from nodewise import cooperative
from nodewise.annotator import allocation, fields, planning, writing
from nodewise.annotator.allocation import Allocation
from nodewise.annotator.measured import Left, Measure, Measured
from nodewise.annotator.options import Task
from nodewise.annotator.patches import Rules
from nodewise.annotator.planning import Known, Plans
from nodewise.annotator.sampling import Samples
from nodewise.annotator.writing import Written
from nodewise.clock import Clock
from nodewise.kube.api import Api
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.statistics import capacity

_MOST_NAMED: Final = 5


class Looked(NamedTuple):
    """What a look at all nodes came to."""

    plans: Plans
    failures: tuple[str, ...] = ()
    """What could not be measured, and why."""


class Annotator:
    """Measures, plans and writes."""

    def __init__(
        self, task: Task, rules: Rules, measure: Measure | None, clock: Clock, meters: MetricsRegistry
    ) -> None:
        """`measure` is None where only allocation is written."""
        self.task = task
        self._rules = rules
        self._measure = measure
        self._clock = clock
        self._meters = meters
        self._began_s = float("-inf")
        self._told: tuple[str, ...] = ()

    async def sample(self) -> None:
        """Take a sample of what nodes use, where it is time for one."""
        if self._measure is not None:
            await self._measure.look()

    @property
    def is_sampled(self) -> bool:
        """Whether the statistics are of samples that we take, one at a time."""
        return isinstance(self._measure, Samples)

    def is_due(self) -> bool:
        """Whether a period has gone by since the last burst began."""
        return self._clock.monotonic() - self._began_s >= self.task.period_s

    async def burst(self, api: Api, nodes: Iterable[Any], pods: Iterable[Any]) -> Written:
        """Look at all nodes and write what moved. Errors are counted and logged."""
        self._began_s = self._clock.monotonic()
        looked = await self.look(nodes, pods, holds=True)
        self._tell(looked)
        written = await writing.write(api, looked.plans.nodes)
        for outcome in ("done", "failed", "gone"):
            self._meters.count("node_annotations_total", getattr(written, outcome), outcome=outcome)
        if written.done:
            logs.emit("annotated", nodes=written.done)
        if written.failed:
            logs.emit("annotations_failed", nodes=written.failed, error=written.error)
        return written

    async def look(self, nodes: Iterable[Any], pods: Iterable[Any], *, holds: bool) -> Looked:
        """What is to be written now; `holds` as in `planning.Known`."""
        listed = list(nodes)
        allocated = await cooperative.run(allocation.by_node(pods, self.task.gpu))
        measured = await self._measured(listed, allocated) if self._measure else None
        known = Known(measured.usage if measured else None, allocated, self._clock.now(), holds)
        plans = await cooperative.run(planning.plan(listed, known, self.task, self._rules))
        return Looked(plans, measured.failures if measured else ())

    async def _measured(self, nodes: Iterable[Any], allocated: dict[str, Allocation]) -> Measured:
        assert self._measure is not None
        lefts = {}
        if self.task.use_requests:
            async for node in cooperative.iterate(filter(fields.is_ready, nodes)):
                asked = allocated.get(node.metadata.name, Allocation()).memory_bytes
                lefts[node.metadata.name] = Left(capacity.read(node.status.allocatable).memory_bytes, asked)
        return await self._measure.measured(lefts)

    def _tell(self, looked: Looked) -> None:
        """What is lacking: as numbers each time, in words when it is something else than the last time."""
        plans = looked.plans
        self._meters.set("node_annotations_lacking", len(plans.not_ready), why="not_ready")
        self._meters.set("node_annotations_lacking", len(plans.unmeasured), why="unmeasured")
        lacking = looked.failures or (("no recent value",) if plans.unmeasured else ())
        if lacking and lacking != self._told:
            shown = ", ".join(plans.unmeasured[:_MOST_NAMED])
            logs.emit("usage_unknown", nodes=len(plans.unmeasured), example=shown, error="; ".join(lacking))
        self._told = lacking
