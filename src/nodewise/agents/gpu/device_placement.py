"""Scores nodes for pods with claims of DRA devices, by the devices that kube-scheduler will allocate there.

The claims of a pod are those of `spec.resourceClaims`, and the one that kube-scheduler creates for extended resources
that DeviceClasses name. On each candidate the devices are predicted in kube-scheduler's own order, and the node is
scored as by the placement for GPUs. No node is rejected. A node has no points where the devices are not predicted.

Devices that several nodes can use are not predicted: where a request may get one, the devices of the pod are not known
on any node.

A claim that is allocated already, for example because pods share it, decides the node by itself: kube-scheduler permits
no other, so the pod gets no points for it, only for GPUs of device plugins.

kube-scheduler writes an allocation after the scores of the next pod. Until it is seen, the devices of a scored pod
count as in use on its best node, so that the next pod is predicted correctly. Its CPU counts until the pod is seen on a
node, also that of a pod without claims. If kube-scheduler chose another node, both are free again as soon as the
allocation or the node is seen.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ObjectKey
from nodewise.agents.gpu import device_layout
from nodewise.agents.gpu.device_layout import DEVICE, WHOLE, DeviceLayout
from nodewise.agents.gpu.extended_resource_amounts import Amounts
from nodewise.agents.gpu.gpu_arrays import CandidateGpus
from nodewise.agents.gpu.gpu_pod_fields import PLACEMENT, AllocatedPod, GpuPod, cpu_milli
from nodewise.agents.gpu.options import PLACEMENTS
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand, Demand
from nodewise.base.errors import list_first
from nodewise.devices import device_allocation, device_inventory, resource_claims
from nodewise.devices.device_allocation import (
    DeviceUse,
    NotPredicted,
    PredictedDevice,
    SearchBudget,
    predict_devices,
)
from nodewise.devices.device_inventory import DeviceInventory, NodeDevices
from nodewise.devices.device_selectors import device_matches
from nodewise.devices.resource_claims import DeviceClass, ResourceClaim
from nodewise.devices.resource_slices import Device, DeviceId, PoolSlices

_MOST_REQUESTS: Final = 64
"""Different requests whose predictions are kept. Tenants choose how many there are."""
_MOST_RESULTS: Final = 4096
"""Different predictions of one request; with more, all are forgotten."""
MOST_STEPS: Final = 6_000
"""Steps of the searches for one pod: about 800 nodes with eight devices, in about 100 ms. Further nodes that changed
have no points until the next pod with this request."""
MOST_STEPS_OF_COMMANDS: Final = 600_000
"""The same for a command, whose pods wait for no scheduler: all of 5,000 nodes with 40 devices, in about 10 s."""
_MOST_LONG_SEARCHES: Final = 8
"""Searches for one pod that may end without a result because they are too long. Further nodes are not examined:
tenants can write claims whose search is too long on every node, and each takes 40 ms."""
_MOST_LISTED: Final = 3
"""Claims of a pod in a message."""
_EXPECTED_S: Final = 10.0
"""After this time an allocation or node that was not seen does not count."""
_MOST_NETWORK_CHECKS: Final = 2_048
"""Selectors of a request and devices of several nodes that are compared. With more, the request may get one of them.
Tenants choose how many alternatives requests have."""
_MOST_EXPECTED: Final = 256
"""Pods whose allocation or node was not seen; of more, the oldest do not count. Tenants choose how many pods never
bind."""


class DeviceDemand(NamedTuple):
    """The claims of a pod that have no devices yet."""

    claims: tuple[ResourceClaim, ...]
    keys: tuple[ObjectKey, ...] = ()
    """Those of `claims` that exist; the last claim does not if it is for extended resources."""
    reason: str = ""
    """Why the devices are not predicted on any node; empty if they are."""
    allocated_on: frozenset[str] | None = None
    """With a reason, the only nodes with the devices of a claim that other pods use; None if they are not known."""

    @property
    def has_extended_resources(self) -> bool:
        return len(self.claims) > len(self.keys)

    @property
    def key(self) -> Hashable:
        """Equal for pods with the same requests."""
        claims = [(claim.requests, claim.constraints, claim.is_too_large) for claim in self.claims]
        return self.reason, tuple(claims)


NO_DEVICES_REQUESTED: Final = DeviceDemand(())


def device_demand(
    pod: GpuPod, claims: Mapping[ObjectKey, ResourceClaim], classes: Mapping[str, DeviceClass]
) -> DeviceDemand:
    """The demand of a pod; without claims and a reason if it requests no devices."""
    if not classes:
        return NO_DEVICES_REQUESTED
    # pods of a store are kept without these fields
    spec, status = pod.spec, getattr(pod, "status", None)
    references = resource_claims.claims_of_pod(
        resource_claims.ClaimingPodSpec(getattr(spec, "resource_claims", None)),
        resource_claims.ClaimingPodStatus(getattr(status, "resource_claim_statuses", None)),
    )
    if len(references) > device_allocation.MOST_REQUESTS:
        reason = f"the claims of the pod have more than {device_allocation.MOST_REQUESTS} requests"
        return DeviceDemand((), reason=reason)
    wanted, keys = [], []
    for reference in references:
        claim = claims.get((pod.metadata.namespace, reference.claim))
        if claim is None:
            return DeviceDemand((), reason=f"claim {reference.reference} of the pod was not seen yet")
        if claim.is_allocated:
            reason, nodes = f"claim {reference.reference} is allocated already", _allocated_on(claim, pod)
            return DeviceDemand((), reason=reason, allocated_on=nodes)
        wanted.append(claim)
        keys.append((pod.metadata.namespace, reference.claim))
    extended = device_allocation.claim_of_extended_resources(spec, classes)
    if extended is not None:
        wanted.append(extended)
    return DeviceDemand(tuple(wanted), tuple(keys))


def _allocated_on(claim: ResourceClaim, pod: GpuPod) -> frozenset[str] | None:
    """The only nodes on which an allocated claim in use can be used; None if that depends on labels of nodes.

    kube-scheduler takes the devices from a claim that no other pod uses, to allocate others.
    """
    is_in_use = any((each.resource, each.name) != ("pods", pod.metadata.name) for each in claim.reserved_for)
    if claim.node_selector is None or not is_in_use:
        return None
    names: set[str] = set()
    for term in claim.node_selector.node_selector_terms or ():
        of_term = [
            each.values or ()
            for each in term.match_fields or ()
            if each.key == "metadata.name" and each.operator == "In"
        ]
        if not of_term:
            return None
        names.update(of_term[0])
    return frozenset(names)


def equivalent_demand(pod: GpuPod, demand: Demand, wanted: DeviceDemand) -> Demand:
    """A demand of one device for the placement of the pod, which takes the devices that are predicted.

    A pod without claims has none: its CPU is best taken from nodes where no free device needs it.
    """
    word = (pod.metadata.annotations or {}).get(PLACEMENT)
    placement = demand.placement or next((each for each in PLACEMENTS if each == word), None)
    containers = (ContainerDemand("devices", 1, Amounts({DEVICE: WHOLE})),) if wanted.claims else ()
    return Demand(containers, placement=placement, cpu_milli=cpu_milli(pod))


class _PlacedDevice(NamedTuple):
    """A `PredictedDevice`, with the position of the device instead of the device."""

    claim: int
    request: str
    position: int
    is_admin_access: bool
    consumed: tuple[tuple[str, int], ...] | None


class _Placement(NamedTuple):
    """The devices of a pod on nodes that give the same ones by position."""

    devices: tuple[_PlacedDevice, ...]
    milli: tuple[tuple[int, int], ...]
    """What is no longer free: position, and thousandths."""


class _BesideExpected(NamedTuple):
    """The prediction for a node on which devices of other pods are expected to be in use."""

    version: int
    """The version of the node."""
    devices: list[PredictedDevice]
    """The expected ones."""
    code: int
    milli: list[int]
    """By position, the thousandths that the expected ones take."""


class _Known:
    """The predictions of one request by column."""

    def __init__(self, devices: DeviceLayout) -> None:
        size = len(devices.versions)
        self.versions = np.full(size, -1, np.int64)
        """The versions of nodes that they were made for."""
        self.codes = np.zeros(size, np.int32)
        """Indices into `results`."""
        self.results: list[_Placement | str] = []
        """Different placements, or why there is none. Details of decisions share it, so it only grows."""
        self.beside_expected: dict[int, _BesideExpected] = {}
        """By column, those for the candidates of the last pod."""
        self.fits_no_devices: bool | None = None
        """Whether nodes without devices fit; None if that was not examined."""
        self._code_of: dict[_Placement | str, int] = {}
        self._fits = np.zeros(0, np.bool_)
        # no more than 1,000 thousandths, and there may be thousands of results
        self._milli = np.zeros((0, devices.layout.most_gpus), np.int16)
        self.code(_DOES_NOT_FIT)
        self.versions[-1] = devices.versions[-1]

    def is_for(self, devices: DeviceLayout) -> bool:
        """Whether they can be used with this layout."""
        sizes = len(devices.versions), devices.layout.most_gpus
        return sizes == (len(self.versions), self._milli.shape[1]) and len(self.results) <= _MOST_RESULTS

    def code(self, result: _Placement | str) -> int:
        code = self._code_of.setdefault(result, len(self.results))
        if code == len(self.results):
            self.results.append(result)
        return code

    def fits_and_milli(self) -> tuple[NDArray[np.bool_], NDArray[np.int16]]:
        """By code, whether the claims fit, and the thousandths by position that are then no longer free."""
        added = self.results[len(self._fits) :]
        if added:
            milli = np.zeros((len(added), self._milli.shape[1]), np.int16)
            for row, result in zip(milli, added, strict=True):
                for position, amount in result.milli if isinstance(result, _Placement) else ():
                    row[position] = amount
            self._milli = np.concatenate([self._milli, milli])
            fits = [isinstance(result, _Placement) for result in added]
            self._fits = np.concatenate([self._fits, np.array(fits, np.bool_)])
        return self._fits, self._milli


class _Expected(NamedTuple):
    """The devices and CPU of a pod on its best node, as far as they were not seen in use yet."""

    node: str
    devices: tuple[PredictedDevice, ...]
    """Empty if the allocation was seen."""
    claims: tuple[ObjectKey, ...]
    cpu_milli: int
    """0 if the pod was seen on a node."""
    until: float


class DeviceDetails(NamedTuple):
    """The devices that kube-scheduler will choose, or why they are not known."""

    codes: NDArray[np.int32]
    results: Sequence[_Placement | str]
    columns: NDArray[np.intp]
    names: Sequence[tuple[str, ...]]
    """By column. Decisions share it."""
    is_device_needed: bool = False
    """Whether the claims do not fit nodes without devices."""
    claims: tuple[ObjectKey, ...] = ()

    @property
    def nbytes(self) -> int:
        return int(self.codes.nbytes + self.columns.nbytes)

    def misfits(self) -> NDArray[np.bool_]:
        """The candidates whose free devices do not fit the claims."""
        has_devices = self.columns < len(self.names)
        is_misfit = np.array([result in _MISFITS for result in self.results] or [False])
        return np.where(has_devices, is_misfit[self.codes], self.is_device_needed)

    def text(self, candidate: int) -> str:
        """`devices gpu: gpu-3, gpu-4`."""
        column = int(self.columns[candidate])
        if column >= len(self.names):
            return _NO_DEVICES if self.is_device_needed else ""
        result, names = self.results[int(self.codes[candidate])], self.names[column]
        if isinstance(result, str):
            claims = list_first([name for _, name in self.claims], _MOST_LISTED)
            of_claims = f" of {'claim' if len(self.claims) == 1 else 'claims'} {claims}" if claims else ""
            return result if result in _MISFITS else f"devices{of_claims} not predicted: {result}"
        by_request: dict[str, list[str]] = {}
        for each in result.devices:
            by_request.setdefault(each.request, []).append(names[each.position])
        parts = [f"{request}: {', '.join(of_request)}" for request, of_request in by_request.items()]
        return f"devices {'; '.join(parts)}" if parts else ""

    def distances(self) -> NDArray[np.float64]:
        """1: no candidate is rejected."""
        return np.ones(len(self.codes))

    def numbers(self, candidate: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Empty: the text contains everything."""
        return {}


class DeviceScores(NamedTuple):
    """The predictions for one pod, by candidate (M)."""

    demand: DeviceDemand
    layout: DeviceLayout
    fits: NDArray[np.bool_]
    before: CandidateGpus
    """The devices without the pod."""
    after: CandidateGpus
    """The devices with the pod."""
    taken: NDArray[np.bool_]
    """(C, M): the devices that the pod takes or blocks."""
    details: DeviceDetails


_DOES_NOT_FIT: Final = "the claims do not fit the free devices"
_ON_OTHER_NODES: Final = "a claim in use has devices of another node"
_MISFITS: Final = (_DOES_NOT_FIT, _ON_OTHER_NODES)
_NO_DEVICES: Final = "the node has no devices for the claims"
_NOT_EXAMINED: Final = "too many nodes changed"


class DevicePredictions:
    """Predicts devices. A prediction is kept until the devices of the node or their holders change."""

    def __init__(self) -> None:
        self._by_request: OrderedDict[Hashable, _Known] = OrderedDict()
        self._classes: Mapping[str, DeviceClass] = {}
        """Those that all predictions depend on."""
        self._expected: dict[ObjectKey, _Expected] = {}
        """By pod."""
        self._network: tuple[tuple[PoolSlices, ...], dict[Hashable, str]] = ((), {})
        """Pools of several nodes, and by request why they may serve it; empty if they cannot."""

    def score(  # complexity: nodes, and the pods that are expected on some of them
        self,
        devices: DeviceLayout,
        classes: Mapping[str, DeviceClass],
        demand: DeviceDemand,
        columns: NDArray[np.intp],
        most_steps: int,
    ) -> DeviceScores:
        """Predict the devices of a demand on nodes, which are columns of the layout."""
        if classes != self._classes:
            self._classes, self._network = classes, ((), {})
            self._by_request.clear()
        demand = self._without_network(devices.network_pools, demand)
        known = self._known(devices, demand)
        stale = columns[devices.versions[columns] != known.versions[columns]]
        stale = stale[stale < len(devices.nodes)]
        budget, not_examined = SearchBudget(most_steps), _NOT_EXAMINED
        expected = self._expected_by_column(devices, columns)
        for column in stale.tolist():
            if column in expected:
                continue  # predicted below
            of_node = devices.nodes[column][1]
            result = self._predict(demand, of_node, device_inventory.device_use(of_node), budget)
            if budget.left < 0:
                break
            known.codes[column] = known.code(result)
            known.versions[column] = devices.versions[column]
            if budget.long_searches == _MOST_LONG_SEARCHES:
                not_examined = f"{result} on {_MOST_LONG_SEARCHES} other nodes"
                break
        codes = known.codes[columns]
        codes[devices.versions[columns] != known.versions[columns]] = known.code(not_examined)
        before = CandidateGpus(devices.layout, columns)
        known.beside_expected = self._beside_expected(known, devices, demand, expected, budget)
        if expected:
            pending = np.zeros((devices.layout.most_gpus, len(columns)), np.int64)
            for column, expectation in known.beside_expected.items():
                of_column = columns == column
                codes[of_column] = expectation.code
                pending[:, of_column] = np.array(expectation.milli)[:, np.newaxis]
            before.take_amounts(DEVICE, pending)
        codes[_lacks_allocation(demand, devices, columns)] = known.code(_ON_OTHER_NODES)
        fits_by_code, milli_by_code = known.fits_and_milli()
        amounts = milli_by_code[codes].T.astype(np.int64)
        after = before.fork()
        after.take_amounts(DEVICE, amounts)
        fits = fits_by_code[codes]
        is_device_needed = self._is_device_needed(known, devices, demand)
        details = DeviceDetails(codes, known.results, columns, devices.names, is_device_needed, demand.keys)
        return DeviceScores(demand, devices, fits, before, after, amounts > 0, details)

    def _beside_expected(
        self,
        known: _Known,
        devices: DeviceLayout,
        demand: DeviceDemand,
        expected: Mapping[int, list[PredictedDevice]],
        budget: SearchBudget,
    ) -> dict[int, _BesideExpected]:
        """By column, the predictions beside expected devices. Those of the last pod are used again."""
        beside: dict[int, _BesideExpected] = {}
        for column, of_pods in expected.items():
            version, last = int(devices.versions[column]), known.beside_expected.get(column)
            if last is not None and (last.version, last.devices) == (version, of_pods):
                beside[column] = last
                continue
            of_node = devices.nodes[column][1]
            use = _add_expected(device_inventory.device_use(of_node), of_pods)
            result = self._predict(demand, of_node, use, budget)
            if budget.left < 0:
                # the next pod may get a result
                version, result = -1, _NOT_EXAMINED
            every = device_layout.ordered_devices(of_node)
            milli = [*_milli_by_position(every, of_pods, devices.layout.most_gpus)]
            beside[column] = _BesideExpected(version, of_pods, known.code(result), milli)
        return beside

    def _is_device_needed(self, known: _Known, devices: DeviceLayout, demand: DeviceDemand) -> bool:
        if demand.allocated_on is not None:
            # a driver that restarts publishes no devices for a time
            return demand.allocated_on <= devices.columns.keys()
        if demand.has_extended_resources:
            return False  # a node may have them in another form
        if known.fits_no_devices is None:
            prediction = predict_devices((), demand.claims, self._classes, DeviceUse(), device_matches)
            known.fits_no_devices = prediction is not None
        return not known.fits_no_devices

    def expect(self, pod: ObjectKey, cpu_milli: int, scored: DeviceScores, best: int, now: float) -> None:
        """Count the devices and CPU of a pod on its best candidate as in use, until they are seen in use."""
        details = scored.details
        column, placement = int(details.columns[best]), details.results[int(details.codes[best])]
        if isinstance(placement, _Placement) and (placement.devices or cpu_milli):
            node, of_node = scored.layout.nodes[column]
            every = device_layout.ordered_devices(of_node)
            predicted = tuple(
                PredictedDevice(
                    each.claim,
                    each.request,
                    every[each.position],
                    each.is_admin_access,
                    None if each.consumed is None else dict(each.consumed),
                )
                for each in placement.devices
            )
            self._expected[pod] = _Expected(node, predicted, scored.demand.keys, cpu_milli, now + _EXPECTED_S)
            if len(self._expected) > _MOST_EXPECTED:
                del self._expected[next(iter(self._expected))]

    def forget_seen(  # complexity: devices and CPU are seen one after another
        self,
        scored: ObjectKey,
        inventory: DeviceInventory,
        claims: Mapping[ObjectKey, ResourceClaim],
        pods: Mapping[ObjectKey, AllocatedPod],
        now: float,
    ) -> None:
        """Forget the pod that is scored anew, what was seen in use, and what was not seen for a time."""
        self._expected.pop(scored, None)
        for pod, expected in [*self._expected.items()]:
            known = [claims.get(claim) for claim in expected.claims]
            node = pods[pod].spec.nodeName if pod in pods else ""
            has_devices = _has_devices(inventory, expected.node, pod)
            is_allocated = any(claim is None or claim.is_allocated for claim in known)
            is_elsewhere = node not in ("", expected.node) or (is_allocated and not has_devices)
            # an allocation is seen before the node of the pod, or after it
            devices = () if has_devices else expected.devices
            cpu_milli = 0 if node else expected.cpu_milli
            if now > expected.until or is_elsewhere or not (devices or cpu_milli):
                del self._expected[pod]
            else:
                self._expected[pod] = expected._replace(devices=devices, cpu_milli=cpu_milli)

    def free_cpu(self, devices: DeviceLayout, cpu_free: NDArray[np.int64]) -> NDArray[np.int64]:
        """The free milli-CPU by column of the layout, without that of pods that were not seen on a node yet."""
        free = cpu_free.copy()
        for expected in self._expected.values():
            if expected.node in devices.columns:
                free[devices.columns[expected.node]] -= expected.cpu_milli
        return free

    def _without_network(self, pools: tuple[PoolSlices, ...], demand: DeviceDemand) -> DeviceDemand:
        """The demand; only a reason if several nodes can use devices that may serve it."""
        if not pools or not demand.claims:
            return demand
        if pools is not self._network[0] or len(self._network[1]) > _MOST_REQUESTS:
            self._network = pools, {}
        reasons = self._network[1]
        if demand.key not in reasons:
            pool = _serving_pool(pools, self._classes, demand)
            name = f"{pool.id.driver}/{pool.id.pool}" if pool else ""
            reasons[demand.key] = f"several nodes can use devices of pool {name}" if pool else ""
        reason = reasons[demand.key]
        return DeviceDemand((), reason=reason) if reason else demand

    def _known(self, devices: DeviceLayout, demand: DeviceDemand) -> _Known:
        known = self._by_request.pop(demand.key, None)
        if known is None or not known.is_for(devices):
            known = _Known(devices)
        self._by_request[demand.key] = known
        if len(self._by_request) > _MOST_REQUESTS:
            self._by_request.popitem(last=False)
        return known

    def _predict(  # complexity: one branch for each result
        self, demand: DeviceDemand, devices: NodeDevices, use: DeviceUse, budget: SearchBudget
    ) -> _Placement | str:
        """What a node gives to a demand; the reason if it is not known."""
        if not demand.claims:
            return demand.reason or _Placement((), ())
        prediction = predict_devices(devices.pools, demand.claims, self._classes, use, device_matches, budget)
        if prediction is None:
            return _DOES_NOT_FIT
        if isinstance(prediction, NotPredicted):
            return prediction.reason
        every = device_layout.ordered_devices(devices)
        position = {id(device): at for at, device in enumerate(every)}
        if any(id(each.device) not in position for each in prediction):
            return f"the node has more than {len(every)} devices"
        placed = tuple(
            _PlacedDevice(
                each.claim,
                each.request,
                position[id(each.device)],
                each.is_admin_access,
                None if each.consumed is None else tuple(each.consumed.items()),
            )
            for each in prediction
        )
        after = _add_expected(use, prediction)
        blocked = {*device_allocation.blocked_devices(devices.pools, after)}
        blocked -= {*device_allocation.blocked_devices(devices.pools, use)}
        milli = [*_milli_by_position(every, prediction, len(every))]
        taken = tuple(
            (at, WHOLE if device.id in blocked else amount)
            for at, (device, amount) in enumerate(zip(every, milli, strict=True))
            if amount or device.id in blocked
        )
        return _Placement(placed, taken)

    def _expected_by_column(
        self, devices: DeviceLayout, columns: NDArray[np.intp]
    ) -> dict[int, list[PredictedDevice]]:
        """The expected devices of candidates, by column."""
        by_column: dict[int, list[PredictedDevice]] = {}
        for expected in self._expected.values():
            column = devices.columns.get(expected.node)
            if expected.devices and column is not None:
                by_column.setdefault(column, []).extend(expected.devices)
        return {column: of_pods for column, of_pods in by_column.items() if (columns == column).any()}


def _lacks_allocation(
    demand: DeviceDemand, devices: DeviceLayout, columns: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """The candidates without the devices of a claim in use."""
    if demand.allocated_on is None:
        return np.zeros(len(columns), bool)
    own = [devices.columns[name] for name in demand.allocated_on if name in devices.columns]
    return ~np.isin(columns, own)


def _serving_pool(  # complexity: the selectors of classes, and then those of requests
    pools: tuple[PoolSlices, ...], classes: Mapping[str, DeviceClass], demand: DeviceDemand
) -> PoolSlices | None:
    """A pool with a device that matches a request, or may match one; None if there is none."""
    if incomplete := next((pool for pool in pools if pool.newest.problem), None):
        return incomplete
    every = [(pool, device) for pool in pools for item in pool.every for device in item.devices]
    left = _MOST_NETWORK_CHECKS
    for device_class, own in _selectors_by_class(classes, demand).items():
        candidates = every
        for selectors in (classes[device_class].selectors, *own):
            left -= len(candidates) * len(selectors)
            if left < 0:
                return candidates[0][0]
            matching = [each for each in candidates if _may_match(each[1], selectors)]
            if candidates is every:
                candidates = matching
            elif matching:
                return matching[0][0]
    return None


def _selectors_by_class(
    classes: Mapping[str, DeviceClass], demand: DeviceDemand
) -> dict[str, dict[tuple[str, ...], None]]:
    """The selectors of requests, in their order, by existing DeviceClass."""
    by_class: dict[str, dict[tuple[str, ...], None]] = {}
    for request in (request for claim in demand.claims for request in claim.requests):
        for form in request.alternatives:
            if form.device_class in classes:
                by_class.setdefault(form.device_class, {})[form.selectors] = None
    return by_class


def _may_match(device: Device, selectors: Sequence[str]) -> bool:
    return all(device_matches(each, device) is not False for each in selectors)


def _has_devices(inventory: DeviceInventory, node: str, pod: ObjectKey) -> bool:
    """Whether a claim that is reserved for the pod has devices on the node."""
    devices = inventory.nodes.get(node, NodeDevices())
    held = [
        device
        for device, holders in devices.holders.items()
        for holder in holders
        if holder.claim[0] == pod[0] and pod[1] in holder.pods
    ]
    return bool(held) and not {device.id for device in devices.devices()}.isdisjoint(held)


def _milli_by_position(
    every: Sequence[Device], devices: Iterable[PredictedDevice], size: int
) -> Iterator[int]:
    """The thousandths of each position that a claim with these devices takes, 0 from the last device on."""
    taken: Counter[DeviceId] = Counter()
    for each in devices:
        if not each.is_admin_access:
            shared = (
                WHOLE if each.consumed is None else device_layout.device_milli(each.device, each.consumed)
            )
            taken[each.device.id] += shared
    for at in range(size):
        yield min(taken[every[at].id], WHOLE) if at < len(every) and taken else 0


def _add_expected(use: DeviceUse, devices: Iterable[PredictedDevice]) -> DeviceUse:
    """The use of a node with further devices."""
    taken, shared = {*use.taken}, {device: Counter(amounts) for device, amounts in use.shared.items()}
    for each in devices:
        if each.consumed is not None:
            shared.setdefault(each.device.id, Counter()).update(each.consumed)
        elif not each.is_admin_access:
            taken.add(each.device.id)
    return use._replace(taken=taken, shared=shared)
