"""Stories: changes of a cluster step by step, and the expected state after each step.

They come from the tables about node labels and metric requests. All stories run at the same time, with one API server
and one process, so every name begins with the tag of its story: see `StoryNames`.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tests.conformance.tas import case_table_rows
from tests.conformance.tas.case_table_rows import ExpectedLogLine

TABLES = ("metrics", "controller", "deschedule", "labeling", "endtoend", "process")
PREFIX = "telemetry.aware.scheduling."

Upheaval = Literal["", "restart", "relist", "blind", "blind start"]
"""The fault of the process in a step. The other changes of the step take place during the fault.

`restart`: the process ends and starts. `relist`: it loses its watches and has to list again. `blind`: it can neither
list nor watch nodes. `blind start`: it ends, and starts while it cannot list nodes; no label may change until it can.
"""

Labels = dict[str, dict[str, str]]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all rows: a misspelt key in a table is an error."""


class ExpectedDecision(_Strict, kw_only=True):
    """The expected decision for a policy's pods."""

    failed: dict[str, str] | UnsetType | None = UNSET
    """The rejection reason by node; all other nodes of the story pass. Null: no agent took part. A reason that ends
    with `…` is the beginning of one: its end changes with time.
    """

    scores: dict[str, int] | None = None

    def allows(self, failed: dict[str, str] | None) -> bool:
        """Whether the response has exactly these nodes and reasons."""
        if not failed or not self.failed:
            return failed == self.failed
        return failed.keys() == self.failed.keys() and all(
            reason == failed[node] or (reason.endswith("…") and failed[node].startswith(reason[:-1]))
            for node, reason in self.failed.items()
        )


class ExpectedCondition(_Strict, kw_only=True):
    """An expected condition of a policy's status."""

    type: str
    status: str
    about: tuple[str, ...] = ()
    """Words of its message."""


class StoryPod(_Strict, kw_only=True):
    """A pod with a policy, and its expected node or message from the scheduler."""

    policy: str
    lands: str = ""
    waits: str = ""
    """Words of the scheduler's message, for a pod that fits no node."""


class TasStep(_Strict, kw_only=True):
    """Changes, and the expected state that follows soon and lasts."""

    process: Upheaval = ""
    metrics: dict[str, Any] = {}
    """The responses for a metric from now on. A mapping: values by node; a value may be `{value, age_s}`. A list of
    pairs of node and value: sent unchanged. A number: every call fails with this status. `hang`: no response."""
    policies: dict[str, dict[str, Any] | None] = {}
    """Strategies by policy name, `namespace/name` where the namespace is not `d`. Null: the policy is deleted."""
    touch: tuple[str, ...] = ()
    """Policies of which only the metadata changes."""
    label: dict[str, dict[str, str | None]] = {}
    """Node labels that another client sets; null: it removes the label."""
    refuse: dict[str, int] = {}
    """Nodes whose writes fail, with the status that the API server returns; 0: writes succeed again."""

    labels: Labels | UnsetType = UNSET
    """All expected labels of all nodes of the story. Unset: the previous ones and the changes in `label`."""
    judged: dict[str, ExpectedDecision] = {}
    polled: dict[str, bool] = {}
    """Whether the process requests a metric."""
    conditions: dict[str, ExpectedCondition] = {}
    logged: ExpectedLogLine | None = None
    patches: dict[str, int] = {}
    """The number of writes of a node since the story began."""
    pods: dict[str, StoryPod] = {}


class TasStory(_Strict, kw_only=True):
    """A row with steps."""

    number: str = ""
    """Empty: the older system has no such case."""
    name: str
    nodes: Labels
    """The labels of each node at its creation."""
    of_tas: Labels = {}
    """Labels that the older system writes just before the first step."""
    steps: tuple[TasStep, ...]
    differs: str = ""


class _Table(msgspec.Struct):
    stories: tuple[TasStory, ...] = ()


def all_stories() -> list[TasStory]:
    """The stories of all tables."""
    return [story for name in TABLES for story in case_table_rows.read(name, _Table).stories]


class StoryNames:
    """The names of a story's objects on the shared API server. Each begins with the story's tag."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def node(self, name: str) -> str:
        return f"{self.tag}-{name}"

    def metric(self, name: str) -> str:
        return f"{self.tag}_{name}"

    def policy(self, name: str) -> tuple[str, str]:
        """The namespace and the name of a policy."""
        space, _, own = name.rpartition("/")
        return f"{self.tag}-{space or 'd'}", f"{self.tag}-{own}"

    def label(self, key: str) -> str:
        """The label key for a key of the table.

        `.policy/name` gets `PREFIX` and the tag, a key without dots gets the tag, and any other key is unchanged.
        """
        if key.startswith("."):
            return f"{PREFIX}{self.tag}-{key[1:]}"
        return key if "." in key else f"{self.tag}-{key}"

    def labels(self, labels_by_node: Labels) -> Labels:
        return {
            self.node(node): {self.label(key): value for key, value in labels.items()}
            for node, labels in labels_by_node.items()
        }

    def own(self, text: str) -> str:
        """A text with the names of the table."""
        return text.replace(f"{self.tag}-", "").replace(f"{self.tag}_", "")
