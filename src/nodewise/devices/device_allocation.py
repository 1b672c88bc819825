"""Predicts which devices of a node kube-scheduler allocates to the claims of a pod.

kube-scheduler searches depth first and takes the first solution: claims and their requests in their order, pools by
driver and name (those with binding conditions last), slices by name, devices in the order of their slice. An
alternative of a prioritized list is tried when the one before it has no solution. Source: Kubernetes 1.37
`dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go`.

A prediction is unknown where kube-scheduler would report an error instead of a result, where a selector is unknown, and
where the search takes too many steps.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from time import thread_time
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from nodewise.base import quantity
from nodewise.base.quantity import Quantity
from nodewise.devices.device_selectors import count_multiplying_parts
from nodewise.devices.resource_claims import (
    MOST_REQUEST_BYTES,
    ClaimRequest,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceToleration,
    ResourceClaim,
    class_of_resource,
)
from nodewise.devices.resource_slices import (
    EMPTY,
    Amounts,
    Device,
    DeviceCapacity,
    DeviceId,
    DeviceObjectMetadata,
    DeviceTaint,
    NodeDevicePool,
    PoolId,
    qualified_name,
)
from nodewise.kube.pod_requests import RequestingContainer, RequestingSpec

MOST_STEPS: Final = 4_000
"""Steps of a search at most: devices and constraints that are examined, and the processor time of selectors. Real
claims need a few times the devices of the node."""
_STEP_S: Final = 10e-6
"""The processor time of a step."""
_STEP_CHARACTERS: Final = 256
"""The characters of a selector without loops that take as much time."""
MOST_REQUESTS: Final = 100
"""The most requests, and the most devices, of all claims of a pod: the search is recursive."""
_MOST_DEVICES: Final = 32
"""The most devices of a claim in the API."""

Matches = Callable[[str, Device], bool | None]
"""Whether a device matches a CEL expression; None if that is unknown."""


_NO_DEVICES: Final[Mapping[DeviceId, Any]] = MappingProxyType({})


class DeviceUse(NamedTuple):
    """Which devices are not free, and taints of DeviceTaintRules."""

    taken: Collection[DeviceId] = frozenset()
    """Devices that a claim has alone."""
    shared: Mapping[DeviceId, Amounts] = _NO_DEVICES
    """The consumed capacity of devices that claims share, by qualified name; empty if they consume none."""
    taints: Mapping[DeviceId, tuple[DeviceTaint, ...]] = _NO_DEVICES


class PredictedDevice(NamedTuple):
    """A device that kube-scheduler allocates."""

    claim: int
    """The index of the claim."""
    request: str
    """The name of the request, or `request/alternative`."""
    device: Device
    is_admin_access: bool = False
    consumed: Amounts | None = None
    """The consumed capacity by qualified name if the device is shared; None if the claim has it alone."""


class NotPredicted(NamedTuple):
    """The devices are not known."""

    reason: str


class SearchBudget:
    """The steps that are left for several searches."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.long_searches = 0
        """How many searches took more than `MOST_STEPS`."""


Prediction = tuple[PredictedDevice, ...] | NotPredicted | None
"""None: the claims do not fit the node."""


class _UnknownResultError(Exception):
    """kube-scheduler's result is not known."""


def predict_devices(
    pools: Iterable[NodeDevicePool],
    claims: Sequence[ResourceClaim],
    classes: Mapping[str, DeviceClass],
    use: DeviceUse,
    matches: Matches,
    budget: SearchBudget | None = None,
) -> Prediction:
    """Predict the devices of claims without an allocation, on a node with these pools.

    If the budget is used up, the result is unknown.
    """
    try:
        search = _Search(pools, claims, classes, use, matches, budget or SearchBudget(MOST_STEPS))
        if search.allocate():
            return tuple(search.result)
    except _UnknownResultError as error:
        return NotPredicted(str(error))
    return NotPredicted(search.problem) if search.problem else None


class _Candidate(NamedTuple):
    device: Device
    id: DeviceId
    pool: PoolId


class _Wanted(NamedTuple):
    """A request, or one alternative of it."""

    claim: int
    name: str
    parent: str
    """The request of an alternative; empty without alternatives."""
    request: DeviceRequest
    selectors: tuple[str, ...]
    every: tuple[_Candidate, ...]
    """With `is_all` the devices that it requests."""

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self.every) if self.request.is_all else self.request.count

    @property
    def path(self) -> str:
        return f"{self.parent}/{self.name}" if self.parent else self.name


class _Search:
    """A search on one node. Recursion is as deep as the claims have devices."""

    def __init__(  # complexity: one branch for each kind of pool
        self,
        pools: Iterable[NodeDevicePool],
        claims: Sequence[ResourceClaim],
        classes: Mapping[str, DeviceClass],
        use: DeviceUse,
        matches: Matches,
        budget: SearchBudget,
    ) -> None:
        if any(claim.is_too_large for claim in claims):
            raise _UnknownResultError(f"a claim has more than {MOST_REQUEST_BYTES} bytes of requests")
        if sum(1 + len(claim.requests) for claim in claims) > MOST_REQUESTS:
            raise _UnknownResultError(f"the claims of the pod have more than {MOST_REQUESTS} requests")
        self.result: list[PredictedDevice] = []
        self.problem = ""
        """Why devices of a pool may be missing."""
        self._use, self._matches, self._classes = use, matches, classes
        self._constraints = [claim.constraints for claim in claims]
        self._budget = budget
        self._steps = 0
        self._taking: Counter[tuple[DeviceId, int]] = Counter()
        """Devices that the claims take alone, by index of the claim."""
        self._taken: Counter[DeviceId] = Counter()
        self._sharing: dict[DeviceId, list[Amounts]] = {}
        self._counters: dict[PoolId, Counter[tuple[str, str]]] = {}
        """By pool and counter, the amount that is left."""
        self._candidates: list[_Candidate] = []
        of_node = [*pools]
        of_node.sort(key=lambda node_pool: node_pool.pool.has_binding_conditions)
        for node_pool in of_node:
            if problem := node_pool.pool.problem:
                self.problem = f"pool {node_pool.pool.id.driver}/{node_pool.pool.id.pool}: {problem}"
                continue
            if node_pool.pool.counters.sets:
                self._counters[node_pool.pool.id] = _counters_left(node_pool, use)
            self._candidates += [_Candidate(each, each.id, node_pool.pool.id) for each in node_pool.devices]
        self._count_steps(2 + len(self._candidates) // 4)
        self._requests = [
            [
                [self._wanted(index, request.name, form) for form in request.alternatives]
                for request in claim.requests
            ]
            for index, claim in enumerate(claims)
        ]

    def allocate(self) -> bool:
        for forms in self._requests:
            if sum(min((each.devices for each in wanted), default=0) for wanted in forms) > _MOST_DEVICES:
                return False
        return self._request(0, 0)

    def _wanted(self, claim: int, name: str, form: DeviceRequest) -> _Wanted:
        self._count_steps(1)
        if form.has_derived_attributes or form.is_unknown_form:
            raise _UnknownResultError(f"request {name} has a form that is not supported")
        device_class = self._classes.get(form.device_class)
        if device_class is None:
            raise _UnknownResultError(f"no DeviceClass {form.device_class}")
        parent = "" if form.name == name else name
        wanted = _Wanted(claim, form.name, parent, form, (*device_class.selectors, *form.selectors), ())
        if not form.is_all:
            return wanted
        if self.problem:
            raise _UnknownResultError(self.problem)
        return wanted._replace(
            every=tuple(
                each
                for each in self._candidates
                if self._is_selected(wanted, each.device)
                and self._consumption(wanted, each, is_empty=True) is not None
            )
        )

    def _request(self, claim: int, number: int) -> bool:
        """Allocate from this request on."""
        if claim == len(self._requests):
            return True
        if number == len(self._requests[claim]):
            return self._request(claim + 1, 0)
        forms = self._requests[claim][number]
        if not forms:
            raise _UnknownResultError("a request has a form that is not supported")
        return any(self._devices(wanted, number, 0, 0) for wanted in forms)

    def _devices(self, wanted: _Wanted, number: int, at: int, start: int) -> bool:
        """Allocate the devices of a request from its `at`-th on; candidates before `start` were tried."""
        if wanted.request.is_all and not wanted.every:
            return False
        if at >= wanted.devices:
            return self._request(wanted.claim, number + 1)
        of_claim = sum(each.claim == wanted.claim for each in self.result)
        if wanted.devices - at > _MOST_DEVICES - of_claim:
            return False
        if wanted.request.is_all:
            # the order does not matter: without one of the devices there is no solution
            return self._try(wanted, wanted.every[at], number, at, start)
        for position in range(start, len(self._candidates)):
            if self._try(wanted, self._candidates[position], number, at, position + 1):
                return True
        return False

    def _try(self, wanted: _Wanted, candidate: _Candidate, number: int, at: int, start: int) -> bool:
        """Take a device, and allocate the rest; without a solution, give the device back."""
        usable = self._usable(wanted, candidate)
        if usable is None:
            return False
        if len(self.result) >= MOST_REQUESTS:
            raise _UnknownResultError(f"the claims of the pod have more than {MOST_REQUESTS} devices")
        consumed, counters = usable
        device, claim, is_shared = candidate.device, wanted.claim, candidate.device.allow_multiple_allocations
        self.result.append(
            PredictedDevice(
                claim, wanted.path, device, wanted.request.is_admin_access, consumed if is_shared else None
            )
        )
        if is_shared:
            self._sharing.setdefault(candidate.id, []).append(consumed)
        else:
            self._taken[candidate.id] += 1
            self._taking[candidate.id, claim] += 1
        left = self._counters.get(candidate.pool, Counter())
        left.subtract(counters)
        if self._devices(wanted, number, at + 1, start):
            return True
        left.update(counters)
        if is_shared:
            self._sharing[candidate.id].pop()
        else:
            self._taken[candidate.id] -= 1
            self._taking[candidate.id, claim] -= 1
        self.result.pop()
        return False

    def _count_steps(self, steps: int) -> None:
        self._steps += steps
        self._budget.left -= steps
        if self._steps > MOST_STEPS or self._budget.left < 0:
            self._budget.long_searches += self._steps > MOST_STEPS
            raise _UnknownResultError(f"the search takes more than {MOST_STEPS} steps")

    def _usable(  # complexity: one branch for each condition
        self, wanted: _Wanted, candidate: _Candidate
    ) -> tuple[Amounts, Counter[tuple[str, str]]] | None:
        """The capacity and the counters that a device takes for a request; None if the request cannot have it."""
        self._count_steps(1)
        device = candidate.device
        if wanted.request.is_admin_access:
            if self._taking[candidate.id, wanted.claim] and not device.allow_multiple_allocations:
                return None
        elif candidate.id in self._use.taken or self._taken[candidate.id]:
            return None
        if not wanted.request.is_all and not self._is_selected(wanted, device):
            return None
        counters = self._reserved_counters(candidate)
        if counters is None or self._is_tainted(candidate, wanted.request.tolerations):
            return None
        if not self._constraints_are_met(wanted, device):
            if wanted.request.is_all:
                raise _UnknownResultError(f"a constraint excludes devices of request {wanted.path}")
            return None
        consumed = self._consumption(wanted, candidate)
        return None if consumed is None else (consumed, counters)

    def _is_selected(self, wanted: _Wanted, device: Device) -> bool:
        for expression in wanted.selectors:
            # the clock is slow on some machines
            is_timed = count_multiplying_parts(expression) > 0
            start = thread_time() if is_timed else 0.0
            is_match = self._matches(expression, device)
            seconds = thread_time() - start if is_timed else 0.0
            self._count_steps(1 + len(expression) // _STEP_CHARACTERS + int(seconds / _STEP_S))
            if is_match is None:
                raise _UnknownResultError(f"selector of request {wanted.path} cannot be evaluated")
            if not is_match:
                return False
        return True

    def _consumption(
        self, wanted: _Wanted, candidate: _Candidate, *, is_empty: bool = False
    ) -> Amounts | None:
        """The capacity that the request consumes of a device; None if it does not have enough left."""
        device = candidate.device
        others = EMPTY if is_empty else self._use.shared.get(candidate.id, EMPTY)
        # a device that is no longer shared may still have claims with a part of it
        if not wanted.request.capacity and not device.allow_multiple_allocations and not others:
            return EMPTY
        requested = {qualified_name(device.driver, name): nano for name, nano in wanted.request.capacity}
        if not requested.keys() <= device.capacity.keys():
            return None
        held = [] if is_empty else self._sharing.get(candidate.id, [])
        self._count_steps(len(held) // 8)
        consumed = {}
        for name, capacity in device.capacity.items():
            amount = capacity_to_consume(requested.get(name), capacity)
            if amount is None:
                return None
            in_use = others.get(name, 0) + sum(each.get(name, 0) for each in held)
            if in_use + amount > capacity.value:
                return None
            consumed[name] = amount
        return consumed

    def _is_tainted(self, candidate: _Candidate, tolerations: Iterable[DeviceToleration]) -> bool:
        taints = (*candidate.device.taints, *self._use.taints.get(candidate.id, ()))
        return any(
            taint.effect in ("NoSchedule", "NoExecute")
            and not any(tolerates(each, taint) for each in tolerations)
            for taint in taints
        )

    def _reserved_counters(self, candidate: _Candidate) -> Counter[tuple[str, str]] | None:
        """The counters to take for a device; None if too little is left of one."""
        device = candidate.device
        if not device.consumes_counters:
            return Counter()
        is_in_use = candidate.id in self._use.shared or bool(self._sharing.get(candidate.id))
        if device.allow_multiple_allocations and is_in_use:
            return Counter()
        counters, left = _consumed_counters(device), self._counters[candidate.pool]
        # a set that is overcommitted already admits no device at all
        after = left.copy()
        after.subtract(counters)
        return None if any(amount < 0 for amount in after.values()) else counters

    def _constraints_are_met(self, wanted: _Wanted, device: Device) -> bool:
        """Whether the device may be added to those that the claim has so far."""
        for constraint in self._constraints[wanted.claim]:
            self._count_steps(1)
            if _applies(constraint, wanted.path):
                others = [
                    each.device
                    for each in self.result
                    if each.claim == wanted.claim and _applies(constraint, each.request)
                ]
                if not _can_join(constraint, device, others):
                    return False
        return True


def _applies(constraint: DeviceConstraint, path: str) -> bool:
    """Whether a constraint applies to a request or alternative."""
    names = constraint.requests
    return not names or path in names or path.partition("/")[0] in names


def _can_join(constraint: DeviceConstraint, device: Device, others: Sequence[Device]) -> bool:
    name = constraint.match_attribute or constraint.distinct_attribute
    if name not in device.attributes or not others:
        return name in device.attributes
    value = device.attributes[name]
    # kube-scheduler compares lists only with an alpha feature, without which the API server drops them
    if any(
        each is None or type(each) is tuple for each in (value, *(each.attributes[name] for each in others))
    ):
        raise _UnknownResultError(
            f"a constraint compares values of the attribute {name} that are no single values"
        )
    is_equal = [
        type(each.attributes[name]) is type(value) and each.attributes[name] == value for each in others
    ]
    return not any(is_equal) if constraint.distinct_attribute else is_equal[0]


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether a toleration applies to a taint."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or (
        toleration.operator in ("", "Equal") and toleration.value == taint.value
    )


def capacity_to_consume(requested: int | None, capacity: DeviceCapacity) -> int | None:
    """The nano-units of a capacity that a request consumes; None if the policy of the capacity refuses the amount."""
    policy = capacity.policy
    if policy is None:
        return capacity.value if requested is None else requested
    if requested is None:
        return capacity.value if policy.default is None else policy.default
    amount = requested
    if policy.minimum is not None:
        amount = max(amount, policy.minimum)
        if policy.step:
            amount = policy.minimum - (policy.minimum - amount) // policy.step * policy.step
        return None if policy.maximum is not None and amount > policy.maximum else amount
    if policy.valid_values:
        return next((each for each in policy.valid_values if each >= amount), None)
    return amount


def _consumed_counters(device: Device) -> Counter[tuple[str, str]]:
    return Counter(
        {
            (each.counter_set, name): amount
            for each in device.consumes_counters
            for name, amount in each.counters.items()
        }
    )


def _counters_left(node_pool: NodeDevicePool, use: DeviceUse) -> Counter[tuple[str, str]]:
    """What is left of the counters that devices of the node consume."""
    counters = node_pool.pool.counters
    concerned = {each.counter_set for device in node_pool.devices for each in device.consumes_counters}
    left = Counter(
        {
            (counter_set, name): amount
            for counter_set in concerned
            for name, amount in counters.sets.get(counter_set, EMPTY).items()
        }
    )
    for used in {*use.taken, *use.shared}:
        for device in counters.consumers.get(used, ()):
            left.subtract(_consumed_counters(device))
    return left


def blocked_devices(pools: Iterable[NodeDevicePool], use: DeviceUse) -> Iterator[DeviceId]:
    """Free devices of partitionable pools that have too little left of a counter."""
    for node_pool in pools:
        if node_pool.pool.counters.sets and not node_pool.pool.counters.problem:
            left = _counters_left(node_pool, use)
            for device in node_pool.devices:
                counters = _consumed_counters(device)
                if any(left[name] < amount for name, amount in counters.items()):
                    yield device.id


def claim_of_extended_resources(  # complexity: one expression for each part of a request
    spec: RequestingSpec, classes: Mapping[str, DeviceClass]
) -> ResourceClaim | None:
    """The claim that kube-scheduler creates for a pod's extended resources that classes name; None without any.

    Init containers use the devices of later containers first, and of several init containers the largest request
    counts. Source: Kubernetes 1.37 `pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go`.
    """
    init, ordinary = spec.initContainers or (), spec.containers or ()
    is_short_lived = [each.restartPolicy != "Always" for each in init] + [False] * len(ordinary)
    amounts = [requested_amounts(each) for each in (*init, *ordinary)]
    requests = []
    for resource in sorted({name for each in amounts for name in each if "/" in name}):
        device_class = class_of_resource(classes.values(), resource)
        if device_class is not None:
            counts = [_device_count(each.get(resource)) for each in amounts]
            for number, count in _counts_without_reuse(is_short_lived, counts).items():
                name = f"container-{number}-request-{sorted(amounts[number]).index(resource)}"
                form = DeviceRequest(name, device_class.metadata.name, count=count)
                requests.append(ClaimRequest(name, (form,)))
    if not requests:
        return None
    requests.sort(key=lambda each: each.name)
    return ResourceClaim(metadata=DeviceObjectMetadata(name=""), requests=tuple(requests))


def _counts_without_reuse(is_short_lived: Sequence[bool], counts: Sequence[int]) -> dict[int, int]:
    """By number of the container, the devices that it does not share with others, without zeros."""
    left = {number: count for number, count in enumerate(counts) if count and not is_short_lived[number]}
    beyond = {
        number: count - sum(amount for later, amount in left.items() if later > number)
        for number, count in enumerate(counts)
        if is_short_lived[number]
    }
    largest = max(beyond, key=lambda number: (beyond[number], -number), default=0)
    if beyond.get(largest, 0) > 0:
        left[largest] = beyond[largest]
    return left


def requested_amounts(container: RequestingContainer) -> Mapping[str, Quantity]:
    """The requests of a container; a limit without a request counts as the request."""
    resources = container.resources
    return {} if resources is None else {**(resources.limits or {}), **(resources.requests or {})}


def _device_count(amount: Quantity) -> int:
    """The number of devices; 0 for an amount that is not a whole number."""
    whole, rest = divmod(quantity.nano(amount), quantity.NANO)
    return 0 if rest else whole
