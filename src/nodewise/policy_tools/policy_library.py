"""The library of policies: presets for the metrics of common exporters, one file each in the folder `library`.

A preset has the rules of a policy, the exporter of its metrics, and a sample: lines that this exporter writes for a
node that no rule rejects, and for each rule what differs on a node that it rejects.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

import msgspec

from nodewise.base import clock, quantity, safe_yaml_loader
from nodewise.base.errors import BadSettings, Problem, did_you_mean, shown
from nodewise.metrics.aggregation import Direction
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.policy_tools import library
from nodewise.policy_tools.policy_writer import NewRule

_QUERY: Final = "query"  # the metric of a request with a query, as the parser of policies names it


class PresetRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule of `avoid`, with the names of its fields, and its description."""

    title: str
    """What its values are, in the names of tests."""
    comment: str
    rejects: Mapping[str, str]
    """By series of the sample, the value on a node that the rule rejects; `0.5/s` for a counter that grows."""
    metric: str = ""
    query: str = ""
    aggregate: str = ""
    above: str = ""
    below: str = ""
    release: str = ""
    for_: str = msgspec.field(name="for", default="")
    keep_for: str = msgspec.field(name="keepFor", default="")
    empty_means: str = msgspec.field(name="emptyMeans", default="")

    def to_new_rule(self) -> NewRule:
        direction: Direction = "below" if self.below else "above"
        empty_is_healthy = self.empty_means == "Healthy"
        return NewRule(
            MetricRequest(self.metric or _QUERY, self.query, 0.0, self.aggregate, empty_is_healthy),
            direction,
            self.below or self.above,
            self.release,
            clock.parse_option_duration(self.for_) if self.for_ else None,
            clock.parse_option_duration(self.keep_for) if self.keep_for else None,
            self.title if self.query else "",
            [self.comment],
        )


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    subject: str
    """What the policy rejects nodes with."""
    exporter: str
    needs: str
    """What the exporter needs to have the metrics."""
    sources: Sequence[str]
    """Where the sample and the meaning of the metrics come from."""
    notes: Sequence[str]
    guard: Mapping[str, str]
    rules: Sequence[PresetRule]
    sample: str
    """Lines in the exposition format, of a node that no rule rejects."""
    rates: Mapping[str, str] = {}
    """By series of the sample, the growth of a counter on every node, such as `900/s`."""

    def new_rules(self) -> tuple[NewRule, ...]:
        return tuple(rule.to_new_rule() for rule in self.rules)

    def comments(self, name: str) -> list[str]:
        """The paragraphs at the top of the policy."""
        return [
            f"Preset {name}: rejects nodes with {self.subject}.",
            f"Exporter: {self.exporter}, with {self.needs}.",
            *self.notes,
        ]

    def metrics(self) -> list[str]:
        """The names of the metrics that the rules use."""
        texts = " ".join(rule.query or rule.metric for rule in self.rules)
        names = dict.fromkeys(re.findall(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)", self.sample, re.MULTILINE))
        return [name for name in names if re.search(rf"\b{name}\b", texts)]


def load(name: str, field: str = "PRESET") -> Preset:
    """The preset of a name. `BadSettings` has the closest name, and `field` of the command line."""
    known = library.preset_names()
    if name not in known:
        expected = f"a preset: {', '.join(known)}{did_you_mean(name, known)}"
        raise BadSettings("settings", [Problem(field, shown(name), expected)])
    return msgspec.convert(safe_yaml_loader.load(library.read_preset(name), name), Preset)


class RuleChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line changes in a rule of a preset; empty or None: nothing."""

    direction: Direction | None = None
    threshold: str = ""
    release: str = ""
    for_s: float | None = None
    keep_for_s: float | None = None


def change_rule(rules: Sequence[NewRule], changes: RuleChanges) -> tuple[NewRule, ...]:
    """The rules with a change of the first one that has the operator of the changes.

    A second threshold that is not changed keeps its ratio to the first one. Of `release` and `keepFor`, one that is set
    takes the place of the other one. `BadSettings` if no rule has the operator.
    """
    number = next(
        (
            number
            for number, rule in enumerate(rules)
            if changes.direction is None or rule.direction == changes.direction
        ),
        None,
    )
    if number is None:
        expected = f"--{rules[0].direction}, the operator of the rules of this preset"
        raise BadSettings(
            "policy new", [Problem(f"--{changes.direction}", shown(changes.threshold), expected)]
        )
    rule = rules[number]
    threshold = changes.threshold or rule.threshold
    release = changes.release or _scaled_release(rule, threshold)
    for_s = rule.for_s if changes.for_s is None else changes.for_s
    keep_for_s = rule.keep_for_s if changes.keep_for_s is None else changes.keep_for_s
    if changes.release:
        keep_for_s = changes.keep_for_s
    elif changes.keep_for_s is not None:
        release = ""
    changed = rule._replace(threshold=threshold, release=release, for_s=for_s, keep_for_s=keep_for_s)
    return (*rules[:number], changed, *rules[number + 1 :])


def _scaled_release(rule: NewRule, threshold: str) -> str:
    """The release of a rule for another threshold, with two digits; empty if there is none."""
    if not rule.release or threshold == rule.threshold:
        return rule.release
    before = quantity.parse(rule.threshold)
    exact = Decimal(quantity.parse(rule.release)) * quantity.parse(threshold) / before
    return quantity.nano_to_text(int(Decimal(f"{exact:.1e}")))
