"""The attributes of nodes that sources use."""

import asyncio
from typing import Any

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.kube.store import StoreWriter
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics import node_attributes
from nodewise.metrics.node_attributes import (
    NodeAllocatable,
    NodeAttributeFields,
    NodeAttributes,
    NodeAttributesCache,
)

NANO = 10**9
NODE: Any = merge("Node", NodeAttributeFields)


def node(name: str, *addresses: tuple[str, Any], **allocatable: Any) -> Any:
    listed = [{"type": kind, "address": address} for kind, address in addresses]
    status = {"addresses": listed, "allocatable": allocatable}
    return decode({"metadata": {"name": name}, "status": status})


def decode(obj: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(obj), type=NODE)


def read(*allocatable: Any) -> NodeAttributes:
    return cooperative_scheduling.run_without_pauses(node_attributes.read_node_attributes(allocatable))


FLEET = read(
    node("a", ("InternalIP", "10.0.0.1"), ("Hostname", "a"), ("ExternalIP", "1.2.3.4")),
    node("b", ("InternalIP", "10.0.0.2"), ("InternalIP", "fd00:0:0::2"), ("Hostname", "b.example")),
    node("10.0.0.1", ("InternalIP", "10.0.0.3")),
    node("d", ("InternalIP", "10.0.0.9"), ("Hostname", "localhost")),
    node("e", ("InternalIP", "10.0.0.9"), ("Hostname", "localhost")),
)

FOUND = {
    "a": "a",
    "a:9100": "a",
    "10.0.0.2": "b",
    "10.0.0.2:9100": "b",
    "fd00::2": "b",
    "[fd00::2]:9100": "b",
    "[FD00:0::2]": "b",
    "b.example:9100": "b",
    "10.0.0.1:9100": "10.0.0.1",  # the name of a node has precedence over the address of another one
    "10.0.0.3": "10.0.0.1",
    "10.0.0.9": None,  # two nodes have this address
    "localhost:9100": None,
    "1.2.3.4:9100": "a",
    "A": "a",
    "B.Example:9100": "b",
    "b.example.": "b",
    "x": None,
    "a:b": None,
    "": None,
    ":9100": None,
    "[": None,
}


@pytest.mark.parametrize(("text", "name"), FOUND.items(), ids=FOUND)
def test_which_node_a_text_means(text: str, name: str | None) -> None:
    assert FLEET.find(text) == name


ALLOCATABLE = {
    "quantities": ({"cpu": "3920m", "memory": "2Gi"}, NodeAllocatable(3_920_000_000, 2 * 2**30 * NANO)),
    "numbers": ({"cpu": 4, "memory": 1.5}, NodeAllocatable(4 * NANO, 1_500_000_000)),
    "nothing": ({}, NodeAllocatable(None, None)),
    "null": ({"cpu": None, "memory": None}, NodeAllocatable(None, None)),
    "no quantities": ({"cpu": "many", "memory": ["1Gi"]}, NodeAllocatable(None, None)),
    "yes": ({"cpu": True, "memory": {}}, NodeAllocatable(None, None)),
}


@pytest.mark.parametrize(("fields", "allocatable"), ALLOCATABLE.values(), ids=ALLOCATABLE)
def test_allocatable(fields: dict[str, Any], allocatable: NodeAllocatable) -> None:
    assert read(node("a", **fields)).allocatable == {"a": allocatable}


SITE = read(
    node("db1.rack.example.org", ("InternalIP", "10.0.1.1")),
    node("db2.rack.example.org"),
    node("db2.cage.example.org"),
    node("app1", ("Hostname", "app1")),
    node("app2", ("InternalDNS", "app2.rack.example.org")),
    node("app3"),
    node("10.0.1.9", ("ExternalDNS", "ec2-3-4-5-6.compute.example")),
    # a kubelet reports its addresses itself, and cannot take the names of another node
    node(
        "rogue", ("InternalDNS", "db1.evil.example"), ("Hostname", "app1.evil.example"), ("Hostname", "app3")
    ),
)

TEXTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "a name without a domain": (
        ["db1:9100", "DB1"],
        {"db1:9100": "db1.rack.example.org", "DB1": "db1.rack.example.org"},
    ),
    "two nodes with the same first label": (["db2"], {}),
    "a domain that the node's name does not have": (
        ["app1.rack.example.org:1"],
        {"app1.rack.example.org:1": "app1"},
    ),
    "two such domains": (["app1.rack.example.org", "app1.cage.example.org"], {}),
    "a domain beside the node's own name": (["app3.rack.example.org", "app3"], {"app3": "app3"}),
    "another domain than the node's": (["app2.cage.example.org", "db1.cage.example.org"], {}),
    "an external name": (
        ["ec2-3-4-5-6.compute.example:9100", "ec2-3-4-5-6"],
        {"ec2-3-4-5-6.compute.example:9100": "10.0.1.9", "ec2-3-4-5-6": "10.0.1.9"},
    ),
    "an address is no domain": (["10", "10.0.0.0", "10.0.1.9.example", ""], {}),
}


@pytest.mark.parametrize(("texts", "nodes"), TEXTS.values(), ids=TEXTS)
def test_first_label_identifies_a_node_if_it_is_unambiguous(texts: list[str], nodes: dict[str, str]) -> None:
    assert cooperative_scheduling.run_without_pauses(SITE.find_all(texts)) == nodes


ODD = {
    "no status": {},
    "null in it": {"status": {"addresses": None, "allocatable": None}},
    "a list of it": {"status": {"allocatable": ["cpu"]}},
    "an odd address": {"status": {"addresses": [{"type": 3, "address": []}, {}]}},
}


@pytest.mark.parametrize("more", ODD.values(), ids=ODD)
def test_an_odd_node_is_still_a_node(more: dict[str, Any]) -> None:
    nodes = read(decode({"metadata": {"name": "a"}} | more))
    assert nodes == NodeAttributes({"a": NodeAllocatable(None, None)}, {"a": "a"})


class TestBook:
    def test_it_is_read_again_only_when_something_of_it_changed(self) -> None:
        writer: StoreWriter[Any] = StoreWriter()
        book = NodeAttributesCache(writer.store)

        async def play() -> None:
            assert await book.read() == node_attributes.NO_NODES
            writer.replace([node("a", cpu="1")])
            first = await book.read()
            assert list(first.allocatable) == ["a"]
            writer.apply(node("a", cpu="1"))
            assert await book.read() is first
            writer.apply(node("a", cpu="2"))
            second = await book.read()
            assert second.allocatable["a"].cpu == 2 * NANO
            writer.apply(node("b"))
            assert list((await book.read()).allocatable) == ["a", "b"]
            writer.remove(("", "a"))
            assert list((await book.read()).allocatable) == ["b"]

        asyncio.run(play())
