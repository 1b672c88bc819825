"""No GPU is ever used by more pods than its capacity, with late, lost and repeated requests and killed replicas."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodewise.agents.gpu.allocation_record import Reservation
from nodewise.agents.gpu.state import ALLOCATION_RECORDS, PODS
from tests.laws.gpu_bind_model import (
    CAPACITY,
    LOST,
    NODES,
    Call,
    ModelApiServer,
    ModelPod,
    ModelReplica,
    ModelResponse,
    Process,
)

NAMES = ("a", "b")
WHICH = st.integers(0, 1)
ANY = st.integers(0, 9)


class RunningCall:
    """A process, and the call that it waits for."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.call: Call | None = None
        self.answer(None)

    def answer(self, answer: ModelResponse | None) -> None:
        try:
            self.call = next(self.process) if answer is None else self.process.send(answer)
        except StopIteration:
            self.call = None


class ProtocolModel:
    """A server, two replicas, and the calls on their way. Each method is an event that may occur."""

    def __init__(self, *, old: bool, server: ModelApiServer | None = None) -> None:
        self.server = server or ModelApiServer()
        self.uids = 0
        self.running: list[RunningCall] = []
        self.late: list[Call] = []
        for name in NAMES:
            self.create(name)
        if old:
            self.uids += 1
            self.server.put_pod(ModelPod("old", f"uid-{self.uids}", 0, "n1", "card0", "card0"))
        self.replicas = [ModelReplica(self.server), ModelReplica(self.server)]

    def create(self, name: str) -> None:
        self.uids += 1
        self.server.put_pod(ModelPod(name, f"uid-{self.uids}", 0))

    def pod_comes(self, name: str) -> None:
        if name not in self.server.pods:
            self.create(name)

    def pod_goes(self, name: str, again: bool) -> None:
        if name in self.server.pods:
            self.server.delete_pod(name)
            if again:
                self.create(name)

    def pod_ends(self, name: str) -> None:
        pod = self.server.pods.get(name)
        if pod is not None and pod.on:
            self.server.put_pod(pod._replace(has_ended=True))

    def tenant_writes(self, name: str, text: str) -> None:
        pod = self.server.pods.get(name)
        if pod is not None:
            self.server.put_pod(pod._replace(gpus=text))

    def bind(self, which: int, name: str, on: str, calls: int) -> None:
        """Start a bind request, and answer its first `calls` calls."""
        self.start(self.replicas[which].bind(name, on), calls)

    def clear_up(self, which: int, place: int, calls: int) -> None:
        unconfirmed = self.replicas[which].sweep()
        if unconfirmed:
            self.start(self.replicas[which].clear(*unconfirmed[place % len(unconfirmed)]), calls)

    def start(self, process: Process, calls: int) -> None:
        self.running.append(RunningCall(process))
        self.go_on(-1, calls)

    def go_on(self, which: int, calls: int) -> None:
        """Deliver the next `calls` calls of a process and their responses."""
        if self.running:
            running = self.running[which % len(self.running)]
            while calls and running.call is not None:
                running.answer(running.call(self.server))
                calls -= 1
                self.check()
            self.forget()

    def lose(self, which: int, arrives: str) -> None:
        """Lose the response of a call. `arrives` defines whether the call itself arrives now, later or never."""
        if self.running:
            running = self.running[which % len(self.running)]
            call = running.call
            assert call is not None
            if arrives == "now":
                call(self.server)
            elif arrives == "late":
                self.late.append(call)
            running.answer(LOST)
            self.forget()

    def kill(self, which: int, is_under_way: bool) -> None:
        if self.running:
            running = self.running.pop(which % len(self.running))
            if is_under_way and running.call is not None:
                self.late.append(running.call)

    def arrive(self, which: int) -> None:
        if self.late:
            self.late.pop(which % len(self.late))(self.server)

    def forget(self) -> None:
        self.running = [call for call in self.running if call.call is not None]

    def watch(self, which: int, kind: str, most: int) -> None:
        self.replicas[which].watch(kind, most)

    def restart(self, which: int) -> None:
        self.replicas[which].start()

    def check(self) -> None:
        for place, names in self.server.in_use().items():
            assert len(names) <= CAPACITY, f"{place}: {names}"

    def settle(self) -> None:
        """Finish all calls, deliver all watch events, and clear reservations that no binding follows."""
        while self.late:
            self.arrive(0)
            self.check()
        self.running = []
        replica = self.replicas[0]
        for _ in range(3):
            self.catch_up()
            for change in replica.sweep():
                self.start(replica.clear(*change), 99)
        self.catch_up()

    def catch_up(self) -> None:
        for replica in self.replicas:
            for kind in (PODS, ALLOCATION_RECORDS):
                replica.watch(kind, len(self.server.history))

    def held(self) -> dict[tuple[str, str], list[str]]:
        """The pods that hold each GPU according to a replica, by node and GPU."""
        holders: dict[tuple[str, str], list[str]] = {}
        for on, node_state in self.replicas[0].build().nodes.items():
            for pod in node_state.allocations.by_uid.values():
                holders.setdefault((on, pod.gpus[0][0]), []).append(pod.pod.removeprefix("d/"))
        return holders


def step_of(name: str, *drawn: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *drawn)


ON = st.sampled_from([NODES[0], *NODES])
BINDS = step_of("bind", WHICH, st.sampled_from(NAMES), ON, st.sampled_from([1, 2, 3, 9]))
GOES_ON = step_of("go_on", ANY, st.sampled_from([1, 2, 9]))
STEP = st.one_of(
    BINDS,
    BINDS,
    GOES_ON,
    GOES_ON,
    step_of("watch", WHICH, st.sampled_from([PODS, ALLOCATION_RECORDS]), st.integers(1, 9)),
    step_of("clear_up", WHICH, ANY, st.sampled_from([1, 2, 9])),
    step_of("lose", ANY, st.sampled_from(["now", "late", "never"])),
    step_of("arrive", ANY),
    step_of("kill", ANY, st.booleans()),
    step_of("tenant_writes", st.sampled_from(NAMES), st.sampled_from(["card0", ""])),
    step_of("pod_goes", st.sampled_from([*NAMES, "old"]), st.booleans()),
    step_of("pod_ends", st.sampled_from([*NAMES, "old"])),
    step_of("pod_comes", st.sampled_from(NAMES)),
    step_of("restart", WHICH),
)


@settings(
    max_examples=max(200, settings.default.max_examples),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)
@given(st.booleans(), st.lists(STEP, min_size=15, max_size=40))
def test_no_card_is_used_twice_and_in_the_end_none_leaks(old: bool, steps: list[tuple[Any, ...]]) -> None:
    cluster = ProtocolModel(old=old)
    for kind, *rest in steps:
        getattr(cluster, kind)(*rest)
        cluster.check()
    cluster.settle()
    assert cluster.held() == cluster.server.in_use()


def run_random_history(seed: int, server: ModelApiServer) -> None:
    """Run a long random history. Those that Hypothesis draws are mostly short and similar to each other."""
    chance = random.Random(seed)
    cluster = ProtocolModel(old=chance.random() < 0.3, server=server)
    for _ in range(60):
        kind = chance.choice(_LIFE)
        getattr(cluster, kind)(*(chance.choice(choices) for choices in _DRAWN[kind]))
        cluster.check()
    cluster.settle()
    assert cluster.held() == cluster.server.in_use()


_REPLICAS, _PLACES, _ODDS = range(2), range(9), (True, True, False)
_DRAWN: Mapping[str, Sequence[Sequence[Any]]] = {
    "bind": (_REPLICAS, NAMES, (NODES[0], *NODES), (1, 2, 3, 9)),
    "go_on": (_PLACES, (1, 2, 9)),
    "watch": (_REPLICAS, (PODS, ALLOCATION_RECORDS), (1, 2, 4, 9, 36)),
    "clear_up": (_REPLICAS, _PLACES, (1, 2, 9)),
    "lose": (_PLACES, ("now", "late", "never")),
    "kill": (_PLACES, _ODDS),
    "arrive": (_PLACES,),
    "tenant_writes": (NAMES, ("card0", "")),
    "pod_goes": ((*NAMES, "old"), _ODDS),
    "pod_ends": ((*NAMES, "old"),),
    "pod_comes": (NAMES,),
    "restart": (_REPLICAS,),
}
_LIFE = (
    *["bind"] * 8,
    *["go_on"] * 8,
    *["watch"] * 4,
    *["clear_up"] * 2,
    *["lose", "arrive", "kill", "tenant_writes", "pod_goes", "pod_goes", "pod_ends", "pod_comes", "restart"],
)


def test_long_lives() -> None:
    run_histories(ModelApiServer, 20 * settings.default.max_examples)


def test_an_old_look_at_a_pod_does_not_set_its_entry_back() -> None:
    """Otherwise a running cleanup would remove the entry, and only the pod's annotations would show its GPUs."""
    cluster = ProtocolModel(old=False)
    cluster.bind(0, "a", "n1", 1)  # writes the entry
    cluster.watch(1, ALLOCATION_RECORDS, 9)
    cluster.clear_up(1, 0, 2)  # changes the pod, so that its Binding fails
    cluster.go_on(0, 9)  # repeats the Binding with a new entry, which succeeds
    cluster.bind(1, "a", "n1", 3)  # on a replica that has seen none of these changes
    cluster.go_on(0, 9)  # finishes the cleanup
    cluster.tenant_writes("a", "")
    assert cluster.replicas[1].record("n1")[1].keys() == {"uid-1"}
    cluster.settle()
    assert cluster.held() == cluster.server.in_use() == {("n1", "card0"): ["a"]}


class AnyPod(ModelApiServer):
    """A server that accepts a Binding of any version of the pod."""

    def bind(self, seen: ModelPod, on: str, gpu: str) -> ModelResponse:
        now = self.pods.get(seen.name)
        return super().bind(now if now is not None and now.uid == seen.uid else seen, on, gpu)


class AnyRecord(ModelApiServer):
    """A server that accepts a record that is based on an older version."""

    def put_record(self, on: str, entries: Mapping[str, Reservation], version: int | None) -> ModelResponse:
        known = self.allocation_record.get(on)
        return super().put_record(on, entries, known.version if known else None)


class LosingRecords(ModelApiServer):
    """A server that sometimes deletes a node's record, like a garbage collector that considers the node deleted."""

    def put_pod(self, pod: ModelPod) -> ModelPod:
        if pod.on and self.version % 3 == 0 and self.allocation_record.pop(pod.on, None):
            self.version += 1
            self.history.append((self.version, ALLOCATION_RECORDS, pod.on, None))
        return super().put_pod(pod)


def run_histories(server: type[ModelApiServer], count: int) -> None:
    for seed in range(count):
        run_random_history(seed, server())


@pytest.mark.parametrize("server", [AnyPod, AnyRecord, LosingRecords])
def test_without_a_promise_of_the_server_a_card_is_used_twice(server: type[ModelApiServer]) -> None:
    with pytest.raises(AssertionError, match=r"'card0'\): \["):
        run_histories(server, 3000)
