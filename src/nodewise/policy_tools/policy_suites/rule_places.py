"""The rules of a policy in its spec, in the order in which the parsed policy has their comparisons."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from nodewise.policies.placement_policy import PolicyKind

Section = Literal["avoid", "prefer", "nodeLabels"]
"""The sections of a PlacementPolicy; the strategies of a TASPolicy belong to one of them."""


class RulePlace(NamedTuple):
    """One comparison, or one preference."""

    section: Section
    path: tuple[str | int, ...]
    """Below `spec`, for example `("avoid", 0, "all", 1)`."""
    rule: Mapping[str, Any]
    """Its fields."""

    def text(self) -> str:
        """The path as messages write it: `spec.avoid[0].all[1]`."""
        return "spec" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)


def rule_places(kind: PolicyKind, spec: Mapping[str, Any]) -> Iterator[RulePlace]:
    """All rules of a valid spec that have an effect."""
    if kind == "TASPolicy":
        yield from _places_of_strategies(spec)
        return
    for section in ("avoid", "nodeLabels"):
        for number, rule in enumerate(spec.get(section) or ()):
            parts = rule.get("all")
            if parts is None:
                yield RulePlace(section, (section, number), rule)
            else:
                for position, part in enumerate(parts):
                    yield RulePlace(section, (section, number, "all", position), part)
    for number, rule in enumerate(spec.get("prefer") or ()):
        yield RulePlace("prefer", ("prefer", number), rule)


def _places_of_strategies(spec: Mapping[str, Any]) -> Iterator[RulePlace]:
    """The rules of a TASPolicy. Of `scheduleonmetric` only the first one has an effect."""
    sections: dict[str, Section] = {
        "dontschedule": "avoid",
        "scheduleonmetric": "prefer",
        "deschedule": "nodeLabels",
        "labeling": "nodeLabels",
    }
    strategies = spec.get("strategies") or {}
    for name, section in sections.items():
        rules = (strategies.get(name) or {}).get("rules") or []
        for number, rule in enumerate(rules[:1] if section == "prefer" else rules):
            yield RulePlace(section, ("strategies", name, "rules", number), rule)


def places_by_section(kind: PolicyKind, spec: Mapping[str, Any]) -> dict[Section, list[RulePlace]]:
    """The rules of each section, in order."""
    places: dict[Section, list[RulePlace]] = {"avoid": [], "prefer": [], "nodeLabels": []}
    for place in rule_places(kind, spec):
        places[place.section].append(place)
    return places
