"""Snapshots without a cluster."""

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from nodewise.agent import ClusterState, Inputs, MetricRequest, Resource, Watched
from nodewise.base.errors import BadInput, BadSettings
from nodewise.extender import clusterless_snapshots
from nodewise.extender.clusterless_snapshots import ClusterlessSnapshots


class HeatAnnotations(msgspec.Struct, frozen=True, gc=False):
    heat: str | None = None


class HeatMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: HeatAnnotations | None = None


class HeatNodeFields(msgspec.Struct, frozen=True, gc=False):
    metadata: HeatMetadata = HeatMetadata()


class Heats:
    inputs = Inputs(frozenset(), node_objects=True)

    def build(self, cluster_state: ClusterState) -> Generator[None, None, dict[str, str | None]]:
        yield
        return {name: _heat(node) for (_, name), node in cluster_state.node_objects.items()}


def _heat(node: Any) -> str | None:
    return node.metadata.annotations and node.metadata.annotations.heat


THINGS = Resource(group="x", version="v1", plural="things", kind="Thing", namespaced=True)


def kind(*watched: Watched) -> Any:
    return SimpleNamespace(name="heats", node_fields=HeatNodeFields, watched=lambda _: watched)


def snapshots() -> ClusterlessSnapshots:
    return ClusterlessSnapshots([kind()], {"heats": Heats()})  # type: ignore[dict-item]


def body(*nodes: str) -> bytes:
    return b'{"Pod":{"metadata":{"name":"p"}},"Nodes":{"items":[%b]}}' % ",".join(nodes).encode()


NODE = '{"metadata":{"name":"%s","annotations":{"heat":"%s","other":"x"}}}'


class FailingHeats(Heats):
    def build(self, cluster_state: ClusterState) -> Generator[None, None, dict[str, str | None]]:
        yield
        raise ZeroDivisionError


class TestView:
    def test_an_agent_that_fails_has_no_slot_and_others_have(self) -> None:
        states: Any = {"broken": FailingHeats(), "heats": Heats()}
        with capture_logs() as lines:
            snapshot = ClusterlessSnapshots([kind()], states).snapshot(body(NODE % ("a", 1)), 5.0)
        assert snapshot.agent_states == {"heats": {"a": "1"}}
        assert [(line["event"], line["agent"]) for line in lines] == [("agent_failed", "broken")]

    def test_it_is_made_of_the_request_s_own_nodes(self) -> None:
        snapshot = snapshots().snapshot(body(NODE % ("b", 1), '{"metadata":{"name":"a"}}'), 5.0)
        expected = (("b", "a"), {"heats": {"b": "1", "a": None}}, 5.0)
        assert (snapshot.nodes.known, snapshot.agent_states, snapshot.at) == expected

    def test_each_has_a_number(self) -> None:
        made = snapshots()
        assert [made.snapshot(body(), 0.0).generation for _ in range(2)] == [1, 2]

    def test_keys_in_other_case_are_understood(self) -> None:
        request = body('{"Metadata":{"NAME":"a","Annotations":{"heat":"2"}}}').replace(b'"Nodes"', b'"NODES"')
        assert snapshots().snapshot(request.replace(b'"items"', b'"Items"'), 0.0).agent_states == {
            "heats": {"a": "2"}
        }

    def test_of_names_nothing_is_known(self) -> None:
        snapshot = snapshots().snapshot(b'{"Pod":{},"NodeNames":["a"]}', 0.0)
        assert (len(snapshot.nodes), snapshot.agent_states) == (0, {"heats": {}})

    def test_a_request_that_brings_no_nodes_goes_by_those_of_earlier_ones(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clusterless_snapshots, "_MAX_EARLIER_NODES", 2)
        source, preempt = (
            snapshots(),
            b'{"Pod":{"metadata":{"name":"p"}},"NodeNameToVictims":{"a":{"pods":[]}}}',
        )
        assert source.snapshot(preempt, 5.0).agent_states == {"heats": {}}
        source.snapshot(body(NODE % ("a", 1), NODE % ("b", 2)), 5.0)
        source.snapshot(body(NODE % ("a", 3), NODE % ("c", 4)), 6.0)
        assert source.snapshot(preempt, 7.0).agent_states == {"heats": {"a": "3", "c": "4"}}

    def test_a_node_that_cannot_be_read_is_named(self) -> None:
        with pytest.raises(BadInput, match=r"Nodes\.items\[1\]\.metadata\.annotations\.heat"):
            snapshots().snapshot(
                body(NODE % ("a", 1), '{"metadata":{"name":"b","annotations":{"heat":3}}}'), 0.0
            )


def test_agents_that_need_a_cluster_are_named() -> None:
    clusterless_snapshots.reject_agents_that_need_cluster([kind()], {"heats": None})
    with pytest.raises(BadSettings, match="agent heats; expected a cluster: it reads things"):
        clusterless_snapshots.reject_agents_that_need_cluster(
            [kind(Watched("things", THINGS, HeatNodeFields))], {"heats": None}
        )


def test_agents_that_go_by_metrics_are_named() -> None:
    def state(*wanted: MetricRequest) -> Any:
        return SimpleNamespace(metric_requests=lambda _: frozenset(wanted))

    clusterless_snapshots.reject_agents_that_need_metrics({"heats": state()})
    with pytest.raises(
        BadSettings, match="agent heats; expected a cluster: a request brings no metrics, such as heat"
    ):
        clusterless_snapshots.reject_agents_that_need_metrics({"heats": state(MetricRequest("heat"))})
