"""Stories: what happens to a cluster step by step, and what must be so after each step.

Read from the tables whose rows tell how nodes are labelled and which metrics are asked for. All stories are told at
once, on one API server to one process, so every name is the row's own: see `Names`.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tests.conformance.tas import table_rows
from tests.conformance.tas.table_rows import ExpectedLogLine

TABLES = ("metrics", "controller", "deschedule", "labeling", "endtoend", "process")
PREFIX = "telemetry.aware.scheduling."

Upheaval = Literal["", "restart", "relist", "blind", "blind start"]
"""What befalls the process in a step; the rest of the step happens meanwhile.

`restart`: it is ended and started. `relist`: it loses its watches and is told to list again. `blind`: nodes cannot be
listed nor watched. `blind start`: it is ended, and started while nodes cannot be listed; nothing may change until
they can.
"""

Labels = dict[str, dict[str, str]]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A misspelt key in a table is an error."""


class ExpectedDecision(_Strict, kw_only=True):
    """The expected decision for a policy's pods."""

    failed: dict[str, str] | UnsetType | None = UNSET
    """By node: the reason why it is rejected; all other nodes of the story pass. Null: nobody had a say."""
    scores: dict[str, int] | None = None


class ExpectedCondition(_Strict, kw_only=True):
    """A condition of a policy's status."""

    type: str
    status: str
    about: tuple[str, ...] = ()
    """Words in its message."""


class StoryPod(_Strict, kw_only=True):
    """A pod of a policy, and what the scheduler does with it."""

    policy: str
    lands: str = ""
    waits: str = ""
    """Words of the scheduler's message, for a pod that fits nowhere."""


class TasStep(_Strict, kw_only=True):
    """What happens, and what must be so soon after and remain so."""

    process: Upheaval = ""
    metrics: dict[str, Any] = {}
    """By metric. Values by node, from now on; a value may be `{value, age_s}`. Pairs of node and value: sent as they
    stand. A number: every call is answered with this status. `hang`: no call is answered."""
    policies: dict[str, dict[str, Any] | None] = {}
    """Strategies by the policy's name, with its namespace before it where that is not `d`. Null: it is deleted."""
    touch: tuple[str, ...] = ()
    """Policies of which only the metadata is edited."""
    label: dict[str, dict[str, str | None]] = {}
    """Labels that somebody else sets on nodes, or takes away."""
    refuse: dict[str, int] = {}
    """Nodes that cannot be written, with the status that the API server answers; 0: they can be again."""

    labels: Labels | UnsetType = UNSET
    """All labels of all nodes of the story. Left out: as before, with what somebody else did in this step."""
    judged: dict[str, ExpectedDecision] = {}
    polled: dict[str, bool] = {}
    """Whether a metric is asked for."""
    conditions: dict[str, ExpectedCondition] = {}
    logged: ExpectedLogLine | None = None
    patches: dict[str, int] = {}
    """How often a node's labels were written since the story began."""
    pods: dict[str, StoryPod] = {}


class TasStory(_Strict, kw_only=True):
    """One row."""

    number: str = ""
    """Empty: the older system's cases have none of this."""
    name: str
    nodes: Labels
    """The labels of each node when it is made, by somebody else."""
    of_tas: Labels = {}
    """Labels that the older system set just before the first step."""
    steps: tuple[TasStep, ...]
    differs: str = ""


class _Table(msgspec.Struct):
    stories: tuple[TasStory, ...] = ()


def all_stories() -> list[TasStory]:
    """The stories of all tables."""
    return [story for name in TABLES for story in table_rows.read(name, _Table).stories]


class StoryNames:
    """The story's names on the shared API server: each begins with the story's tag."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def node(self, name: str) -> str:
        return f"{self.tag}-{name}"

    def metric(self, name: str) -> str:
        return f"{self.tag}_{name}"

    def policy(self, name: str) -> tuple[str, str]:
        """Namespace and name."""
        space, _, own = name.rpartition("/")
        return f"{self.tag}-{space or 'd'}", f"{self.tag}-{own}"

    def label(self, key: str) -> str:
        """A key of the table: a policy's name, or `.policy/name` for one below the prefix, or whole as it is."""
        if key.startswith("."):
            return f"{PREFIX}{self.tag}-{key[1:]}"
        return key if "." in key else f"{self.tag}-{key}"

    def labels(self, labels_by_node: Labels) -> Labels:
        return {
            self.node(node): {self.label(key): value for key, value in labels.items()}
            for node, labels in labels_by_node.items()
        }

    def own(self, text: str) -> str:
        """A text in the words of the table."""
        return text.replace(f"{self.tag}-", "").replace(f"{self.tag}_", "")
