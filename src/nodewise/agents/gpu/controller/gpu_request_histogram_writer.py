"""Counts created pods in the ConfigMap of the demand histogram (`gpu_request_histogram` computes it)."""

from collections import deque
from typing import Final

from nodewise.agent.controller_interface import Handle
from nodewise.agents.gpu import gpu_request_histogram
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.gpu_request_histogram import DemandConfigMap, DemandReader
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.state import DEMAND_CONFIGMAP, PODS
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base import cooperative_scheduling
from nodewise.kube import resource_kinds
from nodewise.kube.store import Changes, Store

_COUNTS_S: Final = 30.0
_MOST_NEW: Final = 20_000
"""The most new pods that are kept until they are written."""
_CONFIGMAPS: Final = resource_kinds.Resource("", "v1", "configmaps", "ConfigMap")


class DemandCounter:
    """Counts the pods that are created, for the placement `fragmentation` (`gpu_request_histogram`)."""

    def __init__(self, options: GpuOptions, profile: ResourceProfile, handle: Handle) -> None:
        self._options = options
        self._profile = profile
        self._handle = handle
        self._pods: Store[AllocatedPod] = handle.objects[PODS]
        self._old: list[AllocatedPod] = []
        """Pods that existed when this replica became the leader; they may have been counted."""
        self._new: deque[AllocatedPod] = deque(maxlen=_MOST_NEW)
        """New pods; if they cannot be written, only the last ones are kept."""
        self._due_s = 0.0
        self._pods.subscribe(self._note_new_pods)

    def begin(self) -> None:
        self._old = self._pods.values()
        self._new.clear()
        self._due_s = 0.0

    def _note_new_pods(self, changes: Changes[AllocatedPod] | None) -> None:
        for old, new in (changes or {}).values():
            if new is not None and (old is None or old.metadata.uid != new.metadata.uid):
                self._new.append(new)

    async def step(self) -> None:
        """Write the new pods periodically; not needed with a file of typical pods."""
        if self._options.gpu_typical_pods:
            return
        now_s = self._handle.clock.monotonic()
        if (self._old or self._new) and now_s >= self._due_s:
            self._due_s = now_s + _COUNTS_S
            await self._write_histogram()

    async def _write_histogram(self) -> None:
        """Write by compare-and-swap; after a conflict the next attempt reads the new counts first."""
        there: DemandConfigMap | None = self._handle.objects[DEMAND_CONFIGMAP].get(
            self._handle.namespace, gpu_request_histogram.NAME
        )
        before = await cooperative_scheduling.run(gpu_request_histogram.parse_histogram(there))
        reader = DemandReader(self._profile, self._options, self._handle.clock.now())
        after = await cooperative_scheduling.run(
            gpu_request_histogram.add_pods_to_histogram(before, self._old, self._new, reader)
        )
        if after.history != before.history:
            namespace = self._handle.namespace
            data = await cooperative_scheduling.run(gpu_request_histogram.encode_histogram(after))
            body = gpu_request_histogram.histogram_config_map(
                data, namespace, there.metadata.resourceVersion if there else ""
            )
            if there is None:
                await self._handle.api.create(_CONFIGMAPS.path(namespace), body)
            else:
                await self._handle.api.replace(_CONFIGMAPS.path(namespace, gpu_request_histogram.NAME), body)
        self._old = []
        self._new.clear()
