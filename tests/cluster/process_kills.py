"""Kills programs at random moments and restarts them, while other threads check decisions and labels.

Every response must follow from acceptable values (`MetricHistory.truths`), or reject all nodes for lack of values.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx2

from tests.cluster.api_client import Object
from tests.cluster.child_processes import Process
from tests.cluster.metric_history import HOT, OURS, POLICY, FreshnessCheck, MetricHistory, MetricValues
from tests.filter_responses import rejected_nodes

NAMESPACE = "shop"
RULE = f"heat GreaterThan {HOT}"
"""A part of the reason of a node that breaks the rule. Other reasons report missing values."""


class SupervisedProcess:
    """A program that is killed and restarted with the same command line, data and address."""

    def __init__(self, name: str, process: Process, is_live: Callable[[], bool]) -> None:
        self.name = name
        self.is_live = is_live
        self.process = process
        self.killed_s = float("-inf")
        self.collapses = 0
        """Number of times that the program ended without being killed."""
        self._due_s = float("inf")
        self._command = process.command

    def kill(self, pause_s: float) -> None:
        """Kills the program. `supervise` restarts it after a pause."""
        self.killed_s = time.monotonic()
        self.process.kill()
        self._due_s = time.monotonic() + pause_s

    def supervise(self) -> bool:
        """Restarts the program if its pause is over. Returns whether it runs."""
        if self.process.is_running:
            return True
        now_s = time.monotonic()
        if self._due_s == float("inf"):
            self.collapses += 1
            self._due_s = now_s + 1.0
        if now_s >= self._due_s:
            self._due_s = float("inf")
            self.process = Process(self._command, self.process.log)
        return self.process.is_running


class RepeatingThread(threading.Thread):
    """A thread that calls a function repeatedly until `end`."""

    def __init__(self, look: Callable[[], None], pause_s: float) -> None:
        super().__init__(daemon=True)
        self._look = look
        self._pause_s = pause_s
        self._ended = threading.Event()
        self.defect: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._ended.wait(self._pause_s):
                self._look()
        except Exception as error:  # `end` raises it in the thread of the test
            self.defect = error

    def end(self) -> None:
        self._ended.set()
        self.join(30)
        if self.defect:
            raise self.defect


class DecisionChecker:
    """Calls nodewise as kube-scheduler does, over a kept connection, and checks each response against the history."""

    def __init__(
        self, url: str, client: httpx2.Client, history: MetricHistory, nodewise: SupervisedProcess
    ) -> None:
        self._url = url
        self._client = client
        self._history = history
        self._nodewise = nodewise
        self._filtered = FreshnessCheck(history, MetricValues.rejected)
        self._scored = FreshnessCheck(history, MetricValues.scores)
        self._well_s = time.monotonic()
        self._knew_s = dict.fromkeys(("filter", "prioritize"), float("-inf"))
        self.answers = self.refusals = self.unanswered = 0
        self.wrong: list[str] = []

    @property
    def oldest_s(self) -> float:
        return max(self._filtered.oldest_s, self._scored.oldest_s)

    def look(self) -> None:
        """Sends the filter and the prioritize call of a pod and checks both responses."""
        for verb in ("filter", "prioritize"):
            floor, asked_s = self._history.floor, time.monotonic()
            try:
                answer = self.ask(verb)
            except httpx2.TransportError as error:
                self._failed(verb, error, asked_s)
                continue
            self._check(verb, answer, floor, asked_s)
            self._well_s = asked_s

    def ask(self, verb: str, policy: str = POLICY) -> httpx2.Response:
        """The response of nodewise for a pod of the policy and all nodes."""
        metadata = {"name": "probe", "namespace": NAMESPACE, "labels": {"telemetry-policy": policy}}
        body = {"Pod": {"metadata": metadata}, "NodeNames": sorted(self._history.newest.heat)}
        return self._client.post(f"{self._url}/scheduler/{verb}", json=body)

    def _failed(self, verb: str, error: Exception, asked_s: float) -> None:
        """Records a missing response. It is acceptable only from a kill of nodewise until nodewise responds again."""
        self.unanswered += 1
        if self._nodewise.killed_s < self._well_s:
            self.wrong.append(
                f"{verb}: no answer although nodewise was not killed: {error!r} at {asked_s:.1f}"
            )

    def _check(self, verb: str, answer: httpx2.Response, floor: int, asked_s: float) -> None:
        """Checks a response. A refusal is acceptable only while nodewise has no values: from a kill until it has values
        again.
        """
        answered_s = time.monotonic()
        self.answers += 1
        if answer.status_code != httpx2.codes.OK:
            self.wrong.append(f"{verb}: status {answer.status_code} at {answered_s:.1f}: {answer.text[:300]}")
            return
        if is_refusal(answer, verb):
            self.refusals += 1
            if self._nodewise.killed_s < self._knew_s[verb]:
                self.wrong.append(
                    f"{verb}: refused although it knew at {answered_s:.1f}: {answer.text[-200:]}"
                )
            return
        self._knew_s[verb] = asked_s
        response = failed(answer) if verb == "filter" else scores(answer)
        held: FreshnessCheck[Any] = self._filtered if verb == "filter" else self._scored
        if held.match(response, floor, answered_s) is None:
            self.wrong.append(f"{verb}: no truth at {answered_s:.1f}: {self._difference(response)}")

    def _difference(self, response: Any) -> str:
        meant = (
            self._history.newest.rejected()
            if isinstance(response, frozenset)
            else self._history.newest.scores()
        )
        return (
            f"{sorted(response ^ meant)[:10]}"
            if isinstance(response, frozenset)
            else f"{response} for {meant}"
        )


def failed(answer: httpx2.Response) -> frozenset[str]:
    """The rejected nodes in the response of a filter call."""
    return frozenset(rejected_nodes(answer.json()))


def is_refusal(answer: httpx2.Response, verb: str) -> bool:
    """Whether a response reports missing values: all nodes are rejected, none because of its value, or all scores are
    0.
    """
    if verb == "prioritize":
        return not any(scores(answer).values())
    rejection = answer.json()
    reasons = rejected_nodes(rejection).values()
    return not rejection["NodeNames"] and len(reasons) > 0 and not any(RULE in reason for reason in reasons)


def scores(answer: httpx2.Response) -> dict[str, int]:
    """The scores in the response of a prioritize call."""
    return {priority["Host"]: priority["Score"] for priority in answer.json()}


class LabelPoller:
    """Reads the labels of all nodes repeatedly and checks them against the history."""

    def __init__(self, client: httpx2.Client, history: MetricHistory, foreign: Mapping[str, str]) -> None:
        self._client = client
        self._history = history
        self._foreign = foreign
        # each label has its own check: the two labels come from two metrics, which nodewise fetches one after the other
        self._held = {
            (node, key): FreshnessCheck(
                history, lambda truth, node=node, key=key: truth.labels(node).get(key)
            )
            for node in history.newest.heat
            for key in OURS
        }
        self.looks = 0
        self.wrong: list[str] = []

    def look(self) -> None:
        """Checks that each label of nodewise follows from acceptable values, and that the labels of others are
        unchanged.
        """
        floor = self._history.floor
        try:
            allocations = self.read()
        except httpx2.HTTPError:
            return
        seen_s = time.monotonic()
        self.looks += 1
        for node in self._history.newest.heat:
            ours, others = split(allocations.get(node, {}))
            if others != {**self._foreign, "kubernetes.io/hostname": node}:
                self.wrong.append(f"labels of others on {node} at {seen_s:.1f}: {others}")
            for key in OURS:
                held = self._held[node, key]
                if held.match(ours.get(key), floor, seen_s) is None:
                    self.wrong.append(f"{key} of {node} at {seen_s:.1f}: {ours.get(key)}; {held.meanings()}")

    def forget(self) -> None:
        """Accepts labels from values of any age again."""
        self._history.floor = 0
        for held in self._held.values():
            held.forget()

    def read(self) -> dict[str, dict[str, str]]:
        """The labels of all nodes now. Raises HTTPError."""
        slim = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
        listed: Object = self._client.get("/api/v1/nodes", headers=slim).raise_for_status().json()
        return {item["metadata"]["name"]: item["metadata"].get("labels", {}) for item in listed["items"]}


def split(labels: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Splits labels into those of nodewise and those of others."""
    ours = {key: value for key, value in labels.items() if key in OURS}
    return ours, {key: value for key, value in labels.items() if key not in ours}


class ProcessKiller:
    """Kills programs at random moments and restarts them. The diary records the faults for error messages."""

    def __init__(self, parts: Sequence[SupervisedProcess], chance: random.Random) -> None:
        self._parts = parts
        self._chance = chance
        self.faults = 0
        self.diary: list[str] = []

    def note(self, text: str) -> None:
        self.diary.append(f"{time.monotonic():.1f} {text}")

    def kill(self, kills: int, length_s: float, meanwhile: Sequence[Callable[[], None]]) -> None:
        """Kills programs `kills` times within about `length_s`, and calls the functions of `meanwhile` at random
        moments in between.
        """
        began_s = time.monotonic()
        acts = [*meanwhile, *[self._kill] * kills]
        due = sorted((self._chance.uniform(0, length_s), number) for number in range(len(acts)))
        while due:
            self._supervise()
            if time.monotonic() - began_s >= due[0][0]:
                acts[due.pop(0)[1]]()
            time.sleep(0.01)

    def wait_live(self, deadline_s: float = 120.0) -> None:
        """Waits until every program runs and responds."""
        end = time.monotonic() + deadline_s
        while not (self._supervise() and all(part.is_live() for part in self._parts)):
            assert time.monotonic() < end, f"not all parts came back: {self.diary_tail()}"
            time.sleep(0.05)
        self.note("all live")

    def diary_tail(self) -> str:
        """The end of the diary."""
        return "\n".join(self.diary[-40:])

    def _supervise(self) -> bool:
        running = [part.supervise() for part in self._parts]
        return all(running)

    def _kill(self) -> None:
        running = [part for part in self._parts if part.process.is_running]
        while not running:
            self._supervise()
            running = [part for part in self._parts if part.process.is_running]
        victim = self._chance.choice(running)
        pause_s = self._chance.uniform(0.05, 1.5)
        victim.kill(pause_s)
        self.faults += 1
        self.note(f"fault {self.faults}: {victim.name} killed, back after {pause_s:.1f} s")


@contextlib.contextmanager
def stop_restarted(parts: Sequence[SupervisedProcess]) -> Iterator[None]:
    """Stops the programs at the end, also the restarted ones."""
    try:
        yield
    finally:
        for part in reversed(parts):
            part.process.stop()
