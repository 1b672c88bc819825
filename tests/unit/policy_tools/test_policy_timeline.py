"""A timeline of policies agrees with what `decide` answers, and remembers what the agent remembers."""

import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from nodewise.agent import NodeIndex
from nodewise.base.clock import format_rfc3339
from nodewise.cli.main import command
from nodewise.kube import object_files
from nodewise.metrics.series import Sample, Series
from nodewise.policy_tools import policy_timeline
from nodewise.policy_tools.policy_timeline import Moment, PolicyTimeline, TimelineSettings

_POLICY = b"""
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: cool, namespace: web}
spec:
  podSelector: {}
  avoid:
  - {metric: temp, above: 80}
  - all:
    - {metric: load, atLeast: 4}
    - {metric: power, below: 100, whenMissing: Reject}
  prefer:
  - {metric: power, order: Descending}
"""
_POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-1", "namespace": "web"}}
_NODES = ("a", "b", "c", "d")
_START = 1_700_000_000.0


def _timeline(policy: bytes = _POLICY) -> PolicyTimeline:
    settings = TimelineSettings()
    objects = policy_timeline.objects_of_files(object_files.read(["-"], io.BytesIO(policy)), settings.options)
    return PolicyTimeline(objects, settings)


def _series(metric: str, at: float, values: dict[str, int]) -> Series:
    return Series(metric, "test", at, {node: Sample(value * 10**9, at) for node, value in values.items()})


def _rejected(moment: Moment) -> set[str]:
    decision = moment.filter(msgspec.convert(_POD, policy_timeline.POD_TYPE))
    return set(decision.names[~decision.feasible()].tolist())


def test_rejections_and_scores_are_those_of_decide(tmp_path: Path) -> None:
    random = np.random.default_rng(20)
    nodes = NodeIndex(_NODES)
    (tmp_path / "policy.yaml").write_bytes(_POLICY)
    items = [_POD, *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in _NODES)]
    (tmp_path / "objects.json").write_bytes(
        msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items})
    )
    for step in range(4):
        at = _START + 60 * step
        values = {
            metric: {node: int(random.integers(high)) for node in _NODES if random.random() < 0.8}
            for metric, high in (("temp", 120), ("load", 8), ("power", 200))
        }
        responses: dict[str, policy_timeline.Response] = {
            metric: _series(metric, at, of_nodes) for metric, of_nodes in values.items()
        }
        # a new timeline: decide remembers nothing either
        moment = _timeline().advance(at, responses, nodes)
        lines = [f"{node},{metric},{value}" for metric, of in values.items() for node, value in of.items()]
        (tmp_path / "metrics.csv").write_text("\n".join(lines))
        arguments = ["decide", str(tmp_path), "-o", "json", "--now", format_rfc3339(at)]
        printed: Any = msgspec.json.decode(CliRunner().invoke(command, arguments).stdout)
        scored = moment.prioritize(msgspec.convert(_POD, policy_timeline.POD_TYPE))
        assert _rejected(moment) == set(printed["decisions"][0]["rejected"])
        expected = printed["decisions"][0]["scores"]
        assert dict(zip(scored.names.tolist(), scored.points().tolist(), strict=True)) == expected


def test_a_rule_that_loses_most_values_keeps_its_verdicts() -> None:
    timeline, nodes = _timeline(), NodeIndex(_NODES)
    others = {metric: _series(metric, _START, dict.fromkeys(_NODES, 500)) for metric in ("power", "load")}
    first = timeline.advance(
        _START, {"temp": _series("temp", _START, {"a": 90, "b": 70, "c": 90, "d": 10})} | others, nodes
    )
    failed = timeline.advance(_START + 30, {"temp": "no answer"}, nodes)
    old = timeline.advance(_START + 90, {"temp": "no answer"}, nodes)
    [state] = old.state.policies.values()
    assert _rejected(first) == _rejected(failed) == _rejected(old) == {"a", "c"}
    assert "temp" in {comparison.metric for comparison in state.suspended}


def test_times_ascend() -> None:
    timeline = _timeline()
    timeline.advance(_START, {}, NodeIndex(_NODES))
    with pytest.raises(ValueError, match="not later"):
        timeline.advance(_START, {}, NodeIndex(_NODES))


def test_the_needed_metrics_are_named_with_their_maximum_age() -> None:
    assert {key: request.max_age_s for key, request in _timeline().requests.items()} == dict.fromkeys(
        ("temp", "load", "power"), 60.0
    )
