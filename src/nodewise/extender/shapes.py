"""Whether what code of others gives us is what the contract says: each check answers with a copy of our own, or fails.

Words of reasons are made here too, once, so that nothing of theirs runs while an answer is written.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from nodewise.agent import (
    COMPARISONS,
    MAX_SCORE,
    AgentKind,
    Evidence,
    Inputs,
    Reason,
    Scores,
    ValueState,
    Verdict,
    Want,
    Watched,
)
from nodewise.errors import UNREADABLE
from nodewise.extender import samples
from nodewise.extender.arrays import Told
from nodewise.extender.deadlines import Failed
from nodewise.extender.numbers import plain as as_json
from nodewise.kube.fields import merge
from nodewise.metrics.aggregation import AGGREGATIONS

NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST_NAME: Final = 40
"""Of an agent: it stands in paths, flags, variables and log lines."""
_MOST_REASONS: Final = 256
_LONGEST: Final = 500
"""Characters of a reason."""
_LARGEST_MEMORY: Final = 512 * 1024


def verdict(given: Any, size: int) -> Verdict | None:
    """The verdict about so many candidates, without its details. `Failed` says what is wrong with it."""
    if given is None:
        return None
    _of_type(given, Verdict, "an answer")
    reasons = tuple(map(reason, _bounded(given.reasons, "reasons")))
    codes = _whole(given.codes, size, "codes", np.int16, len(reasons))
    if given.joined not in {None, "any", "all"}:
        raise Failed("shape", f"joined is {_shown(given.joined)}; wanted any, all or None")
    return Verdict(codes, reasons, _evidence(given.evidence, size), given.joined)


def scores(given: Any, size: int) -> Scores | None:
    """The scores of so many candidates, without their details. `Failed` says what is wrong with them."""
    if given is None:
        return None
    _of_type(given, Scores, "an answer")
    points = _whole(given.points, size, "scores", np.int64, MAX_SCORE)
    return Scores(points, _evidence(given.evidence, size))


def reason(given: Reason) -> Told:
    """The reason in words."""
    return Told(text(given.text()), bool(given.is_failure), text(given.remedy()))


def text(given: Any) -> str:
    """Words that can be written, and not too many of them."""
    _of_type(given, str, "words")
    cut = given if len(given) <= _LONGEST else f"{given[: _LONGEST - 1]}…"
    return str(cut).encode("utf-8", "replace").decode()


def numbers(given: Any, size: int, what: str, kinds: str = "iuf") -> NDArray[Any]:
    """An array of one number for each candidate; `kinds` are numpy's letters for what numbers."""
    _of_type(given, np.ndarray, what)
    if given.shape != (size,):
        raise Failed("shape", f"{what} of shape {given.shape} for {size} candidates")
    if given.dtype.kind not in kinds:
        wanted = "numbers" if "f" in kinds else "whole numbers"
        raise Failed("shape", f"{what} of type {given.dtype}; wanted {wanted}")
    return np.array(given, np.float64 if "f" in kinds else np.int64)


def hashable(given: Any) -> Hashable:
    """What can be compared with what other pods gave."""
    hash(given)
    return given  # type: ignore[no-any-return]


def plain(given: Any) -> Mapping[str, Any]:
    """What JSON can hold."""
    simple = as_json(given)
    found: Mapping[str, Any] = msgspec.json.decode(msgspec.json.encode(simple), type=dict[str, Any])
    return found


def memory(given: Any) -> bytes | None:
    """What is to be kept."""
    if given is not None:
        _of_type(given, bytes, "a memory")
        if len(given) > _LARGEST_MEMORY:
            raise Failed("shape", f"{len(given)} bytes to keep; wanted at most {_LARGEST_MEMORY}")
        try:
            msgspec.json.decode(given)
        except UNREADABLE as error:
            # it stands beside the memories of others
            raise Failed("shape", f"a memory that is no JSON: {error}") from error
    return given  # type: ignore[no-any-return]


def wants(given: Any) -> frozenset[Want]:
    """The metrics to be fetched."""
    _of_type(given, frozenset, "wants")
    return frozenset(map(_want, given))


def _want(given: Any) -> Want:
    _of_type(given, Want, "a want")
    if not given.metric or not float(given.max_age_s) >= 0:
        raise Failed("shape", f"{_shown(given)}; wanted a metric's name, and a max age from 0")
    if given.aggregate not in ("", *AGGREGATIONS):
        raise Failed(
            "shape", f"aggregate {_shown(given.aggregate)}; wanted one of {', '.join(AGGREGATIONS)}, or none"
        )
    return Want(
        text(given.metric),
        text(given.query),
        float(given.max_age_s),
        given.aggregate,
        bool(given.empty_is_healthy),
    )


def problems(given: Any) -> Mapping[str, tuple[str, ...]]:
    """What is wrong with objects."""
    return {text(name): tuple(map(text, found)) for name, found in given.items()}


def watched(given: Any, agent: str) -> tuple[Watched, ...]:
    """The objects that the agent reads."""
    found = tuple(given)
    for one in found:
        _of_type(one, Watched, "watched")
        if not one.name.startswith(agent):
            raise Failed("shape", f"watched objects named {one.name!r}; wanted {agent!r} before their name")
        if one.keep is not None:
            raise Failed("shape", "`keep` of watched objects, which is for nodewise's own agents")
    return found


def resources(given: Any) -> Mapping[str, bool]:
    """The names of resources, and which of them no node need have."""
    _of_type(given, dict, "resources")
    return {text(name): bool(is_mark) for name, is_mark in given.items()}


def state(given: Any) -> Any:
    """An `StateBuilder`."""
    _has(given, "state", {"inputs": Inputs}, ("wants", "problems", "build"))
    _of_type(given.inputs.objects, frozenset, "inputs.objects")
    for name in given.inputs.objects:
        _of_type(name, str, "a name in inputs.objects")
    return given


def agent(given: Any, name: str) -> Any:
    """An `Agent` of that name."""
    _has(given, "agent", {"name": str}, ("equivalence_key", "filter", "score", "preempt"))
    if given.name != name:
        raise Failed("shape", f"an agent named {given.name!r}; wanted {name!r}")
    for attribute in ("predicates", "priorities"):
        for one, ask in getattr(given, attribute, {}).items():
            if not (isinstance(one, str) and one.startswith(name) and callable(ask)):
                wanted = f"functions by names that begin with {name!r}"
                raise Failed("shape", f"{attribute}: {_shown(one)}; wanted {wanted}")
    return given


def kind(given: Any, name: str, others: Sequence[AgentKind]) -> Any:
    """An `AgentKind` of that name, which gets on with the others."""
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        wanted = f"small letters and digits with dashes between, at most {LONGEST_NAME}"
        raise Failed("shape", f"the name {_shown(name)}; wanted {wanted}")
    structs = dict.fromkeys(("options", "pod_fields", "node_fields"), type)
    _has(given, "KIND", {"name": str, "summary": str, **structs}, ("watched", "state", "agent"))
    if given.name != name:
        raise Failed("shape", f"KIND is named {given.name!r}; wanted {name!r}, as its entry point")
    for field in structs:
        if not issubclass(getattr(given, field), msgspec.Struct):
            raise Failed("shape", f"KIND.{field} is no msgspec.Struct")
    _own_options(given, name, others)
    watched(given.watched(given.options()), name)
    for what, fields in (("Pod", "pod_fields"), ("Node", "node_fields")):
        try:
            merged = merge(what, *(getattr(one, fields) for one in others), getattr(given, fields))
            samples.check(what, merged)
        except (TypeError, *UNREADABLE) as error:
            raise Failed("shape", f"KIND.{fields}: {error}") from error
    return given


def _own_options(given: Any, name: str, others: Sequence[AgentKind]) -> None:
    """Its settings are flags beside those of everybody else."""
    msgspec.convert({}, given.options)
    taken = {one for other in others for one in _settings(other)}
    prefix = name.replace("-", "_") + "_"
    for field in _settings(given):
        if field in taken:
            continue
        if not field[0].startswith(prefix):
            raise Failed("shape", f"the option {field[0]!r}; wanted {prefix!r} before its name")
        if any(field[0] == other[0] for other in taken):
            raise Failed("shape", f"another agent has the option {field[0]!r}, with another type or default")


def _settings(given: AgentKind) -> list[tuple[str, str, str]]:
    """The name, type and default of each."""
    return [(one.name, repr(one.type), repr(one.default)) for one in msgspec.structs.fields(given.options)]


def _has(given: Any, what: str, attributes: Mapping[str, type], methods: Sequence[str]) -> None:
    for attribute, wanted in attributes.items():
        if not isinstance(getattr(given, attribute, None), wanted):
            raise Failed("shape", f"{what}.{attribute} is missing, or no {wanted.__name__}")
    for method in methods:
        if not callable(getattr(given, method, None)):
            raise Failed("shape", f"{what}.{method} is missing, or no function")


def _whole(given: Any, size: int, what: str, dtype: DTypeLike, most: int) -> NDArray[Any]:
    """An array of one whole number from 0 to `most` for each candidate."""
    array = numbers(given, size, what, "iu")
    if size and not (array.min() >= 0 and array.max() <= most):
        seen = f"from {array.min()} to {array.max()}"
        raise Failed("shape", f"{what} {seen}; wanted from 0 to {most}")
    return array.astype(dtype)


def _evidence(given: Any, size: int) -> tuple[Evidence, ...]:
    return tuple(_rule(one, size) for one in _bounded(given, "evidence"))


def _rule(given: Any, size: int) -> Evidence:
    _of_type(given, Evidence, "evidence")
    if given.operator not in COMPARISONS:
        raise Failed("shape", f"operator {_shown(given.operator)}; wanted one of {', '.join(COMPARISONS)}")
    if given.target is not None:
        _of_type(given.target, int, "a target")
    return Evidence(
        text(given.metric),
        given.operator,
        given.target,
        numbers(given.values, size, "values", "iu"),
        _whole(given.states, size, "states", np.uint8, max(ValueState)),
        numbers(given.ages_s, size, "ages"),
        bool(given.rejects_missing),
    )


def _bounded(given: Any, what: str) -> Iterable[Any]:
    _of_type(given, tuple, what)
    if len(given) > _MOST_REASONS:
        raise Failed("shape", f"{len(given)} {what}; wanted at most {_MOST_REASONS}")
    return given  # type: ignore[no-any-return]


def _of_type(given: Any, wanted: type, what: str) -> None:
    if not isinstance(given, wanted):
        raise Failed("shape", f"{what} of type {type(given).__name__}; wanted {wanted.__name__}")


def _shown(given: Any) -> str:
    return repr(given)[:40]
