"""Parses a PlacementPolicy or a ClusterPlacementPolicy by the tables of `placement_policy_fields`.

The parser accepts what the API server accepts. A policy that was stored without these checks and has a problem fails
closed: it rejects every node for the pods that it selects. A selector that cannot be understood selects all pods, or
all namespaces. Valid rules of `nodeLabels` and `deviceTaints` apply also beside problems, so that no node loses a label
and no device a taint by an edit elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from nodewise.base.errors import shown
from nodewise.policies import placement_policy_fields as fields
from nodewise.policies import rule_operators
from nodewise.policies.placement_policy import (
    AvoidRule,
    Canary,
    Comparison,
    DeviceRule,
    Guard,
    HoldTimes,
    LabelRule,
    LabelSelector,
    PodSelection,
    Policy,
    PolicyKey,
    Preference,
    Requirement,
    unusable_rule,
)
from nodewise.policies.placement_policy_fields import Field, LabelsType, ListType, ObjectType, ValueType
from nodewise.policies.policy_objects import PolicyObject, ProblemCollector, shown_key, step_back_in_effect
from nodewise.policies.rule_operators import OPERATOR_FIELDS, RANGE_OPERATORS

_POD_LABEL: Final = "a key such as app or example.com/app and a value, both valid for a label"
_NODE_LABEL: Final = (
    "a key whose domain ends in .nodewise.io, such as gpu.nodewise.io/suspect, and a value of a label"
)
_SECTIONS: Final = ("avoid", "prefer", "nodeLabels", "deviceTaints")
_SELECTORS: Final = {"podSelector": "a label selector; {} selects all pods of the namespace"}
_CLUSTER_SELECTORS: Final = {
    "namespaceSelector": "a label selector together with avoid or prefer; {} selects all namespaces",
    "podSelector": "a label selector together with avoid or prefer; {} selects all pods",
}
_ONLY_WITH: Final = (
    ("enforcement", ("avoid",), "enforcement without avoid"),
    ("mode", ("avoid", "prefer", "deviceTaints"), "mode with node labels only"),
    ("guard", ("avoid",), "guard without avoid"),
)
"""Fields about rules, the sections that have such rules, and the text of the problem without these."""


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
        spec = self._parse_object("spec", value, fields.SPEC) if not self.problems else {}
        # an unreadable spec, or an unknown field, may be one that rejects nodes
        affects_pods = bool(self.problems) or "avoid" in spec or "prefer" in spec
        if not self.problems:
            self._check_presence(spec)
        selection = PodSelection(
            self._parse_selector("spec.podSelector", spec.get("podSelector")),
            self._parse_selector("spec.namespaceSelector", spec.get("namespaceSelector")),
        )
        avoid = tuple(self._parse_avoid(spec))
        values = self._parse_values("spec", spec, fields.SPEC.fields)
        canary = self._parse_canary(spec)
        guard = self._parse_guard(spec)
        prefer = tuple(self._parse_preferences(spec))
        node_labels = tuple(self._parse_node_labels(spec))
        device_taints = tuple(self._parse_device_taints(spec))
        if self.problems and affects_pods:
            avoid, prefer = (unusable_rule(str(self.problems[0])),), ()
        has_selectors = "podSelector" in spec and "namespaceSelector" in spec
        parsed = msgspec.structs.replace(
            policy,
            selection=selection if affects_pods or has_selectors else None,
            canary=canary,
            guard=guard,
            avoid=avoid,
            prefer=prefer,
            node_labels=node_labels,
            device_taints=device_taints,
            sections=tuple(name for name in _SECTIONS if name in spec),
            **values,
        )
        return self.with_problems(parsed, "spec.nodeLabels")

    def _check_presence(self, spec: Mapping[str, Any]) -> None:
        """Check which fields of the spec are present."""
        sections = _SECTIONS if self._is_cluster else _SECTIONS[:2]
        if not any(name in spec for name in sections):
            self.add_problem("spec", "no rules", f"at least one of {', '.join(sections)}")
        selectors = _SELECTORS
        if self._is_cluster:
            selectors = _CLUSTER_SELECTORS if "avoid" in spec or "prefer" in spec else {}
        for name, expected in selectors.items():
            if name not in spec:
                self.add_problem(f"spec.{name}", "no value", expected)
        self._check_fields_of_rules(spec)

    def _check_fields_of_rules(self, spec: Mapping[str, Any]) -> None:
        """Check that fields about rules come with such rules."""
        for name, sections, text in _ONLY_WITH:
            valid = [section for section in sections if self._is_cluster or section != "deviceTaints"]
            if name in spec and not any(section in spec for section in valid):
                self.add_problem(f"spec.{name}", text, f"{name} only together with {' or '.join(valid)}")
        if spec.get("mode") == "Canary" and "canary" not in spec:
            self.add_problem("spec.canary", "no value", "podSelector or percent, with the mode Canary")

    def _parse_object(self, path: str, value: Any, described: ObjectType) -> dict[str, Any]:
        """The fields of an object. Unknown ones are problems. The API server drops known fields that are null."""
        mapping = self.parse_mapping(path, value)
        allowed = [
            name for name, field in described.fields.items() if self._is_cluster or not field.only_cluster
        ]
        notes = dict.fromkeys(
            fields.CLUSTER_FIELDS if not self._is_cluster else (), "; only ClusterPlacementPolicy has it"
        )
        self.report_unknown_keys(path, mapping, allowed, notes=notes)
        return {name: mapping[name] for name in allowed if mapping.get(name) is not None}

    def _parse_list(self, path: str, value: Any, described: ListType) -> Iterator[tuple[str, dict[str, Any]]]:
        """The place and the fields of each entry of a list of objects, which has one problem if its length is wrong."""
        if not isinstance(value, list) or not described.least <= len(value) <= described.most:
            text = f"{len(value)} entries" if isinstance(value, list) else shown(value)
            self.add_problem(path, text, f"a list of 1 to {described.most} entries")
            return
        for number, entry in enumerate(value):
            yield f"{path}[{number}]", self._parse_object(f"{path}[{number}]", entry, described.entry)

    def _parse_labels(self, path: str, value: Any, described: LabelsType) -> dict[str, str]:
        """The valid labels of an object. The API server drops those that are null."""
        mapping = {key: text for key, text in self.parse_mapping(path, value).items() if text is not None}
        if len(mapping) > described.most:
            self.add_problem(path, f"{len(mapping)} labels", f"at most {described.most}")
            return {}
        is_valid, expected = (
            (fields.is_valid_node_label, _NODE_LABEL)
            if described.least
            else (fields.is_valid_pod_label, _POD_LABEL)
        )
        labels = {}
        for key, text in mapping.items():
            if isinstance(text, str) and is_valid(key, text):
                labels[key] = text
            else:
                self.add_problem(f"{path}.{shown_key(key)}", shown(text), expected)
        return labels

    def _parse_values(
        self, path: str, values: Mapping[str, Any], described: Mapping[str, Field]
    ) -> dict[str, Any]:
        """The valid values of the fields that have one value each."""
        types = {name: described[name].type for name in values if name in described}
        parsed = {
            name: self.parse_value(path, name, values[name], type_.parse)
            for name, type_ in types.items()
            if isinstance(type_, ValueType)
        }
        return {name: value for name, value in parsed.items() if value is not None}

    # Selectors

    def _parse_selector(self, path: str, value: Any) -> LabelSelector:
        """The selector; one that selects everything if it is absent or has a problem."""
        if value is None:
            return LabelSelector()
        before = len(self.problems)
        selector = self._parse_object(path, value, fields.SELECTOR)
        labels = self._parse_labels(
            f"{path}.matchLabels", selector.get("matchLabels", {}), fields.MATCH_LABELS
        )
        requirements = [Requirement(key, "In", frozenset([text])) for key, text in labels.items()]
        valid = len(self.problems)
        for at, entry in self._parse_list(
            f"{path}.matchExpressions", selector.get("matchExpressions", []), fields.MATCH_EXPRESSIONS
        ):
            requirements += self._parse_requirement(at, entry, valid)
            valid = len(self.problems)
        return LabelSelector(tuple(requirements) if len(self.problems) == before else ())

    def _parse_requirement(self, path: str, entry: Mapping[str, Any], before: int) -> Iterator[Requirement]:
        """The requirement; none if there are more problems than `before`."""
        for name in fields.REQUIREMENT.required:
            if name not in entry:
                self.add_problem(f"{path}.{name}", "no value", "a value, which is required")
        values = self._parse_values(path, entry, fields.REQUIREMENT.fields)
        if len(self.problems) > before:
            return
        requirement = Requirement(values["key"], values["operator"], values.get("values", frozenset()))
        needs_values = requirement.operator in ("In", "NotIn")
        if needs_values == bool(requirement.values):
            yield requirement
        else:
            expected = "at least one value" if needs_values else "no values"
            text = shown(entry["values"]) if "values" in entry else "no values"
            self.add_problem(f"{path}.values", text, f"{expected} with the operator {requirement.operator}")

    def _parse_canary(self, spec: Mapping[str, Any]) -> Canary | None:
        """The canary; one with all pods if it has a problem."""
        if "canary" not in spec:
            return None
        before = len(self.problems)
        canary = self._parse_object("spec.canary", spec["canary"], fields.CANARY)
        if len(canary) != 1:
            text = "both" if canary else "neither"
            self.add_problem("spec.canary", text, "exactly one of podSelector, percent")
        selector = self._parse_selector("spec.canary.podSelector", canary.get("podSelector"))
        percent = self._parse_values("spec.canary", canary, fields.CANARY.fields).get("percent", 0)
        if len(self.problems) > before:
            return Canary(LabelSelector())
        return Canary(selector if "podSelector" in canary else None, percent)

    def _parse_guard(self, spec: Mapping[str, Any]) -> Guard | None:
        """The guard, with the limits that can be read; a policy that needs them all is refused by the API server."""
        if "guard" not in spec:
            return None
        guard = self._parse_object("spec.guard", spec["guard"], fields.GUARD)
        if "maxRejectedShare" not in guard and "maxWaitingPods" not in guard:
            self.add_problem("spec.guard", "no limit", "maxRejectedShare, maxWaitingPods or both")
        values = self._parse_values("spec.guard", guard, fields.GUARD.fields)
        return Guard(
            values.get("maxRejectedShare", ""),
            values.get("maxWaitingPods"),
            values.get("within", 30.0),
            values.get("resumeAfter"),
        )

    # Rules

    def _parse_avoid(self, spec: Mapping[str, Any]) -> Iterator[AvoidRule]:
        for path, rule, parts in self._parse_rules("avoid", spec):
            times = self._parse_times(path, rule, parts, "a rejected node passes")
            if parts:
                yield AvoidRule(parts, times)

    def _parse_times(
        self, path: str, rule: Mapping[str, Any], parts: Sequence[Comparison], end: str
    ) -> HoldTimes:
        """`for` and `keepFor`; `end` is the change that `keepFor` delays."""
        times = self._parse_values(path, rule, fields.HOLD_TIMES)
        if "keepFor" in times and any(part.release is not None for part in parts):
            expected = f"one of them: {end} beyond release, or after keepFor"
            self.add_problem(path, "release and keepFor together", expected)
        return HoldTimes(times.get("for", 0.0), times.get("keepFor", 0.0))

    def _parse_device_taints(self, spec: Mapping[str, Any]) -> Iterator[DeviceRule]:
        for path, rule, parts in self._parse_rules("deviceTaints", spec):
            before = len(self.problems)
            for name in fields.DEVICE_RULE.required:
                if name not in rule:
                    self.add_problem(f"{path}.{name}", "no value", "a value, which is required")
            values = self._parse_values(path, rule, fields.DEVICE_FIELDS)
            if values.get("effect") == "NoExecute" and "maxTaintedShare" not in rule:
                expected = "a limit of the share of devices, with the effect NoExecute"
                self.add_problem(f"{path}.maxTaintedShare", "no value", expected)
            times = self._parse_times(path, rule, parts, "a taint is removed")
            if parts and len(self.problems) == before:
                replace, label = msgspec.structs.replace, values["deviceLabel"]
                of_devices = tuple(replace(part, device_label=label) for part in parts)
                names = {"deviceAttribute": "attribute", "effect": "effect", "maxTaintedShare": "max_share"}
                optional = {names[name]: value for name, value in values.items() if name in names}
                yield DeviceRule(of_devices, values["driver"], times=times, **optional)

    def _parse_node_labels(self, spec: Mapping[str, Any]) -> Iterator[LabelRule]:
        for path, rule, parts in self._parse_rules("nodeLabels", spec):
            before = len(self.problems)
            labels = self._parse_labels(f"{path}.labels", rule.get("labels", {}), fields.NODE_LABELS)
            if not labels and len(self.problems) == before:
                self.add_problem(f"{path}.labels", "no value", "at least one label")
            if parts and len(self.problems) == before:
                yield LabelRule(parts, (tuple(labels.items()), *[()] * (len(parts) - 1)))

    def _parse_rules(
        self, section: str, spec: Mapping[str, Any]
    ) -> Iterator[tuple[str, Mapping[str, Any], tuple[Comparison, ...]]]:
        """The place, the fields and the parts of each rule; no parts for one with a problem."""
        if section not in spec:
            return
        count = 0
        before = len(self.problems)
        for path, rule in self._parse_list(f"spec.{section}", spec[section], fields.RULE_LISTS[section]):
            if "all" in rule:
                parts = self._parse_all(path, rule, fields.PART_LISTS[section])
            else:
                sources = ("metric", "query", *["all"] * (section in fields.PART_LISTS))
                parts = self._parse_comparison(path, rule, sources)
            # as in the definitions, which count a range operator as one rule
            count += max(len(rule["all"]), 1) if isinstance(rule.get("all"), list) else 1
            yield path, rule, tuple(parts) if len(self.problems) == before else ()
            before = len(self.problems)
        if count > fields.MAX_RULES:
            expected = f"at most {fields.MAX_RULES}, counting those in all"
            self.add_problem("spec", f"{count} rules in {section}", expected)

    def _parse_all(self, path: str, rule: Mapping[str, Any], described: ListType) -> list[Comparison]:
        """The rules in `all` of a rule, which has no other field of a comparison."""
        others = [name for name in rule if name not in ("all", "labels", *fields.HOLD_TIMES)]
        if others:
            self.add_problem(
                path, f"{' and '.join(others)} together with all", "these fields in the rules of all"
            )
        return [
            comparison
            for part_path, part in self._parse_list(f"{path}.all", rule["all"], described)
            for comparison in self._parse_comparison(part_path, part, ("metric", "query"))
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
            expected = f"exactly one of {', '.join(OPERATOR_FIELDS)}"
            self.add_problem(path, " and ".join(operators) or "no operator", expected)
        if "emptyMeans" in rule and "query" not in rule:
            self.add_problem(
                f"{path}.emptyMeans", "emptyMeans without query", "emptyMeans only together with query"
            )
        values = self._parse_values(path, rule, fields.AVOID_PART.fields)
        operator = next(iter(operators), "")
        self._check_release(path, rule, operator, values)
        comparison = _comparison(
            values,
            operator,
            release=values.get("release"),
            when_missing="reject" if values.get("whenMissing") == "Reject" else "pass",
            empty_means="healthy" if "emptyMeans" in values else "",
        )
        if operator not in RANGE_OPERATORS:
            return [msgspec.structs.replace(comparison, target=values.get(operator, 0))]
        ends = zip(RANGE_OPERATORS[operator].parts, values.get(operator, (0, 0)), strict=True)
        return [msgspec.structs.replace(comparison, operator=name, target=target) for name, target in ends]

    def _check_release(
        self, path: str, rule: Mapping[str, Any], operator: str, values: Mapping[str, Any]
    ) -> None:
        """Check that `release` is on the side of the target where the rule is not met."""
        if "release" not in values or operator not in values:
            return
        direction = rule_operators.sort_direction(operator)
        if direction == 0:
            expected = f"release only together with {rule_operators.ORDERED_TEXT}"
            self.add_problem(f"{path}.release", f"release together with {operator}", expected)
        elif (values["release"] - values[operator]) * direction <= 0:
            side = "below" if direction < 0 else "above"
            expected = f"a value {side} {shown(rule[operator])}, the value of {operator}"
            self.add_problem(f"{path}.release", shown(rule["release"]), expected)

    def _check_source(self, path: str, rule: Mapping[str, Any], alternatives: Sequence[str]) -> None:
        """Check that a rule has exactly one of the fields that say what is compared."""
        valid = [name for name in alternatives if self._is_cluster or name != "query"]
        present = [name for name in valid if name in rule]
        if len(present) != 1:
            expected = f"exactly one of {', '.join(valid)}" if len(valid) > 1 else "a metric"
            self.add_problem(path, " and ".join(present) or f"no {' and no '.join(valid)}", expected)

    def _parse_preferences(self, spec: Mapping[str, Any]) -> Iterator[Preference]:
        if "prefer" not in spec:
            return
        for path, preference in self._parse_list("spec.prefer", spec["prefer"], fields.PREFER):
            self._check_source(path, preference, ("metric", "query"))
            if "order" not in preference:
                self.add_problem(f"{path}.order", "no value", "Ascending or Descending")
            values = self._parse_values(path, preference, fields.PREFERENCE.fields)
            operator = "above" if values.get("order") == "Descending" else "below"
            yield Preference(_comparison(values, operator, when_missing="pass"), values.get("weight", 1))


def _comparison(values: Mapping[str, Any], operator: str, **more: Any) -> Comparison:
    return Comparison(
        # reasons are shown to everyone and must not reveal a query
        metric="query" if "query" in values else values.get("metric", ""),
        operator=operator,
        max_age_s=values.get("maxAge"),
        query=values.get("query", ""),
        aggregate=values.get("aggregate", ""),
        **more,
    )
