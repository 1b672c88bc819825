"""Measures memory and event loop steps while thousands of nodes are listed, in a separate process.

    python -m tests.cluster.list_memory KUBECONFIG

Prints one JSON object, `ListMeasurement`. No time is measured: the clock by which the reflector divides its work into
slices advances by one slice at each reading, so a step does the same work on a machine of any speed.
"""

import asyncio
import gc
import itertools
import json
import random
import resource
import sys
from asyncio.events import Handle
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from nodewise.base import cooperative_scheduling
from nodewise.base.clock import SystemClock
from nodewise.kube import struct_type_merge
from nodewise.kube.api_client_creation import connect
from nodewise.kube.http_client import HttpApi
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.reflector import ObjectDecoder, Reflector, ReflectorTarget
from nodewise.kube.resource_kinds import NODES
from nodewise.observe.metrics_registry import MetricsRegistry


class ListedMetadata(msgspec.Struct, frozen=True, gc=False):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ListedStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: dict[str, str] = {}


class ListedNode(msgspec.Struct, frozen=True, gc=False):
    metadata: ListedMetadata
    status: ListedStatus = ListedStatus()


class ListMeasurement(NamedTuple):
    """The size of the list, and the memory and loop steps of reading it."""

    nodes: int
    pages_bytes: list[int]
    held_bytes: int
    """Growth of the process's resident memory."""
    most_in_a_step: int
    """Maximum number of nodes decoded in one step of the event loop."""
    turns: int
    """Number of steps of another task while the list is read."""


class LoopStepCounter:
    """Counts the objects that each step of the event loop decodes, and the bytes of each page."""

    def __init__(self, api: HttpApi) -> None:
        self.pages_bytes: list[int] = []
        self.decoded = self.most_in_a_step = self.turns = 0
        self._get, api.get = api.get, self._noted
        add, run = ObjectDecoder.add, Handle._run

        def counted(decoder: ObjectDecoder[Any], data: msgspec.Raw) -> None:
            self.decoded += 1
            add(decoder, data)

        def step(handle: Handle) -> None:
            before = self.decoded
            run(handle)
            self.most_in_a_step = max(self.most_in_a_step, self.decoded - before)

        ObjectDecoder.add, Handle._run = counted, step

    async def _noted(self, path: str, params: Mapping[str, str], **options: Any) -> bytes:
        body = await self._get(path, params, **options)
        self.pages_bytes.append(len(body))
        return body

    async def take_turns(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def measure_list(kubeconfig: str) -> ListMeasurement:
    api = connect(KubeOptions(kubeconfig=kubeconfig), MetricsRegistry())
    await api.get("/version")
    target = ReflectorTarget(NODES, struct_type_merge.merge("Node", ListedNode))
    reflector = Reflector(api, target, SystemClock(), MetricsRegistry(), random.random)
    gc.collect()
    before = resident_bytes()
    steps = LoopStepCounter(api)
    tasks = [asyncio.ensure_future(coroutine) for coroutine in (reflector.run(), steps.take_turns())]
    await reflector.wait_until_synced()
    for task in tasks:
        task.cancel()
    held = resident_bytes() - before
    await api.close()
    return ListMeasurement(len(reflector.store), steps.pages_bytes, held, steps.most_in_a_step, steps.turns)


if __name__ == "__main__":
    looks = itertools.count()
    cooperative_scheduling.time = SimpleNamespace(perf_counter=looks.__next__)
    print(json.dumps(asyncio.run(measure_list(sys.argv[1]))._asdict()))
