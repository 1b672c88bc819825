"""Extender processes without a cluster, one for each environment, and requests to them."""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
from tests.cluster.child_processes import Process
from tests.cluster.extender_process import NODEWISE
from tests.forked_commands import ForkedProcess

Object = dict[str, Any]
AGENTS = "safe,congestion,pigeon"


class RunningExtender:
    """A running extender process, and its HTTP client."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.http = httpx2.Client(trust_env=False, timeout=60)
        self.url = ""
        self.health = ""

    def events(self, name: str) -> list[Object]:
        """The log lines of one event, oldest first."""
        lines = [line for line in self.process.log.read_text().splitlines() if line.startswith("{")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def is_up(self) -> bool:
        for event in self.events("started"):
            self.url, self.health = event["address"], event["health"]
        return bool(self.url) and self.http.get(f"{self.health}/readyz").is_success

    def send(
        self, path: str, body: bytes, method: str = "POST", content_type: str = "application/json"
    ) -> Any:
        """Send a request, and return the response whatever its status."""
        headers = {"Content-Type": content_type} if content_type else {}
        return self.http.request(method, f"{self.url}{path}", content=body, headers=headers)

    def ask(self, path: str, body: Object) -> Any:
        """Send a request, and return the JSON of the response, whose status must be 200."""
        answer = self.send(path, json.dumps(body).encode())
        assert answer.status_code == httpx2.codes.OK, answer.text
        return answer.json()

    def scores(self, name: str, body: Object) -> dict[str, int]:
        return {
            priority["Host"]: priority["Score"]
            for priority in self.ask(f"/scheduler/priorities/{name}", body)
        }

    def numbers(self, agent: str, pod: str) -> dict[str, Object]:
        """An agent's details of the newest decision about a pod, by node."""
        response_body = self.http.get(f"{self.health}/decisions", params={"pod": pod, "limit": "1"}).json()
        by_node: dict[str, Object] = response_body["decisions"][0]["numbers"][agent]
        return by_node


@contextlib.contextmanager
def running(folder: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[RunningExtender]:
    """An extender process that runs until the block ends. Its working directory is `folder`."""
    options = [f"--agents={AGENTS}", *arguments]  # the last value of an option has precedence
    lone = [] if any(option.startswith("--objects-from") for option in arguments) else ["--no-cluster"]
    ports = ["--unsafe", "--port=0", "--health-port=0", "--log-format=json", "--shutdown-delay=0s"]
    command = [str(NODEWISE), "extender", *lone, *ports, *options]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NODEWISE_")}
    process = ForkedProcess(command, folder / "log", {**clean, **environment}, folder)
    extender = RunningExtender(process)
    try:
        process.wait_ready(extender.is_up)
        yield extender
    finally:
        extender.http.close()
        process.stop()


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[Callable[[Mapping[str, str]], RunningExtender]]:
    """A function that starts a process in the folder with an environment. The processes run until the block ends."""
    with contextlib.ExitStack() as stack:
        yield lambda environment: stack.enter_context(running(folder, environment))


class ExtenderPool:
    """Extender processes by environment. Each starts on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[tuple[tuple[str, str], ...], RunningExtender] = {}
        self._open = contextlib.ExitStack()
        self._numbers = itertools.count(1)

    def close(self) -> None:
        self._open.close()

    def extender_with(self, environment: Mapping[str, str]) -> RunningExtender:
        key = tuple(sorted(environment.items()))
        if key not in self._running:
            folder = self._folder / str(next(self._numbers))
            folder.mkdir()
            self._running[key] = self._open.enter_context(running(folder, environment))
        return self._running[key]


_pods = itertools.count(1)


def pod(*requests: Mapping[str, Any], **more: Any) -> Object:
    """A pod with one container per request, and with a unique name."""
    name = f"p{next(_pods)}"
    containers = [
        {"name": f"c{number}", "resources": {"requests": dict(amounts)}}
        for number, amounts in enumerate(requests)
    ]
    metadata = {"name": name, "namespace": "d", "uid": name, **more.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"containers": containers, **more}}


def node(name: str, allocatable: Mapping[str, Any], annotations: Mapping[str, str | None]) -> Object:
    present = {key: value for key, value in annotations.items() if value is not None}
    return {
        "metadata": {"name": name, "annotations": present},
        "status": {"allocatable": {key: str(value) for key, value in allocatable.items()}},
    }


def request(requesting: Object, nodes: Sequence[Object]) -> Object:
    return {"pod": requesting, "nodes": {"items": list(nodes)}}
