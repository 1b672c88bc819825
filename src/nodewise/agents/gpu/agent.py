"""Answers requests of the gpu agent: whether a pod fits the GPUs of a node, and which ones it gets at bind.

Filter reserves nothing. A pod holds its GPUs from the reservation on that `bind` plans. Preempt fits the pod to the
allocations without those of the victims.

Which rejected nodes would not fit a pod even without any other pods, so that no eviction helps, is examined once for
all nodes with equal hardware (`GpuLayout.hardware_codes`), of which a cluster has few. Which pods may be evicted for it
does not matter here: kube-scheduler chooses victims by priority.

The Binding of a pod sets annotations. `gas-container-cards` and `gas-container-tiles` have one part per ordinary
container, as in GPU Aware Scheduling, whose device plugin knows no others. `cards.nodewise.io/<container>` names the
GPUs of every container, including sidecars and init containers. Free sub-devices are taken in ascending order, so that
the same pod on the same node gets the same ones. Source: GPU Aware Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go`.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nodewise.agent import (
    FilterPlugin,
    Names,
    Reason,
    ScorePlugin,
    Scores,
    Snapshot,
    StateExporter,
    Verdict,
    Victims,
    is_unresolvable,
)
from nodewise.agent.bind_plugin_interface import BindPlan, BindPlugin, Refusal
from nodewise.agents.gpu import (
    allocation_record,
    device_placement,
    fragmentation,
    gpu_arrays,
    gpu_rejection_reasons,
    node_allocations,
    pod_gpu_requests,
    typical_pods,
)
from nodewise.agents.gpu import placement_strategies as placements
from nodewise.agents.gpu import pod_gpu_requests as demands
from nodewise.agents.gpu.allocation_record import NO_RECORD, ContainerRequest, Reservation
from nodewise.agents.gpu.device_layout import DEVICE
from nodewise.agents.gpu.device_placement import (
    MOST_STEPS,
    MOST_STEPS_OF_COMMANDS,
    DeviceDemand,
    DevicePredictions,
    DeviceScores,
)
from nodewise.agents.gpu.dra_nodes import DraDetails
from nodewise.agents.gpu.fit import FitResult, build_details, fit
from nodewise.agents.gpu.gpu_arrays import ABSENT, GpuLayout, GpuUsage, Mask
from nodewise.agents.gpu.gpu_node_labels import MOST_SUBDEVICES
from nodewise.agents.gpu.gpu_pod_fields import GPU_NUMBERS, GPUS, SUBDEVICES, AllocatedPod, GpuPod, cpu_milli
from nodewise.agents.gpu.gpu_rejection_reasons import RejectionKind
from nodewise.agents.gpu.gpu_selection import GpuOrder
from nodewise.agents.gpu.node_gpus import NodeGpus
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.placement_strategies import PlacementInputs
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand, Demand
from nodewise.agents.gpu.state import ALLOCATION_RECORDS, NAME, PODS, GpuState, NodeState, export_state
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile

BIND_TIME: Final = "gas-ts"
"""The annotation by which the older device plugin orders pods by the time of their bind: Unix time in ns."""
_MOST_DEMANDS: Final = 256
"""Kept demands; tenants choose how many there are."""


class EmptyNodeFits:
    """Fits pods to nodes without other pods. Results are kept by demand, because pods of one workload are alike."""

    def __init__(self) -> None:
        self._hardware: object = None
        self._workload: object = None
        """The inputs of the kept results, compared by identity."""
        self._kept: dict[Demand, NDArray[np.int8]] = {}
        """By code of hardware: 1 if the demand fits, 0 if not, -1 if it was not examined."""

    def mark_unresolvable(
        self,
        verdict: Verdict,
        layout: GpuLayout,
        rows: NDArray[np.intp],
        demand: Demand,
        inputs: PlacementInputs,
    ) -> Verdict:
        """The verdict, with the reasons of candidates that are too small for the pod marked as unresolvable.

        `rows` are the columns of the candidates in the layout.
        """
        depends_on_pods = np.array([False, *(not is_unresolvable(reason) for reason in verdict.reasons)])
        rejected = np.flatnonzero(depends_on_pods[verdict.codes])
        if not len(rejected):
            return verdict
        too_small = rejected[~self.fits(layout, rows[rejected], demand, inputs)]
        if not len(too_small):
            return verdict
        codes, reasons = verdict.codes.copy(), [*verdict.reasons]
        codes_too_small = verdict.codes[too_small]
        for code in np.unique(codes_too_small).tolist():
            reason: Any = reasons[code - 1]
            reasons.append(replace(reason, is_unresolvable=True))
            codes[too_small[codes_too_small == code]] = len(reasons)
        return replace(verdict, codes=codes, reasons=tuple(reasons))

    def fits(
        self, layout: GpuLayout, rows: NDArray[np.intp], demand: Demand, inputs: PlacementInputs
    ) -> Mask:
        """By column of the layout, whether the pod would fit the node if no other pod were there."""
        is_same = self._hardware is layout.hardware_keys and self._workload is inputs.workload
        if not is_same or len(self._kept) >= _MOST_DEMANDS:
            self._hardware, self._workload = layout.hardware_keys, inputs.workload
            self._kept.clear()
        by_code = self._kept.get(demand)
        if by_code is None:
            by_code = self._kept[demand] = np.full(len(layout.hardware_keys), -1, np.int8)
        codes = layout.hardware_codes[0, rows]
        unknown = by_code[codes] < 0
        if unknown.any():
            # one column for each code; which of several does not matter
            example = np.full(len(by_code), -1, np.intp)
            example[codes[unknown]] = rows[unknown]
            examined = np.flatnonzero(example >= 0)
            order = placements.cheapest_gpu_order(inputs._replace(cpu_free=None), demand)
            empty = _layout_without_pods(layout, example[examined])
            by_code[examined] = fit(empty, np.arange(len(examined)), demand, order).codes == 0
        fits: Mask = by_code[codes] == 1
        return fits


def _layout_without_pods(layout: GpuLayout, rows: NDArray[np.intp]) -> GpuLayout:
    """The layout of these columns without allocations, with one more column that has no GPUs."""
    columns = np.append(rows, layout.size)
    capacity = {name: amounts[:, columns] for name, amounts in layout.capacity.items()}
    enabled = layout.enabled_subdevices[:, columns]
    free = {name: np.where(amounts > 0, amounts, ABSENT) for name, amounts in capacity.items()}
    if layout.subdevices in capacity:
        count = np.bitwise_count(enabled).astype(np.int64)
        free[layout.subdevices] = np.where(capacity[layout.subdevices] > 0, count, ABSENT)
    record_bytes = layout.record_bytes[:, columns]
    return layout._replace(
        rows=np.arange(len(columns)),
        name_codes=layout.name_codes[:, columns],
        capacity=capacity,
        free=free,
        usable=layout.usable[:, columns],
        model_codes=layout.model_codes[:, columns],
        preferred=layout.preferred[:, columns],
        groups=layout.groups[:, columns],
        group_states=layout.group_states[:, columns],
        links=layout.links[:, columns],
        free_subdevices=enabled,
        enabled_subdevices=enabled,
        record_bytes=np.where(record_bytes == NO_RECORD, record_bytes, 0),
        hardware_codes=layout.hardware_codes[:, columns],
    )


class GpuAgent(
    FilterPlugin[GpuPod, GpuState],
    ScorePlugin[GpuPod, GpuState],
    BindPlugin[GpuPod, GpuState],
    StateExporter[GpuPod, GpuState],
):
    name = NAME
    reason_marks = gpu_rejection_reasons.REASON_PREFIXES
    allocation_records = ALLOCATION_RECORDS
    pods = PODS

    def __init__(self, options: GpuOptions, profile: ResourceProfile) -> None:
        self._options = options
        self._profile = profile
        self._placement_inputs = _build_placement_inputs(options, profile)
        self._empty_node_fits = EmptyNodeFits()
        self._predictions = DevicePredictions()
        self._is_serving = False

    def serve(self) -> None:
        """From now on, answers must be fast, and the devices and CPU of a scored pod are expected to be in use."""
        self._is_serving = True

    @property
    def bind_errors(self) -> Literal["status", "field"]:
        return self._options.bind_errors

    def equivalence_key(self, pod: GpuPod, snapshot: Snapshot) -> Demand | None:  # noqa: ARG002
        """The demand of the pod, which is equal for pods that fit the same nodes; None if it requests no GPUs."""
        demand = self.demand_of(pod)
        return demand if demand.wants_gpus else None

    def demand_of(self, pod: GpuPod) -> Demand:
        """The demand of the pod, also if it is empty."""
        return demands.parse_demand(pod, self._profile, self._options)

    def filter(self, pod: GpuPod, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        """Reject nodes that the pod does not fit.

        If it fits a node with a GPU that a telemetry policy prefers, only such nodes pass.
        """
        demand, agent_state = self.demand_of(pod), self.state(snapshot)
        if not demand.wants_gpus:
            return (
                None
                if agent_state is None
                else self._device_verdict(pod, demand, candidates, snapshot, agent_state)
            )
        if agent_state is None:
            return Verdict(np.ones(len(candidates), np.int16), (gpu_rejection_reasons.GpuStateNotReady(),))
        rows = agent_state.layout.rows[candidates.numbers]
        inputs = self._placement_inputs_of(agent_state)
        order = placements.cheapest_gpu_order(inputs, demand)
        verdict, fitted = _fit_demand_to_candidates(agent_state.layout, rows, demand, order)
        verdict = self._empty_node_fits.mark_unresolvable(verdict, agent_state.layout, rows, demand, inputs)
        verdict = _reject_unknown_nodes(verdict, candidates)
        verdict = self._explain_nodes_without_gpus(verdict, candidates, agent_state, demand)
        if self._left_to_scheduler(demand, agent_state, candidates).all():
            devices = self._device_verdict(pod, demand, candidates, snapshot, agent_state)
            return verdict if devices is None else replace(verdict, details=devices.details)
        if not fitted.preferred.any():
            return verdict
        over = (verdict.codes == 0) & (fitted.codes == 0) & ~fitted.preferred
        codes = np.where(over, np.int16(len(verdict.reasons) + 1), verdict.codes)
        return replace(verdict, codes=codes, reasons=(*verdict.reasons, gpu_rejection_reasons.PassedOver()))

    def score(  # complexity: pods with GPUs, devices or neither
        self, pod: GpuPod, candidates: Names, snapshot: Snapshot
    ) -> Scores | None:
        """Score nodes by the placement; some placements also score nodes for pods without GPUs."""
        demand = self.demand_of(pod)
        agent_state = self.state(snapshot)
        if agent_state is None or demand.problem is not None:
            return None
        inputs = self._placement_inputs_of(agent_state)
        wanted = device_placement.device_demand(pod, agent_state.claims, agent_state.device_classes)
        if wanted.reason:
            # GPUs of device plugins can still be placed
            if not demand.wants_gpus or self._left_to_scheduler(demand, agent_state, candidates).any():
                return None
        elif wanted.claims or (agent_state.device_layout.nodes and not demand.wants_gpus):
            return self._score_devices(pod, demand, wanted, candidates, snapshot, agent_state)
        if not inputs.prefers_nodes(demand):
            return None
        rows, fitted = agent_state.layout.rows[candidates.numbers], None
        if demand.wants_gpus:
            fitted = fit(agent_state.layout, rows, demand, placements.gpu_order(inputs, demand))
        else:
            demand = Demand(cpu_milli=cpu_milli(pod))
        points = placements.node_points(inputs, agent_state.layout, rows, demand, fitted)
        if points is None:
            return None
        fit_detail = None if fitted is None else build_details(agent_state.layout, rows, demand, fitted)
        return Scores(points, details=fit_detail)

    def _device_verdict(
        self, pod: GpuPod, demand: Demand, candidates: Names, snapshot: Snapshot, agent_state: GpuState
    ) -> Verdict | None:
        """No candidate is rejected: only details of the devices that kube-scheduler will choose.

        None if the scores will have them.
        """
        wanted = device_placement.device_demand(pod, agent_state.claims, agent_state.device_classes)
        if not wanted.claims and not wanted.reason:
            return None
        alike = device_placement.equivalent_demand(pod, demand, wanted)
        if wanted.claims and self._placement_inputs.prefers_nodes(alike):
            return None
        columns = agent_state.device_layout.layout.rows[candidates.numbers]
        scored = self._predicted_devices(pod, wanted, columns, snapshot, agent_state)
        return Verdict(np.zeros(len(candidates), np.int16), (), details=scored.details)

    def _predicted_devices(
        self,
        pod: GpuPod,
        wanted: DeviceDemand,
        columns: NDArray[np.intp],
        snapshot: Snapshot,
        agent_state: GpuState,
    ) -> DeviceScores:
        key, pods = (pod.metadata.namespace, pod.metadata.name), agent_state.pods.by_key
        self._predictions.forget_seen(key, agent_state.devices, agent_state.claims, pods, snapshot.at)
        devices, classes = agent_state.device_layout, agent_state.device_classes
        steps = MOST_STEPS if self._is_serving else MOST_STEPS_OF_COMMANDS
        return self._predictions.score(devices, classes, wanted, columns, steps)

    def _score_devices(  # complexity: nodes of both forms
        self,
        pod: GpuPod,
        demand: Demand,
        wanted: DeviceDemand,
        candidates: Names,
        snapshot: Snapshot,
        agent_state: GpuState,
    ) -> Scores | None:
        """Score nodes by devices of DRA drivers, and by GPUs the nodes that have extended resources of the pod."""
        devices = agent_state.device_layout
        inputs = self._placement_inputs._replace(counts=(), balanced_by=(DEVICE,), workload=devices.workload)
        alike = device_placement.equivalent_demand(pod, demand, wanted)
        if not inputs.prefers_nodes(alike):
            return None
        columns = devices.layout.rows[candidates.numbers]
        if demand.wants_gpus:
            left = self._left_to_scheduler(demand, agent_state, candidates)
            if wanted.has_extended_resources:
                columns = np.where(left, columns, len(devices.nodes))
        else:
            left = (columns < len(devices.nodes)) | bool(wanted.claims)
        scored = self._predicted_devices(pod, wanted, columns, snapshot, agent_state)
        if agent_state.device_cpu_free is not None:
            cpu_free = self._predictions.free_cpu(devices, agent_state.device_cpu_free)
            inputs = inputs._replace(cpu_free=cpu_free)
        keys = placements.node_sort_keys(inputs, scored.before, scored.after, scored.taken, alike)
        fits = scored.fits
        if not left.all():
            gpu_inputs = self._placement_inputs_of(agent_state)
            rows = agent_state.layout.rows[candidates.numbers]
            plain = demand if demand.wants_gpus else alike
            fitted = None
            if demand.wants_gpus:
                fitted = fit(agent_state.layout, rows, demand, placements.gpu_order(gpu_inputs, demand))
            gpu_keys = placements.node_keys(gpu_inputs, agent_state.layout, rows, plain, fitted)
            keys = [np.where(left, *pair) for pair in zip(keys, gpu_keys, strict=False)]
            fits = np.where(left, fits, True if fitted is None else fitted.codes == 0)
        points = placements.scores_from_sort_keys([*keys, placements.mixed_order(candidates.numbers)], fits)
        best = int(points.argmax()) if len(points) else 0
        if len(points) and scored.fits[best] and self._is_serving:
            key = pod.metadata.namespace, pod.metadata.name
            self._predictions.expect(key, alike.cpu_milli, scored, best, snapshot.at)
        return Scores(points, details=scored.details if wanted.claims else None)

    def preempt(self, pod: GpuPod, candidates: Names, snapshot: Snapshot, victims: Victims) -> Verdict | None:
        demand = self.demand_of(pod)
        if not demand.wants_gpus:
            return None
        agent_state = self.state(snapshot)
        if agent_state is None:
            return Verdict(np.ones(len(candidates), np.int16), (gpu_rejection_reasons.GpuStateNotReady(),))
        resources = frozenset(resource for container in demand.containers for resource in container.per_gpu)
        resources |= {
            self._profile.subdevices,
            *self._placement_inputs.balanced_by,
            *self._placement_inputs.workload.shared,
        }
        left = [
            _node_without_pods(agent_state.nodes.get(name), victims.get(name, frozenset()), resources)
            for name in candidates
        ]
        numbers = np.arange(len(left) + 1)
        layout = gpu_arrays.build_layout(left, numbers, self._profile.subdevices)
        order = placements.cheapest_gpu_order(self._placement_inputs, demand)
        verdict, _ = _fit_demand_to_candidates(layout, numbers[:-1], demand, order)
        return self._explain_nodes_without_gpus(
            _reject_unknown_nodes(verdict, candidates), candidates, agent_state, demand
        )

    def bind(  # complexity: one branch for each refusal
        self, pod: AllocatedPod, node: str, snapshot: Snapshot, now: float
    ) -> BindPlan | Refusal | None:
        """Plan the GPUs that the pod already holds on the node, or else new ones."""
        demand, agent_state = self.demand_of(pod), self.state(snapshot)
        if not demand.wants_gpus:
            return None
        if (
            agent_state is not None
            and self._left_to_scheduler(demand, agent_state, snapshot.nodes.named([node]))[0]
        ):
            return None
        if agent_state is None:
            return _refusal_with_older_text(gpu_rejection_reasons.GpuStateNotReady())
        if node not in snapshot.nodes:
            missing = f'error reading node {node}: node fetch error: node "{node}" not found'
            return Refusal(missing, gpu_rejection_reasons.UnknownNode())
        there = agent_state.nodes.get(node)
        entry = self._reservation_of(pod, there, now) if there is not None else None
        if entry is None:
            rows = agent_state.layout.rows[snapshot.nodes.numbers([node])]
            order = placements.gpu_order(self._placement_inputs_of(agent_state), demand)
            fitted = fit(agent_state.layout, rows, demand, order)
            if there is None or fitted.codes[0]:
                reason = fitted.reasons[fitted.codes[0] - 1]
                if reason == gpu_rejection_reasons.NoGpus():
                    reason = gpu_rejection_reasons.NoGpus(*agent_state.missing.of(snapshot.nodes, node)[:2])
                return _refusal_with_older_text(reason)
            entry = self._new_reservation(pod, demand, fitted, there)
        seen = allocation_record.latest_planned_version(entry.seen, pod.metadata.resourceVersion)
        entry = msgspec.structs.replace(entry, seen=seen, at=entry.at or now)
        planned = _plan_annotations(pod, entry, demand, self._profile.subdevices, now)
        if not isinstance(planned, tuple):
            return _refusal_with_older_text(planned)
        stale = there.allocations.stale if there is not None else frozenset[str]()
        return BindPlan(allocation_record.reservation_to_json(entry), planned[0], stale, planned[1])

    def export(self, state: GpuState, query: Mapping[str, str]) -> Generator[None, None, bytes]:
        """The allocations of all nodes, as JSON."""
        return export_state(state, query)

    def _left_to_scheduler(self, demand: Demand, agent_state: GpuState, candidates: Names) -> Mask:
        """By candidate, whether kube-scheduler allocates GPUs of the pod there itself.

        The rules of a device plugin by which a pod is invalid do not apply there.
        """
        containers: Iterable[ContainerRequest] = (*demand.containers, *demand.init_containers)
        requested = {resource for container in containers for resource in container.per_gpu}
        return agent_state.dra.left(demand.refused | requested, candidates.numbers)

    def _explain_nodes_without_gpus(
        self, verdict: Verdict, candidates: Names, agent_state: GpuState, demand: Demand
    ) -> Verdict:
        """The verdict in which the reason of each node without GPUs says what was found there.

        Nodes whose GPUs kube-scheduler allocates itself pass, and their details name the driver.
        """
        left = self._left_to_scheduler(demand, agent_state, candidates)
        if left.any():
            drivers_left = agent_state.dra.drivers_of(candidates.numbers)
            details = DraDetails(verdict.details, left, drivers_left, agent_state.dra.drivers)
            codes = np.where(left, np.int16(0), verdict.codes)
            verdict = replace(verdict, codes=codes, details=details)
        plain, missing = gpu_rejection_reasons.NoGpus(), agent_state.missing
        if plain not in verdict.reasons:
            return verdict
        at = np.flatnonzero(verdict.codes == verdict.reasons.index(plain) + 1)
        causes, drivers = (
            missing.codes[candidates.numbers[at]],
            agent_state.dra.drivers_of(candidates.numbers[at]),
        )
        codes, reasons = verdict.codes.copy(), list(verdict.reasons)
        pairs = causes.astype(np.int32) * len(agent_state.dra.drivers) + drivers
        for pair in np.unique(pairs[pairs > 0]).tolist():
            cause, driver = divmod(pair, len(agent_state.dra.drivers))
            words, remedy = missing.reasons[cause][:2]
            if driver:
                text = (
                    f"no DeviceClass names it for devices of the DRA driver {agent_state.dra.drivers[driver]}"
                )
                words, remedy = (
                    f"{words}; {text}".removeprefix("; "),
                    f"{text}; or {remedy}".removesuffix("; or "),
                )
            reasons.append(gpu_rejection_reasons.NoGpus(words, remedy))
            codes[at[pairs == pair]] = len(reasons)
        return replace(verdict, codes=codes, reasons=tuple(reasons))

    def _placement_inputs_of(self, agent_state: GpuState) -> PlacementInputs:
        """The current inputs of placements; a file of typical pods takes precedence over the histogram."""
        return self._placement_inputs._replace(
            workload=self._placement_inputs.workload or agent_state.workload, cpu_free=agent_state.cpu_free
        )

    def _reservation_of(self, pod: AllocatedPod, there: NodeState, now: float) -> Reservation | None:
        """The reservation of the pod that counts, with the version that it was planned on; None if there is none."""
        held = there.allocations.by_uid.get(pod.metadata.uid)
        if held is None or held.source != "ledger":
            return None
        entry = allocation_record.parse_record(there.record_text).entries[pod.metadata.uid]
        is_same = entry.seen == pod.metadata.resourceVersion
        return entry if is_same else msgspec.structs.replace(entry, at=now)

    def _new_reservation(  # complexity: one expression for each field
        self, pod: AllocatedPod, demand: Demand, fitted: FitResult, there: NodeState
    ) -> Reservation:
        """The GPUs that the pod gets on the only candidate."""
        names, resource = there.gpus.names, self._profile.subdevices
        has_sidecars = len(demand.containers) > len(pod.spec.containers or ())
        gpus = [[names[at] for at in container] for container in fitted.gpus(0)]
        requests = [
            _subdevice_requests(container, names, ends, resource)
            for container, names, ends in zip(demand.containers, gpus, fitted.subdevices(0), strict=True)
        ]
        numbers = assign_subdevices(there.gpus, there.allocations, resource, requests)
        listed = [
            (container, names, tiles)
            for container, names, tiles in zip(demand.containers, gpus, numbers, strict=True)
            if has_sidecars or container.count
        ]
        tiled = [
            (names, tiles) if resource in container.per_gpu else ((), ())
            for container, names, tiles in listed
        ]
        return Reservation(
            pod=f"{pod.metadata.namespace}/{pod.metadata.name}",
            gpus=allocation_record.format_gpus([names for _, names, _ in listed]),
            subdevices=allocation_record.format_subdevices(
                [names for names, _ in tiled], [tiles for _, tiles in tiled]
            ),
            charged=tuple(dict(container.per_gpu) for container, _, _ in listed),
        )


def _build_placement_inputs(options: GpuOptions, profile: ResourceProfile) -> PlacementInputs:
    """The inputs of placements; typical pods come from the file if there is one."""
    path = options.gpu_typical_pods
    workload = fragmentation.NO_WORKLOAD
    if path:
        workload = fragmentation.build_fragmentation_tables(
            typical_pods.load_typical_pods(path, profile, options), profile.counts
        )
    return PlacementInputs(options.placement, profile.counts, options.balanced_by(profile), workload)


def _fit_demand_to_candidates(
    layout: GpuLayout, rows: NDArray[np.intp], demand: Demand, order: GpuOrder
) -> tuple[Verdict, FitResult]:
    fitted = fit(layout, rows, demand, order)
    names_gpus = not isinstance(order, placements.AnyGpu)
    fit_detail = build_details(layout, rows, demand, fitted, names_gpus=names_gpus)
    return Verdict(fitted.codes, fitted.reasons, details=fit_detail), fitted


def _refusal_with_older_text(reason: Reason) -> Refusal:
    """The refusal of a bind, with the older system's text for the reason."""
    kind: RejectionKind | None = getattr(reason, "kind", None)
    return Refusal(kind.value if kind is not None else reason.text(), reason)


def _reject_unknown_nodes(verdict: Verdict, candidates: Names) -> Verdict:
    """The verdict with a separate reason for unknown nodes."""
    strange = candidates.numbers == len(candidates.index)
    if not strange.any():
        return verdict
    codes = np.where(strange, np.int16(len(verdict.reasons) + 1), verdict.codes)
    return replace(verdict, codes=codes, reasons=(*verdict.reasons, gpu_rejection_reasons.UnknownNode()))


def _node_without_pods(
    there: NodeState | None, uids: frozenset[str], resources: frozenset[str]
) -> tuple[NodeGpus, node_allocations.NodeAllocations]:
    """The layout of a node without some pods, with only the resources of the demand."""
    if there is None:
        return NodeGpus(), node_allocations.EMPTY
    capacity = {name: row for name, row in there.gpus.capacity.items() if name in resources}
    allocations = node_allocations.allocations_without_pods(there.allocations, uids)
    if allocations is not there.allocations:
        allocations = allocations._replace(
            record_bytes=allocations.record_bytes
            - allocation_record.reservation_bytes(there.record_text, uids)
        )
    return there.gpus._replace(capacity=capacity), allocations


def _plan_annotations(  # complexity: one step for each annotation
    pod: AllocatedPod, reservation: Reservation, demand: Demand, subdevices: str, now: float
) -> tuple[dict[str, str], str] | Reason:
    """The annotations of a pod with this reservation, and their description for people such as `train: card0, card1;
    side: card0 gt1`, init containers last. A reason if its GPUs do not suffice for an init container.

    They follow from the reservation and the demand, so a repeated bind sets the same GPUs. `subdevices` is the resource
    that counts sub-devices, and `now` the Unix time in seconds.
    """
    entry = allocation_record.pad_reservation_to_all_containers(
        reservation, [bool(container.count) for container in demand.containers]
    )
    ordinary = [container.name for container in pod.spec.containers or ()]
    names = [*ordinary, *(container.name for container in demand.containers[len(ordinary) :])]
    gpus = allocation_record.parse_gpus(entry.gpus)
    tiles = _subdevices_of_containers(entry, len(gpus))
    held: list[tuple[str, Sequence[str], Mapping[str, Sequence[str]]]] = [
        *zip(names, gpus, tiles, strict=False)
    ]
    reused = pod_gpu_requests.reused_gpus(demand.init_containers, demand.containers, gpus)
    for init, chosen in zip(demand.init_containers, reused, strict=True):
        if not chosen:
            later = sum(demand.containers[at].count for at in init.later)
            return gpu_rejection_reasons.LaterContainersTooSmall(init.name, init.count, later)
        of_init = pod_gpu_requests.reused_subdevices(init, demand.containers, tiles, subdevices)
        held.append((init.name, chosen, of_init))
    annotations = {
        BIND_TIME: str(int(now * 1e9)),
        GPUS: allocation_record.first_parts(entry.gpus, len(ordinary)),
    }
    of_ordinary = allocation_record.first_parts(entry.subdevices, len(ordinary))
    if of_ordinary or SUBDEVICES in (pod.metadata.annotations or {}):
        annotations[SUBDEVICES] = of_ordinary
    descriptions = []
    for name, cards, taken in held:
        if cards:
            annotations[GPU_NUMBERS + name] = allocation_record.format_gpu_numbers(cards)
            texts = [f"{gpu} {'+'.join(taken[gpu])}" if taken.get(gpu) else gpu for gpu in cards]
            descriptions.append(f"{name}: {', '.join(texts)}")
    return annotations, "; ".join(descriptions)


def _subdevices_of_containers(entry: Reservation, containers: int) -> list[dict[str, list[str]]]:
    """By container and GPU, the names of the sub-devices in `card0:gt0+gt1,|card1:gt0`."""
    segments = entry.subdevices.split("|")
    if len(segments) != containers:
        return [{} for _ in range(containers)]
    parts = [[part.partition(":") for part in segment.split(",")] for segment in segments]
    return [{gpu: names.split("+") for gpu, _, names in segment if names} for segment in parts]


_Tiles = tuple[int, ...]


class SubdeviceRequest(NamedTuple):
    """The request for sub-devices of one GPU of a container."""

    gpu: str
    subdevices: int
    """The number of sub-devices to take."""
    linked: int = -1
    """The sub-device that has the link; -1 without one."""


def _subdevice_requests(
    container: ContainerDemand, gpus: Sequence[str], linked: Sequence[int], resource: str
) -> list[SubdeviceRequest]:
    """The GPUs of a container, with the number of sub-devices to take."""
    amount = container.per_gpu.get(resource, 0)
    return [
        SubdeviceRequest(gpu, amount, at) for gpu, at in zip(gpus, linked or [-1] * len(gpus), strict=True)
    ]


def assign_subdevices(
    gpus: NodeGpus, usage: GpuUsage, resource: str, containers: Sequence[Sequence[SubdeviceRequest]]
) -> tuple[tuple[_Tiles, ...], ...]:
    """Sub-device numbers by container and GPU, in the order in which they are taken; `resource` counts sub-devices.

    Linked sub-devices are reserved for all containers first. If the pod fits, there are enough for all
    containers.
    """
    requested = [request for container in containers for request in container]
    left = {request.gpu: _free_subdevices(gpus, usage, resource, request.gpu) for request in requested}
    for request in requested:
        if request.subdevices and request.linked in left[request.gpu]:
            left[request.gpu].remove(request.linked)
    return tuple(
        tuple(_take_subdevices(gpus, left[request.gpu], request) for request in container)
        for container in containers
    )


def move_preferred_first(subdevices: Sequence[int], preferred: Sequence[int]) -> list[int]:
    """Move preferred sub-devices to the front: each is swapped with the one in its place."""
    ordered = list(subdevices)
    existing = [subdevice for subdevice in dict.fromkeys(preferred) if subdevice in ordered]
    for place, subdevice in enumerate(existing):
        at = ordered.index(subdevice)
        if at > place:
            ordered[at], ordered[place] = ordered[place], ordered[at]
    return ordered


def _free_subdevices(gpus: NodeGpus, usage: GpuUsage, resource: str, gpu: str) -> list[int]:
    amounts = gpus.capacity.get(resource)
    capacity = min(amounts[gpus.names.index(gpu)], MOST_SUBDEVICES) if amounts else 0
    gone = usage.subdevices.get(gpu, frozenset()) | gpus.subdevices_off.get(gpu, frozenset())
    return [subdevice for subdevice in range(capacity) if subdevice not in gone]


def _take_subdevices(gpus: NodeGpus, left: list[int], request: SubdeviceRequest) -> _Tiles:
    """Take the requested number of sub-devices from the free ones of a GPU (`left`)."""
    if not request.subdevices:
        return ()
    linked = (request.linked,) if request.linked >= 0 else ()
    count = request.subdevices - len(linked)
    others = move_preferred_first(left, gpus.subdevices_preferred.get(request.gpu, ()))[:count]
    left[:] = [subdevice for subdevice in left if subdevice not in others]
    return (*linked, *others)
