"""Runs one story: applies each step, and compares what is expected with what is observed."""

import contextlib
from typing import Final

from tests.cluster.namespace_sandboxes import wait
from tests.conformance.gas import node_and_pod_notation, story_environment
from tests.conformance.gas.case_table_rows import BindRequestRow, Books, GasStep, GasStory
from tests.conformance.gas.story_environment import FaultyGasEnvironment

DEADLINE_S: Final = 30.0
"""The timeout of each wait. It is generous, because no test measures speed."""
SOMEBODYS: Final = "example.com/team"


class GasStoryRun:
    """Runs a story from its first step to its last."""

    def __init__(self, story: GasStory, tag: str, environment: FaultyGasEnvironment) -> None:
        self.story = story
        self._tag, self._environment = tag, environment

    def begin(self) -> None:
        """Create the nodes, and the pods that exist before the process starts."""
        for name, text in self.story.nodes.items():
            self._environment.node(self._name(name), text)
        for name, text in self.story.before.items():
            self._make(name, text)
        for name in self.story.labelled:
            self._patch(name, {"labels": {SOMEBODYS: "blue"}})
        for name in self.story.already:
            self._patch(name, {"labels": {story_environment.DESCHEDULE_LABEL: "gpu"}})

    def run(self) -> None:
        """Run every step. AssertionError: an expectation is not met."""
        for step in self.story.steps:
            with self._environment.blind() if step.blind else contextlib.nullcontext():
                self._act(step)
            with self._environment.trouble.failing(step.fail):
                if step.bind:
                    self._bind(step.bind)
            self._environment.settle()
            self._check(step)

    def _act(self, step: GasStep) -> None:
        for name, text in step.change.items():
            self._change(name, text)
        for name, text in step.pods.items():
            self._make(name, text)
        for name in step.leave:
            self._environment.api.request("DELETE", self._path(name))
        for name in step.remove:
            self._environment.api.delete(self._path(name))
        for name, text in step.again.items():
            self._make(name, text)
        for name, phase in step.phase.items():
            self._environment.api.patch(f"{self._path(name)}/status", {"status": {"phase": phase}})
        for name, annotation_text in step.annotate.items():
            self._patch(name, {"annotations": node_and_pod_notation.annotations(annotation_text)})
        for number, name in enumerate(step.touch):
            self._patch(name, {"annotations": {"touched": str(number)}})

    def _change(self, name: str, text: str | None) -> None:
        """Delete a node if the text is None, create it if it does not exist, or update its labels."""
        path = f"/api/v1/nodes/{self._name(name)}"
        now = self._environment.api.find(path)
        if text is None:
            self._environment.api.delete(path)
        elif now is None:
            self._environment.node(self._name(name), text)
        else:
            wanted = node_and_pod_notation.node(name, text)["metadata"]["labels"]
            gone = {
                key: None
                for key in now["metadata"]["labels"]
                if key.startswith(node_and_pod_notation.TELEMETRY)
            }
            self._environment.api.patch(path, {"metadata": {"labels": gone | wanted}})

    def _make(self, name: str, text: str) -> None:
        phase, _, rest = text.partition(" ")
        running = node_and_pod_notation.running(rest)
        on = "" if running.node == "-" else self._name(running.node)
        made = self._environment.pod(self._name(name), running.containers, node=on, **running.annotations)
        self._environment.set_phase(made, phase)

    def _bind(self, bind: BindRequestRow) -> None:
        names = {name: self._name(name) for name in (bind.pod, bind.node)}
        uid = bind.uid or self._environment.find(names[bind.pod])["metadata"]["uid"]
        answer = self._environment.bind(self._environment.extender(), names[bind.pod], uid, names[bind.node])
        error = answer.json()["Error"]
        wanted = bind.error.format(**names)
        assert bool(error) == bool(wanted), error
        assert wanted in error or wanted == "ANY", error
        assert answer.status_code == (404 if wanted else 200)

    def _check(self, step: GasStep) -> None:
        if step.books is not None:
            wanted = {node: story_environment.with_full_names(books) for node, books in step.books.items()}
            wait("the books", lambda: self._books() == wanted or None, DEADLINE_S, self._books)
        for name, cards in step.cards.items():
            annotations = self._environment.find(self._name(name))["metadata"].get("annotations", {})
            assert annotations.get(node_and_pod_notation.CARDS) == cards
            assert (node_and_pod_notation.TILES in annotations) == (cards is not None and "|" in cards)
        if step.told is not None:
            self._check_labelled(sorted(step.told))

    def _check_labelled(self, wanted: list[str]) -> None:
        """Wait for the expected labels, and check them again after the leader has processed all changes until then."""
        self._environment.settle_labels()
        wait(
            "labelled pods", lambda: self._labelled_pods() == wanted or None, DEADLINE_S, self._labelled_pods
        )
        self._environment.settle_labels()
        assert self._labelled_pods() == wanted

    def _books(self) -> dict[str, Books]:
        """The allocations of each node of the story that exists."""
        nodes = [
            name
            for name in self.story.nodes
            if self._environment.api.find(f"/api/v1/nodes/{self._name(name)}")
        ]
        return {
            node: self._environment.allocations(self._environment.extender(), self._name(node))
            for node in nodes
        }

    def _labelled_pods(self) -> list[str]:
        pods = {name: self._environment.find(self._name(name)) for name in self.story.before}
        return sorted(name for name, pod in pods.items() if story_environment.is_marked(pod))

    def _patch(self, name: str, metadata: dict[str, dict[str, str]]) -> None:
        self._environment.api.patch(self._path(name), {"metadata": metadata})

    def _path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self._environment.namespace}/pods/{self._name(name)}"

    def _name(self, name: str) -> str:
        return f"{self._tag}-{name}"
