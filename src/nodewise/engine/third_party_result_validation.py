"""Validation of what a third-party agent returns: each function returns a copy of its own type, or `InvalidResult`.

The fields that an agent declares are tested on sample Pods and Nodes before the agent is used: a wrong type of one
field would make all requests undecodable, for all agents. The texts of reasons are read here as well, once, so that no
third-party code runs while a response is written.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, Final, get_args

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from nodewise.agent import (
    COMPARISONS,
    MAX_SCORE,
    AgentKind,
    Evidence,
    FilterPlugin,
    Inputs,
    LoadScoring,
    MemoryScope,
    MetricRequest,
    Plugin,
    PolicyRejections,
    ScorePlugin,
    Scores,
    StateBuilder,
    ValueState,
    Verdict,
    Watched,
)
from nodewise.base.errors import UNREADABLE
from nodewise.engine.decision_json import StaticReason, to_json_values
from nodewise.kube.object_files import split_documents
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics.metrics_source import AGGREGATIONS

_MINIMAL: Final = {"metadata": {"name": "one"}}
_NULLS: Final = {"metadata": {"name": "one", "labels": None, "annotations": None}}


@lru_cache
def _sample_objects(kind: str) -> tuple[bytes, ...]:
    """A Pod or a Node with all usual fields, and two with few, as JSON."""
    text = resources.files(__package__).joinpath("sample_objects.yaml").read_bytes()
    complete = [data for _, data in split_documents(text, "sample_objects.yaml")]
    return complete[("Pod", "Node").index(kind)], msgspec.json.encode(_MINIMAL), msgspec.json.encode(_NULLS)


NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MAX_NAME_LENGTH: Final = 40
"""Of an agent's name: it is part of paths, flags, variables and log lines."""
_MAX_REASONS: Final = 256
_MAX_TEXT_LENGTH: Final = 500
_MAX_MEMORY_BYTES: Final = 512 * 1024


class InvalidResult(Exception):
    """A third-party agent violated the contract."""


def validate_verdict(result: Any, size: int) -> Verdict | None:
    """A verdict about `size` candidates, without its details."""
    if result is None:
        return None
    _expect_type(result, Verdict, "a result")
    reasons = tuple(
        StaticReason.of(validate_text(reason.text()), validate_text(reason.remedy()), reason)
        for reason in _limit_count(result.reasons, "reasons")
    )
    codes = _validate_whole_numbers(result.codes, size, "codes", np.int16, len(reasons))
    _check_joined(result.joined)
    policies = tuple(_validate_policy(policy, size) for policy in _limit_count(result.policies, "policies"))
    if policies and not np.array_equal(
        np.logical_or.reduce([policy.rejected for policy in policies]), codes != 0
    ):
        raise InvalidResult("the policies do not reject the same candidates as the codes")
    evidence = _validate_evidence(result.evidence, size)
    return Verdict(codes, reasons, evidence, result.joined, policies=policies)


def _check_joined(joined: Any) -> None:
    if joined not in {None, "any", "all"}:
        raise InvalidResult(f"joined is {_short_repr(joined)}, expected any, all or None")


def _validate_policy(policy: Any, size: int) -> PolicyRejections:
    _expect_type(policy, PolicyRejections, "a policy")
    rejected = _validate_mask(policy.rejected, size, "rejected")
    would_reject = policy.would_reject
    if would_reject is not None:
        would_reject = _validate_mask(would_reject, size, "would_reject")
    _check_joined(policy.joined)
    return PolicyRejections(
        validate_text(policy.policy),
        rejected,
        policy.joined,
        validate_text(policy.not_enforced),
        would_reject,
    )


def _validate_mask(mask: Any, size: int, name: str) -> NDArray[np.bool_]:
    _expect_type(mask, np.ndarray, name)
    if mask.shape != (size,) or mask.dtype != bool:
        array = f"type {mask.dtype} and shape {mask.shape}"
        raise InvalidResult(f"{name} of {array}, expected a bool for each of {size} candidates")
    copy: NDArray[np.bool_] = mask.copy()
    return copy


def validate_scores(result: Any, size: int) -> Scores | None:
    """The scores of `size` candidates, without their details."""
    if result is None:
        return None
    _expect_type(result, Scores, "a result")
    points = _validate_whole_numbers(result.points, size, "scores", np.int64, MAX_SCORE)
    return Scores(points, _validate_evidence(result.evidence, size))


def validate_text(value: Any) -> str:
    """A text that can be encoded, cut to 500 characters."""
    _expect_type(value, str, "a text")
    cut = value if len(value) <= _MAX_TEXT_LENGTH else f"{value[: _MAX_TEXT_LENGTH - 1]}…"
    return str(cut).encode("utf-8", "replace").decode()


def validate_numbers(array: Any, size: int, what: str, kinds: str = "iuf") -> NDArray[Any]:
    """An array of one number for each candidate. `kinds` are numpy's letters for kinds of numbers."""
    _expect_type(array, np.ndarray, what)
    if array.shape != (size,):
        raise InvalidResult(f"{what} of shape {array.shape} for {size} candidates")
    if array.dtype.kind not in kinds:
        expected = "numbers" if "f" in kinds else "whole numbers"
        raise InvalidResult(f"{what} of type {array.dtype}, expected {expected}")
    return np.array(array, np.float64 if "f" in kinds else np.int64)


def validate_json_object(value: Any) -> Mapping[str, Any]:
    """A mapping of values that JSON can hold."""
    decoded: Mapping[str, Any] = msgspec.json.decode(
        msgspec.json.encode(to_json_values(value)), type=dict[str, Any]
    )
    return decoded


def validate_memory(result: Any) -> bytes | None:
    """JSON to be stored, next to that of other agents."""
    if result is None:
        return None
    _expect_type(result, bytes, "a memory")
    if len(result) > _MAX_MEMORY_BYTES:
        raise InvalidResult(f"a memory of {len(result)} bytes, expected at most {_MAX_MEMORY_BYTES}")
    try:
        msgspec.json.decode(result)
    except UNREADABLE as error:
        raise InvalidResult(f"a memory that is not JSON: {error}") from error
    return bytes(result)


def validate_metric_requests(result: Any) -> frozenset[MetricRequest]:
    """The metrics to be fetched."""
    _expect_type(result, frozenset, "metric requests")
    return frozenset(map(_validate_metric_request, result))


def _validate_metric_request(metric_request: Any) -> MetricRequest:
    _expect_type(metric_request, MetricRequest, "a metric request")
    if not metric_request.metric or not float(metric_request.max_age_s) >= 0:
        raise InvalidResult(f"{_short_repr(metric_request)}, expected a metric's name and a max age from 0")
    if metric_request.aggregate not in ("", *AGGREGATIONS):
        expected = ", ".join(AGGREGATIONS)
        raise InvalidResult(
            f"aggregate {_short_repr(metric_request.aggregate)}, expected one of {expected}, or none"
        )
    return MetricRequest(
        validate_text(metric_request.metric),
        validate_text(metric_request.query),
        float(metric_request.max_age_s),
        metric_request.aggregate,
        bool(metric_request.empty_is_healthy),
        frozenset(map(validate_text, metric_request.namespaces)),
    )


def validate_problems(result: Any) -> Mapping[str, tuple[str, ...]]:
    """The problems of objects, by the object's name."""
    return {validate_text(name): tuple(map(validate_text, texts)) for name, texts in result.items()}


def validate_watched(result: Any, agent: str) -> tuple[Watched, ...]:
    """The objects that the agent reads. Their names begin with the agent's, and `keep` is not set."""
    resources_watched = tuple(result)
    for entry in resources_watched:
        _expect_type(entry, Watched, "watched")
        if not entry.name.startswith(agent):
            raise InvalidResult(
                f"watched objects named {entry.name!r}, expected a name that begins with {agent!r}"
            )
        if entry.keep is not None:
            raise InvalidResult("`keep` of watched objects, which is for nodewise's own agents")
    return resources_watched


def validate_resources(result: Any) -> Mapping[str, bool]:
    """The names of resources, and whether no node needs to have each of them."""
    _expect_type(result, dict, "resources")
    return {validate_text(name): bool(is_mark) for name, is_mark in result.items()}


def validate_state(result: Any) -> StateBuilder[Any]:
    if not isinstance(result, StateBuilder):
        raise InvalidResult(f"a state of type {type(result).__name__}, expected a StateBuilder")
    _expect_members(result, "state", {"inputs": Inputs})
    if result.memory_scope not in get_args(MemoryScope):
        raise InvalidResult(f"memory_scope {_short_repr(result.memory_scope)}")
    _expect_type(result.inputs.objects, frozenset, "inputs.objects")
    for name in result.inputs.objects:
        _expect_type(name, str, "a name in inputs.objects")
    return result


def validate_agent(result: Any, name: str) -> Plugin[Any, Any]:
    """A plugin of that name."""
    if not isinstance(result, FilterPlugin | ScorePlugin):
        raise InvalidResult(
            f"an agent of type {type(result).__name__}, expected a FilterPlugin or ScorePlugin"
        )
    _expect_members(result, "agent", {"name": str})
    if result.name != name:
        raise InvalidResult(f"an agent named {result.name!r}, expected {name!r}")
    for attribute in ("predicates", "priorities"):
        for key, function in getattr(result, attribute, {}).items():
            if not (isinstance(key, str) and key.startswith(name) and callable(function)):
                expected = f"functions by names that begin with {name!r}"
                raise InvalidResult(f"{attribute}: {_short_repr(key)}, expected {expected}")
    return result


def validate_kind(  # complexity: each part of the declaration has its own message
    result: Any, name: str, others: Sequence[AgentKind]
) -> AgentKind:
    """An `AgentKind` of that name whose options and fields do not conflict with those of the others."""
    if not NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        expected = f"small letters and digits with dashes between, at most {MAX_NAME_LENGTH}"
        raise InvalidResult(f"the name {_short_repr(name)}, expected {expected}")
    if not isinstance(result, AgentKind):
        raise InvalidResult(f"KIND of type {type(result).__name__}, expected an AgentKind")
    structs = dict.fromkeys(("options", "pod_fields", "node_fields"), type)
    _expect_members(result, "KIND", {"name": str, "summary": str, **structs})
    if result.load_scoring not in get_args(LoadScoring):
        expected = ", ".join(get_args(LoadScoring))
        raise InvalidResult(
            f"KIND.load_scoring {_short_repr(result.load_scoring)}, expected one of {expected}"
        )
    weight = result.entry_weight
    if weight is not None and not (type(weight) is int and weight > 0):
        raise InvalidResult(f"KIND.entry_weight {_short_repr(weight)}, expected a positive number or None")
    if result.name != name:
        raise InvalidResult(f"KIND is named {result.name!r}, expected {name!r} as its entry point")
    for field in structs:
        if not issubclass(getattr(result, field), msgspec.Struct):
            raise InvalidResult(f"KIND.{field} is no msgspec.Struct")
    _check_options(result, name, others)
    validate_watched(result.watched(result.options()), name)
    for object_kind, field in (("Pod", "pod_fields"), ("Node", "node_fields")):
        try:
            merged = merge(object_kind, *(getattr(other, field) for other in others), getattr(result, field))
            # the error names a field of a wrong type
            for sample in _sample_objects(object_kind):
                msgspec.json.decode(sample, type=merged)
        except (TypeError, *UNREADABLE) as error:
            raise InvalidResult(f"KIND.{field}: {error}") from error
    return result


def _check_options(kind: Any, name: str, others: Sequence[AgentKind]) -> None:
    """The options become flags next to those of all others: their names begin with the agent's."""
    msgspec.convert({}, kind.options)
    taken = {option for other in others for option in _option_signatures(other)}
    names_taken = {option[0] for option in taken}
    prefix = name.replace("-", "_") + "_"
    for option in _option_signatures(kind):
        if option in taken:
            continue
        if not option[0].startswith(prefix):
            raise InvalidResult(f"the option {option[0]!r}, expected a name that begins with {prefix!r}")
        if option[0] in names_taken:
            raise InvalidResult(f"another agent has the option {option[0]!r}, with another type or default")


def _option_signatures(kind: AgentKind) -> list[tuple[str, str, str]]:
    """The name, type and default of each option."""
    return [
        (field.name, repr(field.type), repr(field.default)) for field in msgspec.structs.fields(kind.options)
    ]


def _expect_members(value: Any, what: str, attributes: Mapping[str, type]) -> None:
    for attribute, expected in attributes.items():
        if not isinstance(getattr(value, attribute, None), expected):
            raise InvalidResult(f"{what}.{attribute} is missing, or no {expected.__name__}")


def _validate_whole_numbers(array: Any, size: int, what: str, dtype: DTypeLike, most: int) -> NDArray[Any]:
    """An array of one whole number from 0 to `most` for each candidate."""
    values = validate_numbers(array, size, what, "iu")
    if size and not (values.min() >= 0 and values.max() <= most):
        raise InvalidResult(f"{what} from {values.min()} to {values.max()}, expected from 0 to {most}")
    return values.astype(dtype)


def _validate_evidence(result: Any, size: int) -> tuple[Evidence, ...]:
    return tuple(_validate_rule_evidence(rule, size) for rule in _limit_count(result, "evidence"))


def _validate_rule_evidence(rule: Any, size: int) -> Evidence:
    _expect_type(rule, Evidence, "evidence")
    if rule.operator not in COMPARISONS:
        raise InvalidResult(
            f"operator {_short_repr(rule.operator)}, expected one of {', '.join(COMPARISONS)}"
        )
    if rule.target is not None:
        _expect_type(rule.target, int, "a target")
    _expect_type(rule.group, int, "a group")
    if rule.group < -1 or not 0 <= float(rule.weight) < math.inf:
        raise InvalidResult(
            f"group {rule.group} and weight {rule.weight}, expected a group from -1 and a weight from 0"
        )
    return Evidence(
        validate_text(rule.metric),
        rule.operator,
        rule.target,
        validate_numbers(rule.values, size, "values", "iu"),
        _validate_whole_numbers(rule.states, size, "states", np.uint8, max(ValueState)),
        validate_numbers(rule.ages_s, size, "ages"),
        bool(rule.rejects_missing),
        validate_text(rule.policy),
        rule.group,
        float(rule.weight),
    )


def _limit_count(values: Any, what: str) -> tuple[Any, ...]:
    _expect_type(values, tuple, what)
    if len(values) > _MAX_REASONS:
        raise InvalidResult(f"{len(values)} {what}, expected at most {_MAX_REASONS}")
    return tuple(values)


def _expect_type(value: Any, expected: type, what: str) -> None:
    if not isinstance(value, expected):
        raise InvalidResult(f"{what} of type {type(value).__name__}, expected {expected.__name__}")


def _short_repr(value: Any) -> str:
    return repr(value)[:40]
