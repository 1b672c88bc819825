"""The older system's file `pigeon.cfg`, and the configuration from it and the settings.

A line is `key = value`. Blanks around either are ignored, # begins a comment, and the last of equal keys counts.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.base.errors import BadSettings, Problem, shown
from nodewise_scorers.pigeon.options import PigeonOptions
from nodewise_scorers.pigeon.placement_objectives import A_BINPACK, OBJECTIVES, Objective

DEFAULT: Final = "pigeon.cfg"
OBJECTIVE: Final = "policyObjective"
INDEX: Final = "policyResourceIndex"

_MAX_BYTES: Final = 2**16


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


def load_config(options: PigeonOptions) -> PigeonConfig:
    """Combine settings and file. `BadSettings` lists all invalid values, and where the two differ."""
    path = options.pigeon_config or DEFAULT
    entries, odd = _read_config_file(path, is_needed=bool(options.pigeon_config))
    wrong: list[Problem] = []
    objective = _merge_objective_settings(options, entries.get(OBJECTIVE), wrong)
    prime = _merge_prime_resource_settings(options, entries.get(INDEX), wrong)
    if wrong:
        raise BadSettings("pigeon", wrong)
    return PigeonConfig(objective, prime, options.num_resources, odd)


def _read_config_file(path: str, *, is_needed: bool) -> tuple[Mapping[str, _Entry], tuple[str, ...]]:
    """The entries of a file by key, and its harmless problems."""
    try:
        if not is_needed and not Path(path).exists():
            return {}, ()
        with Path(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        lines = list(_parse_config_lines(path, content.decode("utf-8-sig")))
    except (OSError, ValueError) as error:
        raise _unreadable_file_error(f"{path}: {error}") from error
    if len(content) > _MAX_BYTES:
        raise _unreadable_file_error(f"{path}: more than {_MAX_BYTES} bytes")
    known = {key: entry for key, entry in lines if key in (OBJECTIVE, INDEX)}
    wanted = f"{OBJECTIVE}=… or {INDEX}=…"
    odd = (Problem(entry.where, shown(key), wanted) for key, entry in lines if key not in (OBJECTIVE, INDEX))
    return known, tuple(map(str, odd))


def _unreadable_file_error(value: str) -> BadSettings:
    return BadSettings("pigeon", [Problem("--pigeon-config", value, "a readable file of lines key=value")])


def _parse_config_lines(path: str, text: str) -> Iterator[tuple[str, _Entry]]:
    for number, line in enumerate(text.split("\n"), 1):
        text = line.partition("#")[0].strip()
        if text:
            key, _, value = text.partition("=")
            yield key.strip(), _Entry(value.strip(), f"{path} line {number}")


def _merge_objective_settings(
    options: PigeonOptions, entry: _Entry | None, wrong: list[Problem]
) -> Objective:
    chosen = options.policy_objective
    if entry is None:
        return chosen or A_BINPACK
    where = f"{entry.where}: {OBJECTIVE}"
    if entry.value not in OBJECTIVES:
        wrong.append(Problem(where, shown(entry.value), f"one of {', '.join(OBJECTIVES)}"))
    elif chosen and chosen != entry.value:
        wrong.append(_conflicting_settings_problem(where, entry.value, f"--policy-objective {chosen}"))
    else:
        return entry.value
    return A_BINPACK


def _merge_prime_resource_settings(options: PigeonOptions, entry: _Entry | None, wrong: list[Problem]) -> int:
    chosen, most = options.policy_resource_index, options.num_resources - 1
    wanted = f"a whole number from 0 to {most}, as {options.num_resources} resources count"
    if chosen is not None and chosen > most:
        wrong.append(Problem("--policy-resource-index", str(chosen), wanted))
    if entry is None:
        return chosen or 0
    where = f"{entry.where}: {INDEX}"
    index = next((number for number in range(most + 1) if entry.value == str(number)), None)
    if index is None:
        wrong.append(Problem(where, shown(entry.value), wanted))
    elif chosen is not None and chosen != index:
        wrong.append(_conflicting_settings_problem(where, entry.value, f"--policy-resource-index {chosen}"))
    return index or 0


def _conflicting_settings_problem(where: str, value: str, setting: str) -> Problem:
    """A problem instead of a precedence: otherwise one of two explicit settings would have no effect."""
    return Problem(where, f"{value}, but {setting}", "the same in both, or one of the two alone")
