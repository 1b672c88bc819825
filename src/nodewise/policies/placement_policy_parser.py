"""Parses a PlacementPolicy or a ClusterPlacementPolicy (`deploy/crds`).

The parser accepts what the API server accepts. A policy that was stored without these checks and has a problem fails
closed: it rejects every node for the pods that it selects. A selector that cannot be understood selects all pods, or
all namespaces. Valid rules of `nodeLabels` apply also beside problems, so that no node loses a label by an edit
elsewhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from nodewise.base.errors import shown
from nodewise.policies import placement_policy_fields as fields
from nodewise.policies import rule_operators
from nodewise.policies.hysteresis import HoldTimes
from nodewise.policies.placement_policy import (
    AvoidRule,
    Canary,
    Comparison,
    Guard,
    LabelRule,
    LabelSelector,
    PodSelection,
    Policy,
    PolicyKey,
    Preference,
    Requirement,
    unusable_rule,
)
from nodewise.policies.policy_objects import (
    MAX_POLICY_LABELS,
    PolicyObject,
    ProblemCollector,
    shown_key,
    step_back_in_effect,
)
from nodewise.policies.rule_operators import OPERATOR_FIELDS, RANGE_OPERATORS

_ONLY_CLUSTER: Final = "; only ClusterPlacementPolicy has it"
_ONE_OPERATOR: Final = f"exactly one of {', '.join(OPERATOR_FIELDS)}"
_POD_LABEL: Final = "a key such as app or example.com/app and a value, both valid for a label"
_NODE_LABEL: Final = (
    "a key whose domain ends in .nodewise.io, such as gpu.nodewise.io/suspect, and a value of a label"
)
_SECTIONS: Final = ("avoid", "prefer", "nodeLabels")
_CLUSTER_SELECTORS: Final = {
    "namespaceSelector": "a label selector together with avoid or prefer; {} selects all namespaces",
    "podSelector": "a label selector together with avoid or prefer; {} selects all pods",
}


def parse_policy(policy: PolicyObject, kind: Literal["PlacementPolicy", "ClusterPlacementPolicy"]) -> Policy:
    """Parse a policy object. This never fails: problems are part of the result."""
    parser = _PolicyParser(is_cluster=kind == "ClusterPlacementPolicy")
    metadata = policy.metadata
    key = PolicyKey(kind, metadata.namespace, metadata.name)
    is_stepped_back = step_back_in_effect(policy) is not None
    parsed = Policy(key, metadata.creationTimestamp or "", stepped_back=is_stepped_back, uid=metadata.uid)
    return parser.parse(parsed, parser.decode_spec(policy))


class _PolicyParser(ProblemCollector):
    """Parses one policy and collects its problems."""

    def __init__(self, *, is_cluster: bool) -> None:
        super().__init__()
        self._is_cluster = is_cluster

    def parse(self, policy: Policy, value: Any) -> Policy:
        """The policy with what its spec contains."""
        spec = self._parse_object("spec", value, fields.SPEC_FIELDS) if not self.problems else {}
        # an unreadable spec, or an unknown field, may be one that rejects nodes
        affects_pods = bool(self.problems) or "avoid" in spec or "prefer" in spec
        if not self.problems:
            self._check_presence(spec)
        selection = PodSelection(
            self._parse_selector("spec.podSelector", spec.get("podSelector")),
            self._parse_selector("spec.namespaceSelector", spec.get("namespaceSelector")),
        )
        avoid = tuple(self._parse_avoid(spec))
        values = self._parse_values("spec", spec, fields.SPEC_PARSERS)
        canary = self._parse_canary(spec)
        guard = self._parse_guard(spec)
        prefer = tuple(self._parse_preferences(spec))
        node_labels = tuple(self._parse_node_labels(spec))
        if self.problems and affects_pods:
            avoid, prefer = (unusable_rule(str(self.problems[0])),), ()
        has_selectors = "podSelector" in spec and "namespaceSelector" in spec
        parsed = msgspec.structs.replace(
            policy,
            selection=selection if affects_pods or has_selectors else None,
            mode=values.get("mode", "Enforce"),
            canary=canary,
            guard=guard,
            avoid=avoid,
            enforcement=values.get("enforcement", "Required"),
            prefer=prefer,
            node_labels=node_labels,
            sections=tuple(name for name in _SECTIONS if name in spec),
        )
        limited = self._limit_labels(parsed)
        return msgspec.structs.replace(limited, problems=self.limited_problems())

    def _check_presence(self, spec: Mapping[str, Any]) -> None:
        """Check which fields of the spec are present."""
        sections = _SECTIONS if self._is_cluster else _SECTIONS[:2]
        if not any(name in spec for name in sections):
            self.add_problem("spec", "no rules", f"at least one of {', '.join(sections)}")
        required: Mapping[str, str] = {
            "podSelector": "a label selector; {} selects all pods of the namespace"
        }
        if self._is_cluster:
            needs_selectors = "avoid" in spec or "prefer" in spec
            required = _CLUSTER_SELECTORS if needs_selectors else {}
        for name in required.keys() - spec.keys():
            self.add_problem(f"spec.{name}", "none", required[name])
        self._check_fields_of_rules(spec)

    def _check_fields_of_rules(self, spec: Mapping[str, Any]) -> None:
        """Check that fields about rules come with such rules."""
        if "enforcement" in spec and "avoid" not in spec:
            self.add_problem(
                "spec.enforcement", "enforcement without avoid", "enforcement only together with avoid"
            )
        if "mode" in spec and "avoid" not in spec and "prefer" not in spec:
            self.add_problem(
                "spec.mode", "mode with node labels only", "mode only together with avoid or prefer"
            )
        if "guard" in spec and "avoid" not in spec:
            self.add_problem("spec.guard", "guard without avoid", "guard only together with avoid")
        if spec.get("mode") == "Canary" and "canary" not in spec:
            self.add_problem("spec.canary", "none", "podSelector or percent, with the mode Canary")

    def _parse_object(self, path: str, value: Any, valid: Sequence[str]) -> dict[str, Any]:
        """The fields of an object. Unknown ones are problems. The API server drops known fields that are null."""
        mapping = self.parse_mapping(path, value)
        allowed = [name for name in valid if self._is_cluster or name not in fields.CLUSTER_FIELDS]
        notes = {} if self._is_cluster else dict.fromkeys(fields.CLUSTER_FIELDS, _ONLY_CLUSTER)
        self.report_unknown_keys(path, mapping, allowed, notes=notes)
        return {name: mapping[name] for name in allowed if mapping.get(name) is not None}

    def _parse_list(self, path: str, value: Any, most: int) -> list[Any]:
        """The entries of a list of rules; an empty one, with a problem, if it has none or too many."""
        if isinstance(value, list) and 1 <= len(value) <= most:
            return value
        text = f"{len(value)} entries" if isinstance(value, list) else shown(value)
        self.add_problem(path, text, f"a list of 1 to {most} entries")
        return []

    def _parse_map(self, path: str, value: Any, most: int) -> dict[str, Any]:
        """The labels of an object. The API server drops those that are null."""
        mapping = {key: text for key, text in self.parse_mapping(path, value).items() if text is not None}
        if len(mapping) <= most:
            return mapping
        self.add_problem(path, f"{len(mapping)} labels", f"at most {most}")
        return {}

    def _parse_values(
        self, path: str, values: Mapping[str, Any], parsers: Mapping[str, Callable[[Any], Any]]
    ) -> dict[str, Any]:
        """The fields that have a parser and a valid value."""
        parsed = {}
        for name, value in values.items():
            if name not in parsers:
                continue
            try:
                parsed[name] = parsers[name](value)
            except ValueError as error:
                # problems are shown in events of pods, which must not reveal the query
                text = f"{len(str(value))} characters" if name == "query" else shown(value)
                self.add_problem(f"{path}.{name}", text, str(error))
        return parsed

    # Selectors

    def _parse_selector(self, path: str, value: Any) -> LabelSelector:
        """The selector; one that selects everything if it is absent or has a problem."""
        if value is None:
            return LabelSelector()
        before = len(self.problems)
        selector = self._parse_object(path, value, fields.SELECTOR_FIELDS)
        requirements = [
            *self._parse_match_labels(f"{path}.matchLabels", selector.get("matchLabels", {})),
            *self._parse_match_expressions(f"{path}.matchExpressions", selector.get("matchExpressions", [])),
        ]
        return LabelSelector(tuple(requirements) if len(self.problems) == before else ())

    def _parse_match_labels(self, path: str, value: Any) -> Iterator[Requirement]:
        for key, text in self._parse_map(path, value, fields.MAX_SELECTOR_ENTRIES).items():
            if isinstance(text, str) and fields.is_valid_pod_label(key, text):
                yield Requirement(key, "In", frozenset([text]))
            else:
                self.add_problem(f"{path}.{shown_key(key)}", shown(text), _POD_LABEL)

    def _parse_match_expressions(self, path: str, value: Any) -> Iterator[Requirement]:
        entries = self._parse_list(path, value, fields.MAX_SELECTOR_ENTRIES) if value != [] else []
        for number, entry in enumerate(entries):
            at = f"{path}[{number}]"
            before = len(self.problems)
            written = self._parse_object(at, entry, fields.REQUIREMENT_FIELDS)
            for name in ("key", "operator"):
                if name not in written:
                    self.add_problem(f"{at}.{name}", "none", "a value, which is required")
            parsed = self._parse_values(at, written, fields.REQUIREMENT_PARSERS)
            if len(self.problems) > before:
                continue
            values = parsed.get("values", frozenset())
            needs_values = parsed["operator"] in ("In", "NotIn")
            if needs_values == bool(values):
                yield Requirement(parsed["key"], parsed["operator"], values)
            else:
                expected = "at least one" if needs_values else "none"
                text = shown(written["values"]) if "values" in written else "none"
                self.add_problem(f"{at}.values", text, f"{expected} with the operator {parsed['operator']}")

    def _parse_canary(self, spec: Mapping[str, Any]) -> Canary | None:
        """The canary; one with all pods if it has a problem."""
        if "canary" not in spec:
            return None
        before = len(self.problems)
        canary = self._parse_object("spec.canary", spec["canary"], fields.CANARY_FIELDS)
        if len(canary) != 1:
            text = "both" if canary else "neither"
            self.add_problem("spec.canary", text, "exactly one of podSelector, percent")
        selector = self._parse_selector("spec.canary.podSelector", canary.get("podSelector"))
        percent = self._parse_values("spec.canary", canary, fields.CANARY_PARSERS).get("percent", 0)
        if len(self.problems) > before:
            return Canary(LabelSelector())
        return Canary(selector if "podSelector" in canary else None, percent)

    def _parse_guard(self, spec: Mapping[str, Any]) -> Guard | None:
        """The guard, with the limits that can be read; a policy that needs them all is refused by the API server."""
        if "guard" not in spec:
            return None
        guard = self._parse_object("spec.guard", spec["guard"], fields.GUARD_FIELDS)
        if "maxRejectedShare" not in guard and "maxWaitingPods" not in guard:
            self.add_problem("spec.guard", "no limit", "maxRejectedShare, maxWaitingPods or both")
        values = self._parse_values("spec.guard", guard, fields.GUARD_PARSERS)
        return Guard(
            values.get("maxRejectedShare", ""),
            values.get("maxWaitingPods"),
            values.get("within", 30.0),
            values.get("resumeAfter"),
        )

    # Rules

    def _parse_avoid(self, spec: Mapping[str, Any]) -> Iterator[AvoidRule]:
        rules = self._parse_rules("avoid", spec, fields.AVOID_FIELDS, fields.AVOID_PART_FIELDS)
        for path, rule, parts in rules:
            times = self._parse_values(path, rule, fields.HOLD_TIME_PARSERS)
            if "keepFor" in times and any(part.release is not None for part in parts):
                expected = "one of them: a rejected node passes beyond release, or after keepFor"
                self.add_problem(path, "release and keepFor together", expected)
            if parts:
                yield AvoidRule(parts, HoldTimes(times.get("for", 0.0), times.get("keepFor", 0.0)))

    def _parse_node_labels(self, spec: Mapping[str, Any]) -> Iterator[LabelRule]:
        rules = self._parse_rules("nodeLabels", spec, fields.LABEL_RULE_FIELDS, fields.COMPARISON_FIELDS)
        for path, rule, parts in rules:
            labels = self._parse_labels(f"{path}.labels", rule.get("labels"))
            if parts and labels:
                yield LabelRule(parts, (labels, *[()] * (len(parts) - 1)))

    def _parse_rules(
        self, section: str, spec: Mapping[str, Any], valid: Sequence[str], valid_in_all: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, Any], tuple[Comparison, ...]]]:
        """The place, the fields and the parts of each rule; no parts for one with a problem."""
        if section not in spec:
            return
        count = 0
        for number, entry in enumerate(self._parse_list(f"spec.{section}", spec[section], fields.MAX_RULES)):
            path = f"spec.{section}[{number}]"
            before = len(self.problems)
            rule = self._parse_object(path, entry, valid)
            if "all" in rule:
                parts = self._parse_all(path, rule, valid_in_all)
            else:
                parts = self._parse_comparison(path, rule, ("metric", "query", "all"))
            # as in the definitions, which count a range operator as one rule
            count += max(len(rule["all"]), 1) if isinstance(rule.get("all"), list) else 1
            yield path, rule, tuple(parts) if len(self.problems) == before else ()
        if count > fields.MAX_RULES:
            expected = f"at most {fields.MAX_RULES}, counting those in all"
            self.add_problem("spec", f"{count} rules in {section}", expected)

    def _parse_all(self, path: str, rule: Mapping[str, Any], valid: Sequence[str]) -> list[Comparison]:
        """The rules in `all` of a rule, which has no other field of a comparison."""
        others = [name for name in rule if name not in ("all", "labels", *fields.HOLD_TIME_FIELDS)]
        if others:
            self.add_problem(
                path, f"{' and '.join(others)} together with all", "these fields in the rules of all"
            )
        return [
            comparison
            for number, part in enumerate(self._parse_list(f"{path}.all", rule["all"], fields.MAX_PARTS))
            for comparison in self._parse_comparison(
                f"{path}.all[{number}]",
                self._parse_object(f"{path}.all[{number}]", part, valid),
                ("metric", "query"),
            )
        ]

    def _parse_comparison(
        self, path: str, rule: Mapping[str, Any], alternatives: Sequence[str]
    ) -> list[Comparison]:
        """The comparison of the fields of a rule, or two for a range operator. They are used only if there is no
        problem.
        """
        self._check_source(path, rule, alternatives)
        operators = [name for name in OPERATOR_FIELDS if name in rule]
        if len(operators) != 1:
            self.add_problem(path, " and ".join(operators) or "no operator", _ONE_OPERATOR)
        if "emptyMeans" in rule and "query" not in rule:
            self.add_problem(
                f"{path}.emptyMeans", "emptyMeans without query", "emptyMeans only together with query"
            )
        values = self._parse_values(path, rule, fields.PARSERS)
        operator = next(iter(operators), "")
        comparison = Comparison(
            metric=_metric_name(values),
            operator=operator,
            release=self._checked_release(path, rule, operator, values),
            when_missing="reject" if values.get("whenMissing") == "Reject" else "pass",
            max_age_s=values.get("maxAge"),
            query=values.get("query", ""),
            aggregate=values.get("aggregate", ""),
            empty_means="healthy" if "emptyMeans" in values else "",
        )
        if operator in RANGE_OPERATORS:
            ends = zip(RANGE_OPERATORS[operator], values.get(operator, (0, 0)), strict=True)
        else:
            ends = zip((operator,), (values.get(operator, 0),), strict=True)
        return [msgspec.structs.replace(comparison, operator=name, target=target) for name, target in ends]

    def _checked_release(
        self, path: str, rule: Mapping[str, Any], operator: str, values: Mapping[str, Any]
    ) -> int | None:
        """The value of `release`, which is on the side of the target where the rule is not broken."""
        release: int | None = values.get("release")
        target = values.get(operator)
        if release is None or target is None:
            return None
        direction = rule_operators.sort_direction(operator)
        if direction == 0:
            expected = "release only together with above, atLeast, below or atMost"
            self.add_problem(f"{path}.release", f"release together with {operator}", expected)
        elif (release - target) * direction <= 0:
            side = "below" if direction < 0 else "above"
            expected = f"a value {side} {shown(rule[operator])}, the value of {operator}"
            self.add_problem(f"{path}.release", shown(rule["release"]), expected)
        return release

    def _check_source(self, path: str, rule: Mapping[str, Any], alternatives: Sequence[str]) -> None:
        """Check that a rule has exactly one of the fields that say what is compared."""
        valid = [name for name in alternatives if self._is_cluster or name not in fields.CLUSTER_FIELDS]
        present = [name for name in valid if name in rule]
        if len(present) != 1:
            expected = f"exactly one of {', '.join(valid)}" if len(valid) > 1 else "a metric"
            self.add_problem(path, " and ".join(present) or f"no {' and no '.join(valid)}", expected)

    def _parse_preferences(self, spec: Mapping[str, Any]) -> Iterator[Preference]:
        if "prefer" not in spec:
            return
        for number, entry in enumerate(
            self._parse_list("spec.prefer", spec["prefer"], fields.MAX_PREFERENCES)
        ):
            path = f"spec.prefer[{number}]"
            preference = self._parse_object(path, entry, fields.PREFERENCE_FIELDS)
            self._check_source(path, preference, ("metric", "query"))
            if "order" not in preference:
                self.add_problem(f"{path}.order", "none", " or ".join(fields.ORDERS))
            values = self._parse_values(path, preference, fields.PARSERS)
            source = Comparison(
                metric=_metric_name(values),
                operator="above" if values.get("order") == "Descending" else "below",
                when_missing="pass",
                max_age_s=values.get("maxAge"),
                query=values.get("query", ""),
                aggregate=values.get("aggregate", ""),
            )
            yield Preference(source, values.get("weight", 1))

    def _parse_labels(self, path: str, value: Any) -> tuple[tuple[str, str], ...]:
        """The labels of nodes; none, with a problem, if one of them is invalid."""
        before = len(self.problems)
        labels = self._parse_map(path, {} if value is None else value, fields.MAX_RULE_LABELS)
        if not labels and len(self.problems) == before:
            self.add_problem(path, "none", "at least one label")
        for key, text in labels.items():
            if not isinstance(text, str) or not fields.is_valid_node_label(key, text):
                self.add_problem(f"{path}.{shown_key(key)}", shown(text), _NODE_LABEL)
        return tuple(labels.items()) if len(self.problems) == before else ()

    def _limit_labels(self, policy: Policy) -> Policy:
        """The policy with the first `MAX_POLICY_LABELS` different labels of nodes."""
        keys = dict.fromkeys(
            key for rule in policy.node_labels for labels in rule.labels for key, _ in labels
        )
        if len(keys) <= MAX_POLICY_LABELS:
            return policy
        expected = f"at most {MAX_POLICY_LABELS} per policy; the others are left out"
        self.add_problem("spec.nodeLabels", f"{len(keys)} different node labels", expected)
        kept = frozenset([*keys][:MAX_POLICY_LABELS])
        return policy.with_label_keys(lambda key: key in kept)


def _metric_name(values: Mapping[str, Any]) -> str:
    """The name of the metric in reasons, which are shown to everyone and must not reveal a query."""
    return "query" if "query" in values else str(values.get("metric", ""))
