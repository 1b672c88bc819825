"""The fake API server of the benchmarks: pages, changes of labels, watches and shards."""

import json

import pytest
from bench import fake_api_server, generated_cluster_objects
from bench.fake_api_server import NODES, Collection, ShardRanges

from nodewise.kube import shard_election
from nodewise.kube.reflector import WatchState, parse_watch_line

ALL = ShardRanges("")
NAMES = sorted(generated_cluster_objects.names(60))


@pytest.fixture
def nodes():
    objects = [
        json.dumps(generated_cluster_objects.node(name, number, images=1)).encode()
        for number, name in enumerate(NAMES)
    ]
    return Collection("Node", objects)


def listed(nodes, limit, shards):
    """The names in all pages."""
    names, start = [], 0
    while True:
        page = json.loads(nodes.page(limit, start, shards))
        names += [item["metadata"]["name"] for item in page["items"]]
        assert not limit or len(page["items"]) <= limit
        if "continue" not in page["metadata"]:
            return names
        start = int(page["metadata"]["continue"])


@pytest.mark.parametrize("limit", [0, 1, 7, 60, 500])
def test_pages_contain_each_object_once(nodes, limit):
    assert listed(nodes, limit, ALL) == NAMES


@pytest.mark.parametrize("shards", [2, 3, 4])
def test_a_shard_has_the_nodes_of_the_product(nodes, shards):
    uids = [
        generated_cluster_objects.node(name, number, 0)["metadata"]["uid"]
        for number, name in enumerate(NAMES)
    ]
    for shard in range(shards):
        selector = ShardRanges(shard_election.shard_selector(frozenset({shard}), shards))
        expected = [
            name
            for name, uid in zip(NAMES, uids, strict=True)
            if shard_election.shard_of(uid, shards) == shard
        ]
        assert listed(nodes, 7, selector) == expected
        assert expected
    both = ShardRanges(shard_election.shard_selector(frozenset({0, 1}), 4))
    assert 0 < len(listed(nodes, 7, both)) < len(NAMES)
    assert listed(nodes, 0, ShardRanges(shard_election.shard_selector(frozenset(), 4))) == []


def test_an_apply_replaces_the_labels_of_the_one_before_and_no_others(nodes):
    name = NAMES[3]
    before = json.loads(nodes.page(0, 3, ALL))["items"][0]["metadata"]["labels"]
    nodes.patch(name, "application/apply-patch+yaml", {"metadata": {"labels": {"a": "1", "b": "1"}}})
    nodes.patch(name, "application/apply-patch+yaml", {"metadata": {"labels": {"b": "2"}}})
    assert json.loads(nodes.page(0, 3, ALL))["items"][0]["metadata"]["labels"] == before | {"b": "2"}
    nodes.patch(name, "application/merge-patch+json", {"metadata": {"labels": {"b": None}}})
    assert json.loads(nodes.page(0, 3, ALL))["items"][0]["metadata"]["labels"] == before
    assert nodes.patch("absent", "application/apply-patch+yaml", {}) is None


def test_a_watch_continues_at_the_version_of_a_list_or_bookmark(nodes):
    version = nodes.version
    for name in NAMES[:3]:
        nodes.patch(name, "application/apply-patch+yaml", {"metadata": {"labels": {"a": "1"}}})
    newest, lines = nodes.lines_since(version + 1, ALL)
    events = [parse_watch_line(WatchState("1"), line)[1] for line in lines]
    assert [(event.kind, event.key[1]) for event in events] == [("put", name) for name in NAMES[1:3]]
    assert nodes.lines_since(newest, ALL) == (newest, [])
    state, bookmark = parse_watch_line(WatchState("1"), nodes.bookmark())
    assert (bookmark.kind, state) == ("bookmark", WatchState(str(newest)))


async def test_a_lease_is_created_once_and_replaced_at_its_version():
    server = fake_api_server.build(1)
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = {"metadata": {"name": "a"}, "spec": {}}
    status, created = server._write(path, "POST", "application/json", dict(lease))
    assert status == 200
    assert server._write(path, "POST", "application/json", dict(lease))[0] == 409
    held = json.loads(created)
    assert server._write(f"{path}/a", "PUT", "application/json", dict(held))[0] == 200
    assert server._write(f"{path}/a", "PUT", "application/json", dict(held))[0] == 409


def test_the_window_of_the_rolling_metric_moves(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(fake_api_server.time, "monotonic", lambda: now[0])
    rolling = fake_api_server.RollingMetric([f"n{number}" for number in range(200)])

    def hot():
        return [
            item["describedObject"]["name"]
            for item in json.loads(rolling.answer())["items"]
            if item["value"] == "90"
        ]

    assert hot() == ["n0", "n1"]
    rolling.begin(0.01)
    now[0] = 60.0
    assert hot() == ["n2", "n3"]
    rolling.begin(1.0)
    assert len(hot()) == 200


def test_objects_of_a_build_are_those_of_the_cluster():
    server = fake_api_server.build(5, 12)
    pods = json.loads(server._read("/api/v1/pods", {})[1])["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == set(generated_cluster_objects.names(5))
    assert (
        len({pod["metadata"]["uid"] for pod in pods}) == len({pod["metadata"]["name"] for pod in pods}) == 12
    )
    assert len(json.loads(server._read(NODES, {})[1])["items"][0]["status"]["images"]) == 61
