"""Which rejected nodes would not fit a pod even without any other pods, so that no eviction helps.

The pod is fitted once for all nodes with equal hardware (`GpuLayout.hardware_codes`), of which a cluster has few.
Which pods may be evicted for it does not matter here: kube-scheduler chooses victims by priority.
"""

from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nodewise.agent import Reason, Verdict, is_unresolvable
from nodewise.agents.gpu import placement_strategies as placements
from nodewise.agents.gpu.allocation_record_limits import NO_RECORD
from nodewise.agents.gpu.fit import fit
from nodewise.agents.gpu.gpu_array_node_column import ABSENT
from nodewise.agents.gpu.gpu_arrays import GpuLayout, Mask
from nodewise.agents.gpu.placement_strategies import PlacementInputs
from nodewise.agents.gpu.pod_gpu_requests import Demand

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
            reasons.append(_as_unresolvable(reasons[code - 1]))
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


def _as_unresolvable(reason: Reason) -> Reason:
    marked: Any = reason
    assert isinstance(marked, msgspec.Struct)
    return replace(marked, is_unresolvable=True)  # type: ignore[return-value]
