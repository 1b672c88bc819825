"""Whose series these are: each belongs to the node that one of its labels names, or to none.

Of the labels given, those count that name a node in at least one series of the answer; of these, the first that a
series has decides for it. So `node="0"`, where it is the number of a memory zone, leaves the word to `instance`;
and where `node` does name nodes, a series of a node that is gone is not taken for one of the node that reports it.
"""

from collections.abc import Generator, Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from nodewise.metrics.nodes import Nodes
from nodewise.metrics.prometheus import answers
from nodewise.metrics.prometheus.answers import Found
from nodewise.metrics.series import Sample

_MOST_NAMED: Final = 5
_STRIDE: Final = 32
"""So many series are one part of the work, some 0.1 ms; to pause after each would take longer than they do."""


class Matched(NamedTuple):
    """What each node has, and what nobody has."""

    samples: dict[str, Sample]
    invalid: dict[str, str]
    """Why a node has no value, although there is a series of it."""
    strangers: int
    """Series that belong to no node."""
    example: str
    """One of them, by the labels that were looked at."""


def match(series: Iterable[Found], labels: Sequence[str], nodes: Nodes) -> Generator[None, None, Matched]:
    """The value of each node; yields between parts of the work."""
    found: list[Found] = []
    for one in series:
        found.append(one)
        if not len(found) % _STRIDE:
            yield
    deciding = yield from _deciding(found, labels, nodes)
    by_node, strangers = yield from _sorted(found, deciding, nodes)
    matched = Matched({}, {}, len(strangers), _example(strangers, labels))
    for number, (node, own) in enumerate(by_node.items()):
        try:
            matched.samples[node] = newest(own)
        except ValueError as error:
            matched.invalid[node] = str(error)
        if not number % _STRIDE:
            yield
    return matched


def owners(
    found: Sequence[Found], labels: Sequence[str], nodes: Nodes
) -> Generator[None, None, list[str | None]]:
    """The node of each series, None for one that belongs to none; yields between parts of the work."""
    deciding = yield from _deciding(found, labels, nodes)
    owning: list[str | None] = []
    for one in found:
        owning.append(_node_of(one, deciding, nodes))
        if not len(owning) % _STRIDE:
            yield
    return owning


def newest(own: Sequence[Found]) -> Sample:
    """The newest value of one node's series. ValueError if it is no number, or if the newest disagree.

    Several series of one node are common: an exporter that was started anew has a new `pod` label. Several with
    different values at one time are an ambiguity that only the author of the query can settle.
    """
    last = own if len(own) == 1 else _last(own)
    # a scraped value is one of a moment, not of a window
    return Sample(answers.nano(last[0].value), last[0].at, 0.0)


def _last(own: Sequence[Found]) -> Sequence[Found]:
    """The newest series, several only if they say the same."""
    latest = max(one.at or 0.0 for one in own)
    last = [one for one in own if (one.at or 0.0) == latest]
    if any(one.value != last[0].value for one in last):
        raise ValueError(_conflict(last))
    return last


def _conflict(last: Sequence[Found]) -> str:
    """Which labels the series differ in."""
    names = dict.fromkeys(chain.from_iterable(one.labels for one in last))
    differing = [name for name in names if len({one.labels.get(name, "") for one in last}) > 1]
    shown = ", ".join(differing[:_MOST_NAMED]) or "no label"
    return f"{len(last)} series that differ in {shown}: let the rule's query choose one or aggregate them"


def _deciding(
    found: Sequence[Found], labels: Sequence[str], nodes: Nodes
) -> Generator[None, None, list[str]]:
    """The labels that name a node in at least one series."""
    deciding = []
    for label in labels:
        for number, one in enumerate(found):
            if (text := one.labels.get(label)) and nodes.find(text) is not None:
                deciding.append(label)
                break
            if not number % _STRIDE:
                yield
    return deciding


def _sorted(
    found: Sequence[Found], deciding: Sequence[str], nodes: Nodes
) -> Generator[None, None, tuple[dict[str, list[Found]], list[Found]]]:
    """The series of each node, and those of none."""
    by_node: dict[str, list[Found]] = {}
    strangers: list[Found] = []
    for number, one in enumerate(found):
        node = _node_of(one, deciding, nodes)
        (strangers if node is None else by_node.setdefault(node, [])).append(one)
        if not number % _STRIDE:
            yield
    return by_node, strangers


def _node_of(one: Found, deciding: Sequence[str], nodes: Nodes) -> str | None:
    for label in deciding:
        if text := one.labels.get(label):
            return nodes.find(text)
    return None


def _example(strangers: Sequence[Found], labels: Sequence[str]) -> str:
    if not strangers:
        return ""
    own = strangers[0].labels
    pairs = [f'{label}="{own[label][:80]}"' for label in labels if label in own]
    return ", ".join(pairs) or f"a series without {' or '.join(labels)}"
