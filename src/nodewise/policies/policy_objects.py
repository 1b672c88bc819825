"""Policies of all kinds as the API server returns them, and the collection of their problems. No I/O."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from nodewise.base.errors import UNREADABLE, Problem, did_you_mean, shown
from nodewise.kube.resource_kinds import Resource
from nodewise.policies.placement_policy import Policy, PolicyKind

T = TypeVar("T", bound=msgspec.Struct)

RESOURCES: Final[Mapping[PolicyKind, Resource]] = {
    "TASPolicy": Resource("telemetry.intel.com", "v1alpha1", "taspolicies", "TASPolicy", namespaced=True),
    "PlacementPolicy": Resource(
        "nodewise.io", "v1alpha1", "placementpolicies", "PlacementPolicy", namespaced=True
    ),
    "ClusterPlacementPolicy": Resource(
        "nodewise.io", "v1alpha1", "clusterplacementpolicies", "ClusterPlacementPolicy", namespaced=False
    ),
}
MAX_SPEC_BYTES: Final = 2**16
"""JSON of a spec: a hundred rules with labels have about 30,000 bytes. The API server accepts 1.5 MiB, and a namespace
can have thousands of policies."""
MAX_POLICY_LABELS: Final = 16
"""Different node labels of one policy, and labels of one rule."""
MAX_METRIC_NAME: Final = 253
METRIC_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
"""No character that has a meaning in PromQL or in the path of a URL."""
_MAX_PROBLEMS: Final = 30
"""Problems of one policy that are listed; further ones are only counted."""
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_./-]{1,317}")
_LABEL_PART: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


class PolicyMetadata(msgspec.Struct, frozen=True):
    """The metadata of a policy that is read."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    creationTimestamp: str | None = None  # noqa: N815 - the API's name


class PolicyObject(msgspec.Struct, frozen=True):
    """A policy as the API server returns it. Spec and status are decoded later: an invalid one affects no other."""

    metadata: PolicyMetadata = PolicyMetadata()
    spec: msgspec.Raw = msgspec.Raw(b"null")
    status: msgspec.Raw = msgspec.Raw(b"null")
    oversized_bytes: int = 0
    """The size of a spec that is too large to be stored, and so is null here; otherwise 0."""


def drop_oversized_spec(policy: PolicyObject) -> PolicyObject:
    """The policy as it is stored: without its spec if that is too large."""
    size = len(bytes(policy.spec))
    if size <= MAX_SPEC_BYTES:
        return policy
    return msgspec.structs.replace(policy, spec=msgspec.Raw(b"null"), oversized_bytes=size)


def decode_status(policy: PolicyObject, status_type: type[T]) -> T:
    """The fields of the status that a type has; their defaults if there is no status, or it cannot be read."""
    try:
        status: T | None = msgspec.json.decode(policy.status, type=status_type | None)
    except UNREADABLE:
        status = None
    return status or status_type()


class StepBack(msgspec.Struct, frozen=True, rename="camel"):
    """In the status of a policy: it exceeded a limit of its guard, and only observes."""

    generation: int = 0
    """Of the policy that exceeded it. An edit of the spec ends the step-back."""
    time: str = ""
    """RFC 3339."""
    message: str = ""
    """The limit and the measured value."""


class _GuardStatus(msgspec.Struct, frozen=True, rename="camel"):
    stepped_back: StepBack | None = None


def step_back_in_effect(policy: PolicyObject) -> StepBack | None:
    """The step-back of this generation of the policy; None if there is none.

    It follows from the object alone, so that all replicas agree, also after a restart.
    """
    if b'"steppedBack"' not in bytes(policy.status):
        return None
    step_back = decode_status(policy, _GuardStatus).stepped_back
    return step_back if step_back and step_back.generation == policy.metadata.generation else None


class ProblemCollector:
    """Collects the problems of one policy while it is parsed."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add_problem(self, field: str, seen: str, wanted: str) -> str:
        """Add a problem, and return it as a text."""
        self.problems.append(Problem(field, seen, wanted))
        return str(self.problems[-1])

    def with_problems(self, policy: Policy, labels_field: str) -> Policy:
        """The policy with the first `MAX_POLICY_LABELS` different labels of nodes, the first `_MAX_PROBLEMS` problems
        and the number of the others.
        """
        keys = dict.fromkeys(key for rule in policy.node_labels for part in rule.labels for key, _ in part)
        if len(keys) > MAX_POLICY_LABELS:
            expected = f"at most {MAX_POLICY_LABELS} per policy; the others are left out"
            self.add_problem(labels_field, f"{len(keys)} different node labels", expected)
            kept = frozenset([*keys][:MAX_POLICY_LABELS])
            policy = policy.with_label_keys(lambda key: key in kept)
        more = len(self.problems) - _MAX_PROBLEMS
        rest = (Problem("spec", f"{more} more problems", ""),) if more > 0 else ()
        return msgspec.structs.replace(policy, problems=(*self.problems[:_MAX_PROBLEMS], *rest))

    def decode_spec(self, policy: PolicyObject) -> Any:
        """The spec; None, with a problem, if it is too large or cannot be read."""
        size = policy.oversized_bytes or len(bytes(policy.spec))
        if size > MAX_SPEC_BYTES:
            self.add_problem("spec", f"{size} bytes", f"at most {MAX_SPEC_BYTES}")
            return None
        try:
            return msgspec.json.decode(policy.spec)
        except UNREADABLE as error:
            self.add_problem("spec", str(error), "a JSON object")
            return None

    def parse_mapping(self, path: str, value: Any) -> Mapping[str, Any]:
        """The value if it is an object; otherwise an empty one, with a problem."""
        if isinstance(value, Mapping):
            return value
        self.add_problem(path, shown(value), "an object")
        return {}

    def parse_value(self, path: str, name: str, value: Any, parse: Callable[[Any], Any]) -> Any:
        """The value of a field; None, with a problem, if it is invalid. `parse` raises a ValueError whose text is the
        expected value.
        """
        try:
            return parse(value)
        except ValueError as error:
            # problems are shown in events of pods, which must not reveal the query
            text = f"{len(str(value))} characters" if name == "query" else shown(value)
            self.add_problem(f"{path}.{name}", text, str(error))
            return None

    def report_unknown_keys(
        self,
        path: str,
        value: Mapping[str, Any],
        valid: Sequence[str],
        what: str = "an unknown field",
        notes: Mapping[str, str] = {},
    ) -> str:
        """Add a problem for each key that is not valid. Returns the first message; empty if there is none.

        `notes` are the ends of the messages about some keys, in place of the closest valid key.
        """
        first = ""
        for name in sorted(value.keys() - set(valid)):
            # suggestions cost time, and only the first problems are shown
            hint = notes.get(name) or (
                did_you_mean(name, valid) if len(self.problems) < _MAX_PROBLEMS else ""
            )
            text = self.add_problem(f"{path}.{shown_key(name)}", what, ", ".join(valid) + hint)
            first = first or text
        return first


def shown_key(key: str) -> str:
    """A key of an object as a part of a path: as it is, or as a repr if it has unusual characters."""
    return key if _PLAIN_KEY.fullmatch(key) else shown(key)


def is_valid_label_part(text: str) -> bool:
    """Whether a text can be a label's name or value (apimachinery v0.36 `pkg/util/validation`)."""
    return _LABEL_PART.fullmatch(text) is not None
