"""The form in which objects are written to etcd."""

import json

from bench import etcd_population, generated_cluster_objects

NAMES = generated_cluster_objects.names(10)


def test_nodes_have_some_ten_kilobytes():
    for key, value in etcd_population.nodes(NAMES):
        assert key == f"/registry/minions/{json.loads(value)['metadata']['name']}"
        assert 9_500 < len(value) < 11_000
        assert "resourceVersion" not in json.loads(value)["metadata"]


def test_pods_have_some_five_kilobytes_and_the_first_ones_wait():
    pods = [json.loads(value) for _, value in etcd_population.pods(NAMES, etcd_population.WAITING_PODS + 20)]
    waiting = [pod for pod in pods if "nodeName" not in pod["spec"]]
    assert len(waiting) == etcd_population.WAITING_PODS
    assert {pod["status"]["phase"] for pod in waiting} == {"Pending"}
    assert {pod["spec"]["nodeName"] for pod in pods if pod not in waiting} == set(NAMES)
    assert all(4_000 < len(json.dumps(pod)) < 6_500 for pod in pods[:: etcd_population.WAITING_PODS // 2])


def test_a_transaction_takes_so_many_keys_and_bytes():
    small = [etcd_population.EtcdEntry(str(number), b"x") for number in range(250)]
    assert [len(batch) for batch in etcd_population.batches(small)] == [100, 100, 50]
    large = [etcd_population.EtcdEntry(str(number), b"x" * 200_000) for number in range(5)]
    assert [len(batch) for batch in etcd_population.batches(large)] == [2, 2, 1]


def test_whole_nodes_are_sent_in_the_order_of_names():
    names = [json.loads(body)["NodeNames"] for body in generated_cluster_objects.requests(NAMES, 2)]
    whole = [
        json.loads(body)["Nodes"]["items"] for body in generated_cluster_objects.whole_requests(NAMES, 2)
    ]
    assert [[node["metadata"]["name"] for node in items] for items in whole] == names
    assert all("kind" not in node for items in whole for node in items)
