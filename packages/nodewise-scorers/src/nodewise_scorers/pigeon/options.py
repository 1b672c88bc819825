"""Settings of the pigeon agent, and the older system's file `pigeon.cfg`.

A line of the file is `key = value`. Blanks around either are ignored, # begins a comment, and the last of equal keys
counts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, get_args

import msgspec

from nodewise.base.errors import BadSettings, Problem, shown
from nodewise.base.option import Option
from nodewise_scorers.scoring_agent import MissingRules, Score, When

NAMES: Final = ("cpu", "memory", "pods", "gpu", "ephemeral-storage")
"""The resources of the agent, in the order of `num_resources`, and as in the annotations `requested-<name>`, regardless
of the name of the resource that counts as `gpu`."""
GPU: Final = "gpu"

Objective = Literal["A_BINPACK", "LOAD_BALANCE", "CONSOLIDATE"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)
A_BINPACK: Final[Objective] = "A_BINPACK"
Scaling = Literal["stretch", "absolute"]

DEFAULT: Final = "pigeon.cfg"
OBJECTIVE: Final = "policyObjective"
INDEX: Final = "policyResourceIndex"
_MAX_BYTES: Final = 2**16


class PigeonOptions(MissingRules, msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the objective and its resources."""

    num_resources: Annotated[int, msgspec.Meta(ge=1, le=len(NAMES))] = 2
    """Number of resources that count, of cpu, memory, pods, gpu and ephemeral-storage in this order."""

    policy_objective: Literal["", "A_BINPACK", "LOAD_BALANCE", "CONSOLIDATE"] = ""
    """Objective. `A_BINPACK`: nodes differ as much in utilization as pods differ in requests; equal pods are spread,
    and with small and large pods some nodes are kept free for the large ones. `LOAD_BALANCE`: nodes have equal
    utilization. `CONSOLIDATE`: nodes are full or empty. Default: that of pigeon.cfg, else A_BINPACK."""

    in_flight: bool = False
    """Count pods in flight: bound pods, and for some seconds pods that were just prioritized, until the statistics of
    their node include them. Otherwise pods that arrive together see the same best node."""

    policy_resource_index: Annotated[int, msgspec.Meta(ge=0, lt=len(NAMES))] | None = None
    """Resource of LOAD_BALANCE and CONSOLIDATE: 0 is cpu, 1 memory, and so on. Default: that of pigeon.cfg, else 0."""

    pigeon_config: Annotated[str, Option(metavar="FILE")] = ""
    """File of the older system, with lines such as `policyObjective=CONSOLIDATE` and `policyResourceIndex=1`. Default:
    pigeon.cfg in the working directory, if it exists."""

    pigeon_usage: Literal["annotations", "pods"] = "annotations"
    """Source of the requested amounts of a node. `annotations`: its annotations `requested-cpu` and so on, which
    `nodewise annotate` writes once a minute. `pods`: the API server's pods, so that a pod counts as soon as it is
    bound."""

    pigeon_scaling: Scaling = "stretch"
    """Conversion of values of the objective into scores. `stretch`: 10 for the best candidate and 1 for the worst
    that the pod fits, however small the difference. `absolute`: 10 for a value of 0, 0 for 1 or more, which
    distinguishes nodes in small clusters only."""

    pigeon_gpu_resource: Annotated[str, Option(metavar="RESOURCE")] = GPU
    """Name of the fourth resource on nodes and in pod requests, such as nvidia.com/gpu."""

    when_missing: When = "accept"
    """Treatment of a node with an unknown requested amount of a resource that counts: `accept` lets it pass, `reject`
    does not."""

    score_missing: Score = None
    """Score of such a node, from 0 to 10, if the pod fits. Default: its score with a requested amount of 0."""


class PigeonConfig(NamedTuple):
    """The objective and its resources, from settings and file."""

    objective: Objective
    prime: int
    """The index of the resource that LOAD_BALANCE and CONSOLIDATE use."""
    resources: int
    """The number of resources that count."""
    problems: tuple[str, ...] = ()
    """Messages about entries of the file that are ignored."""


class _Entry(NamedTuple):
    value: str
    where: str
    """File and line, for errors."""


def load_config(options: PigeonOptions) -> PigeonConfig:  # complexity: two settings, each in two places
    """Combine settings and file. `BadSettings` lists all invalid values, and where the two differ.

    They must not differ, because one of two explicit settings would have no effect.
    """
    path = options.pigeon_config or DEFAULT
    entries, ignored = _read_config_file(path, is_needed=bool(options.pigeon_config))
    problems: list[Problem] = []

    def conflict(entry: _Entry, key: str, setting: str) -> None:
        value = f"{entry.value}, but {setting}"
        problems.append(Problem(f"{entry.where}: {key}", value, "the same in both, or one of the two alone"))

    objective: Objective = options.policy_objective or A_BINPACK
    if entry := entries.get(OBJECTIVE):
        if entry.value not in OBJECTIVES:
            expected = f"one of {', '.join(OBJECTIVES)}"
            problems.append(Problem(f"{entry.where}: {OBJECTIVE}", shown(entry.value), expected))
        elif options.policy_objective and options.policy_objective != entry.value:
            conflict(entry, OBJECTIVE, f"--policy-objective {options.policy_objective}")
        else:
            objective = entry.value
    index, highest = options.policy_resource_index, options.num_resources - 1
    expected = f"a whole number from 0 to {highest}, as {options.num_resources} resources count"
    if index is not None and index > highest:
        problems.append(Problem("--policy-resource-index", str(index), expected))
    if entry := entries.get(INDEX):
        if entry.value not in map(str, range(highest + 1)):
            problems.append(Problem(f"{entry.where}: {INDEX}", shown(entry.value), expected))
        elif index is not None and str(index) != entry.value:
            conflict(entry, INDEX, f"--policy-resource-index {index}")
        else:
            index = int(entry.value)
    if problems:
        raise BadSettings("pigeon", problems)
    return PigeonConfig(objective, index or 0, options.num_resources, ignored)


def _read_config_file(path: str, *, is_needed: bool) -> tuple[Mapping[str, _Entry], tuple[str, ...]]:
    """The entries of a file by key, and its harmless problems."""
    try:
        if not is_needed and not Path(path).exists():
            return {}, ()
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text, error = content.decode("utf-8-sig"), f"more than {_MAX_BYTES} bytes"
    except (OSError, ValueError) as unreadable:
        content, text, error = None, "", str(unreadable)
    if content is None or len(content) > _MAX_BYTES:
        problem = Problem("--pigeon-config", f"{path}: {error}", "a readable file of lines key=value")
        raise BadSettings("pigeon", [problem])
    entries: dict[str, _Entry] = {}
    ignored = []
    for number, line in enumerate(text.split("\n"), 1):
        if entry := line.partition("#")[0].strip():
            key, _, value = entry.partition("=")
            where = f"{path} line {number}"
            if key.strip() in (OBJECTIVE, INDEX):
                entries[key.strip()] = _Entry(value.strip(), where)
            else:
                ignored.append(str(Problem(where, shown(key.strip()), f"{OBJECTIVE}=… or {INDEX}=…")))
    return entries, tuple(ignored)
