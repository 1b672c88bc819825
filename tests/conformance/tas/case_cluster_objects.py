"""The clusters of all cases in one folder, as Kubernetes objects for `--objects-from`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.conformance.tas.case_table_rows import RowCluster
from tests.conformance.tas.request_cases import TasCase


def write_clusters(cases: Iterable[TasCase], folder: Path) -> None:
    """Write the objects of every case's cluster."""
    worlds = {case.tag: case.row.cluster_state for case in cases}
    nodes = {name for cluster_state in worlds.values() for name in _known(cluster_state)}
    items = [_node(name) for name in sorted(nodes)]
    for tag, cluster_state in worlds.items():
        items += _objects(tag, cluster_state)
    document = {"apiVersion": "v1", "kind": "List", "items": items}
    (folder / "worlds.json").write_bytes(msgspec.json.encode(document))


def _known(cluster_state: RowCluster) -> Iterator[str]:
    yield from cluster_state.nodes
    for values in cluster_state.metrics.values():
        yield from values


def _node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def _objects(tag: str, cluster_state: RowCluster) -> Iterator[dict[str, Any]]:
    for metric, values in cluster_state.metrics.items():
        items = [value(f"{tag}_{metric}", node, amount) for node, amount in values.items()]
        yield {"apiVersion": "custom.metrics.k8s.io/v1beta2", "kind": "MetricValueList", "items": items}
    for name, spec in cluster_state.policies.items():
        yield {
            "apiVersion": "telemetry.intel.com/v1alpha1",
            "kind": "TASPolicy",
            "metadata": {"namespace": tag, "name": name},
            **({} if spec is None else {"spec": {"strategies": strategies(tag, spec)}}),
        }


def value(metric: str, node: str, amount: Any) -> dict[str, Any]:
    """An item of a MetricValueList."""
    return {
        "describedObject": {"kind": "Node", "name": node},
        "metric": {"name": metric},
        "value": amount,
    }


def strategies(tag: str, strategies: dict[str, Any]) -> dict[str, Any]:
    """The strategies in the form of a policy. In the table, a list stands for a strategy with these rules."""
    return {name: _strategy(tag, strategy) for name, strategy in strategies.items()}


def _strategy(tag: str, rules: Any) -> dict[str, Any]:
    strategy = {"rules": rules} if isinstance(rules, list) else rules
    return {**strategy, "rules": [_rule(tag, rule) for rule in strategy["rules"]]}


def _rule(tag: str, notation: str | dict[str, Any]) -> dict[str, Any]:
    """A rule in the form of a policy. The metric's name gets the case's tag as a prefix, unless it is empty.

    A rule in text form is `metric operator target [label,label]`; target and labels are optional.
    """
    if isinstance(notation, str):
        words, _, labels = notation.partition("[")
        metric, operator, *target = words.split()
        rule: dict[str, Any] = {"metricname": metric, "operator": operator}
        if target:
            rule["target"] = int(target[0])
        if labels:
            rule["labels"] = labels.removesuffix("]").split(",")
    else:
        rule = dict(notation)
    if rule["metricname"]:
        rule["metricname"] = f"{tag}_{rule['metricname']}"
    return rule
