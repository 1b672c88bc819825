"""Malformed GPU labels and annotations of nodes and tenants: each gets a reason, and other pods are unaffected."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nodewise.agents.gpu import allocation_record, gpu_arrays
from nodewise.kube.resource_kinds import LEASES, NODES, PODS
from tests.hostile import gpu_cluster, json_strategies
from tests.hostile.gpu_cluster import GOOD, PREFIX, GpuCluster, amounts, container, node, one_gpu_pod, pod

NUMBERS = f"{PREFIX}gpu-numbers"
CARDS = "nodewise.io/gpu-cards"
D = "telemetry.aware.scheduling."
TWO = {NUMBERS: "0.1"}
ROOM = amounts(i915=200, millicores=2000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuCluster]:
    with gpu_cluster.running_cluster(tmp_path_factory.mktemp("gpu")) as made:
        yield made
        assert made.target.process.is_running
        made.check_others()


def _labelled(**more: Any) -> dict[str, Any]:
    return TWO | {PREFIX + key.replace("_", "-"): value for key, value in more.items()}


def _annotated(text: Any) -> tuple[Any, Any, Any]:
    return TWO, ROOM, {CARDS: text}


FIT: dict[str, tuple[Any, Any, Any]] = {
    # labels, allocatable, annotations of nodes on which a small pod still fits
    "numbers twice": ({NUMBERS: "0.0.0.1..1"}, ROOM, None),
    "links that are none": (_labelled(xe_links="0.0-1.0_x_-_0.0"), ROOM, None),
    "links with huge numbers": (_labelled(xe_links=f"{10**300}.0-1.0"), ROOM, None),
    "100,000 links": (_labelled(xe_links="_".join(f"0.{n}-1.{n}" for n in range(100_000))), ROOM, None),
    "a NUMA map that is none": (_labelled(numa_gpu_map="----"), ROOM, None),
    "100,000 NUMA nodes": (_labelled(numa_gpu_map="_".join(f"{n}-0" for n in range(100_000))), ROOM, None),
    "bus groups without end": (
        _labelled(pci_groups="_".join(map(str, range(50_000))))
        | {f"{D}p/gas-disable-card{n}": "PCI_GROUP" for n in range(10, 20_000)},
        ROOM,
        None,
    ),
    "labels continued by others": (_labelled(xe_links="0.0-1.0", xe_links2="no Z"), ROOM, None),
    "marks of cards nobody has": (
        TWO | {f"{D}p/gas-disable-{name}": "x" for name in (*json_strategies.TEXTS, "card9")},
        ROOM,
        None,
    ),
    "tiles nobody has": (TWO | {f"{D}p/gas-tile-disable-card0_gt{n}": "" for n in range(999)}, ROOM, None),
    "preferring every text": (
        TWO | {f"{D}p{n}/gas-prefer-gpu": text for n, text in enumerate(json_strategies.TEXTS)},
        ROOM,
        None,
    ),
    "other amounts that cannot be read": (
        TWO,
        ROOM
        | {
            f"{PREFIX}x{n}": text
            for n, text in enumerate((*json_strategies.QUANTITIES, *json_strategies.NUMBERS, None, [], {}))
        },
        None,
    ),
    "tiles beyond all numbers": (TWO, ROOM | amounts(tiles=2**62), None),
    "labels that are no texts": (
        TWO | {"a": 7, f"{PREFIX}xe-links": [], f"{D}p/gas-prefer-gpu": {}},
        ROOM,
        None,
    ),
    "cards of odd companions": _annotated(
        json.dumps([1, None, {}, {"name": 7}, {"name": "card0"}, {"name": "card0"}, {"name": "n" * 99}])
    ),
    "cards with a key twice": _annotated('[{"name":"card5","name":"card0","capacity":null,"capacity":null}]'),
}
NOT: dict[str, tuple[Any, Any, Any]] = {
    # the same, of nodes on which the pod does not fit
    "no labels": (None, ROOM, None),
    "numbers of every odd text": ({NUMBERS: ".".join(json_strategies.TEXTS)}, amounts(i915=0), None),
    "100,000 numbers": ({NUMBERS: ".".join(map(str, range(100_000)))}, ROOM, None),
    "numbers beside a broken continuation": ({NUMBERS: "0", f"{NUMBERS}2": "1"}, ROOM, None),
    "negative amounts": (TWO, amounts(i915=-200, millicores=-2000), None),
    "no whole amounts": (TWO, amounts(i915="0.5", millicores="100m"), None),
    "huge amounts": (TWO, amounts(i915=2**64, millicores="9" * 300), None),
    "amounts that are infinite": (TWO, amounts(i915="1e999999999", millicores="Inf"), None),
    "empty amounts": (TWO, amounts(i915="", millicores=" "), None),
    "allocatable that is a list": (TWO, [1, 2], None),
    "allocatable that is a text": (TWO, "much", None),
    "1,000 resources": (TWO, ROOM | {f"{PREFIX}x{n}": "64" for n in range(1000)}, None),
    "both cards disabled": (TWO | {f"{D}p/gas-disable-card{n}": "" for n in (0, 1)}, ROOM, None),
    "cards nested too deep": _annotated("[" * 100_000),
    "cards that are no JSON": _annotated("\x00{"),
    "cards that are an object": _annotated("{}"),
    "cards that are null": _annotated("null"),
    "an empty text of cards": _annotated(""),
    "no cards": _annotated("[]"),
    "100,000 cards": _annotated(json.dumps([{"name": f"card{n}"} for n in range(10_000)])),
    "cards of huge amounts": _annotated(
        f'[{{"name":"card0","capacity":{{"{PREFIX}i915":{"9" * 5000},"{PREFIX}millicores":1e308}}}}]'
    ),
    "cards of negative amounts": _annotated(f'[{{"name":"card0","capacity":{{"{PREFIX}i915":-1}}}}]'),
    "capacity that is a list": _annotated('[{"name":"card0","capacity":[1]}]'),
    "capacity of strangers": _annotated('[{"name":"card0","capacity":{"nvidia.com/gpu":1,"":2}}]'),
}

QUIET = {
    # nodes without a problem, or with content that cannot be interpreted
    "no cards",
    "both cards disabled",
    "labels that are no texts",
    "cards with a key twice",
    "allocatable that is a list",
    "allocatable that is a text",
}


def test_nodes_of_every_wrong_shape(cluster: GpuCluster) -> None:
    """Each node passes or gets a reason, and the state lists its problems."""
    fit = {f"fit-{at}": arguments for at, arguments in enumerate(FIT.values())}
    rest = {f"not-{at}": arguments for at, arguments in enumerate(NOT.values())}
    for name, arguments in (fit | rest).items():
        cluster.put(NODES, node(name, *arguments))
    cluster.settle()
    kept, failed = cluster.filter(one_gpu_pod("p"), [*fit, *rest, *GOOD])
    names_by_node = dict(zip(fit, FIT, strict=True)) | dict(zip(rest, NOT, strict=True))
    assert [names_by_node[name] for name in failed if name in fit] == []
    assert [names_by_node[name] for name in kept if name in rest] == []
    assert all(why.startswith("Not enough GPU-resources") and len(why) < 300 for why in failed.values())
    for name in (*fit, *rest):
        problems = cluster.allocations(name).get("problems", ["has no cards, and says so"])
        assert problems or names_by_node[name] in QUIET, names_by_node[name]
        assert len(problems) < 60
        assert all(len(text) < 500 for text in problems), (names_by_node[name], problems)
    cluster.check_others()
    for name in (*fit, *rest):
        cluster.remove(NODES, name)
    cluster.settle()
    cluster.check_others()


def test_nodes_that_invent_resources_do_not_fill_the_memory(cluster: GpuCluster) -> None:
    """150 nodes of 64 GPUs, each with 60 resources of its own."""
    cards = json.dumps([{"name": f"card{at}"} for at in range(64)])
    names = [f"inventive-{number}" for number in range(150)]
    before = cluster.target.rss_mib()
    for name in names:
        own = {f"{PREFIX}{name}-{at}": "64" for at in range(60)}
        cluster.put(NODES, node(name, {}, amounts(i915=640, millicores=64_000) | own, {CARDS: cards}))
    cluster.settle()
    assert cluster.filter(one_gpu_pod("p"), [*names, *GOOD]) == ([*names, *GOOD], {})
    events = [
        name
        for name in names
        if any("count as absent" in text for text in cluster.allocations(name)["problems"])
    ]
    assert len(events) >= len(names) - gpu_arrays.MOST // 60 - 1
    lost = pod("p", container("main", {f"{PREFIX}i915": "1", f"{PREFIX}{events[-1]}-59": "1"}))
    assert events[-1] in cluster.filter(lost, events)[1]
    assert cluster.target.rss_mib() < before + 300
    cluster.check_others()
    for name in names:
        cluster.remove(NODES, name)
    cluster.settle()


def _many(count: int, **each: Any) -> list[dict[str, Any]]:
    return [container(f"c{number}", amounts(**each)) for number in range(count)]


ALWAYS = {"restartPolicy": "Always"}


def _with_init(containers: list[Any], init: list[Any], more: Any = None) -> dict[str, Any]:
    """A pod with init containers, which have further fields."""
    spec = {"containers": containers, "initContainers": [made | (more or {}) for made in init]}
    return pod("p") | {"spec": spec}


ASKED: dict[str, tuple[Any, str]] = {
    # a pod, and the reason of its rejection; empty if it fits
    "64 containers": (pod("p", *_many(64, i915=1)), ""),
    "65 containers": (pod("p", *_many(65, i915=1)), "bad args"),
    "5,000 containers": (pod("p", *_many(5000, i915=1)), "bad args"),
    "64 names that share a card": (
        pod("p", *_many(64, i915=1, millicores=1), gas_same_gpu=",".join(f"c{at}" for at in range(64))),
        "",
    ),
    "20,000 names that share a card": (
        pod("p", *_many(2, i915=1), gas_same_gpu="c0,c1," * 10_000),
        "malformed",
    ),
    "80,000 names that share a card": (
        pod("p", *_many(2, i915=1), gas_same_gpu="c0,c1," * 40_000),
        "bad args",
    ),
    "as many cards as nobody has": (pod("p", *_many(1, i915=10**18)), "will not fit"),
    "that many linked": (pod("p", *_many(1, i915=10**18), gas_allocate_xelink="x"), "will not fit"),
    "that many of one NUMA node": (
        pod("p", *_many(1, i915=10**18), gas_allocate_single_numa="x"),
        "will not fit",
    ),
    "that many in each of some containers": (pod("p", *_many(9, i915=10**18)), "bad args"),
    "20,000 resources": (
        pod("p", container("main", {f"{PREFIX}i915": "1"} | {f"{PREFIX}x{n}": "1" for n in range(20_000)})),
        "bad args",
    ),
    "sums beyond 64 bits": (
        pod("p", *_many(2, i915=1, millicores=2**62), gas_same_gpu="c0,c1"),
        "integer overflow",
    ),
    "a card in an init container only": (
        _with_init([], _many(1, i915=1)),
        "init container c0 asks for 1 GPU",
    ),
    "5,000 init containers with cards": (_with_init(_many(1, i915=1), _many(5000, i915=1)), "bad args"),
    "5,000 sidecars with cards": (_with_init(_many(1, i915=1), _many(5000, i915=1), ALWAYS), "bad args"),
    "5,000 init containers without cards": (_with_init(_many(1, i915=1), _many(5000)), "bad args"),
    "100 sidecars without cards": (_with_init(_many(1, i915=1), _many(100, i915=0), ALWAYS), ""),
    "63 init containers with cards": (_with_init(_many(1, i915=2), _many(63, i915=2)), ""),
    "as many cards as nobody has, at first": (
        _with_init(_many(1, i915=1), _many(1, i915=10**18)),
        "init container c0 asks for 1000000000000000000 GPUs; the containers after it have 1",
    ),
    "as many cards as nobody has, in all": (
        _with_init(_many(1, i915=10**18), _many(1, i915=10**18)),
        "will not fit",
    ),
    "as many cards as nobody has, beside": (
        _with_init(_many(1, i915=1), _many(1, i915=10**18), ALWAYS),
        "will not fit",
    ),
    "amounts of an init container beyond 64 bits": (
        _with_init(_many(4, i915=1, millicores=2**62), _many(1, i915=1, millicores=2**63)),
        "bad args",
    ),
    "sums of later containers beyond 64 bits": (
        _with_init(_many(4, i915=1, millicores=2**62), _many(1, i915=1, millicores=2**63 - 1)),
        "will not fit",
    ),
    "models without a name": (one_gpu_pod("p", **{"nodewise.io/gpu-models": " , "}), "malformed"),
    "a placement that is none": (one_gpu_pod("p", **{"nodewise.io/gpu-placement": "\x00"}), "malformed"),
    "30,000 models": (one_gpu_pod("p", **{"nodewise.io/gpu-models": "m," * 30_000}), "malformed"),
    "100,000 models": (one_gpu_pod("p", **{"nodewise.io/gpu-models": "m," * 100_000}), "bad args"),
    "lists that nobody reads": (one_gpu_pod("p", gas_allow="," * 60_000, gas_deny="card0"), ""),
    **{
        f"an amount {text[:30]!r}": (pod("p", *_many(1, i915=1, millicores=text)), "bad args")
        for text in ("-1", "", "0.5", "1e999999999", "NaN", "9" * 300, "٣", "0x10", "5Kii")
    },
}
UNREAD = {
    # pods that cannot be parsed: the response is an error
    "requests that are a list": pod("p", {"name": "c", "resources": {"requests": [1]}}),
    "containers that are an object": pod("p") | {"spec": {"containers": {}}},
    "a name that is a number": pod("p", {"name": 7}),
    "an annotation that is a list": pod("p", *_many(1, i915=1), gas_same_gpu=[]),
}


@pytest.mark.parametrize(("pod", "why"), ASKED.values(), ids=list(ASKED))
def test_a_pod_that_asks_for_odd_things(cluster: GpuCluster, pod: Any, why: str) -> None:
    kept, failed = cluster.filter(pod, GOOD)
    if why:
        assert kept == []
        assert all(why in text and len(text) < 300 for text in failed.values()), failed
    else:
        assert (kept, failed) == (list(GOOD), {})
    cluster.check_others()


@pytest.mark.parametrize("pod", UNREAD.values(), ids=list(UNREAD))
def test_a_pod_that_cannot_be_read(cluster: GpuCluster, pod: Any) -> None:
    with cluster.target.line() as line:
        answer = line.ask("/scheduler/filter", gpu_cluster.request_body(pod, GOOD))
    assert answer.status == 400, answer.body[:300]
    cluster.check_others()


BOUND: dict[str, tuple[dict[str, str], int]] = {
    # annotations of pods that were bound without nodewise, and the number of GPUs that they hold
    "nothing": ({}, 0),
    "an empty text": ({"gas_container_cards": ""}, 0),
    "cards nobody has": ({"gas_container_cards": "cardx,card0 ,\x00"}, 0),
    "too many containers": ({"gas_container_cards": "card0|card0"}, 0),
    "one card and odd tiles": (
        {"gas_container_cards": "card0", "gas_container_tiles": "card0:gt-1+gt9999999999:|,:,"},
        1,
    ),
    "100,000 cards": ({"gas_container_cards": "card0," * 100_000}, 0),
    "100,000 containers": ({"gas_container_cards": "|" * 100_000}, 0),
}


def test_pods_that_were_bound_with_odd_annotations(cluster: GpuCluster) -> None:
    """The pods hold the GPUs that can be parsed; the rest is reported as a problem of the node."""
    for number, (notes, _) in enumerate(BOUND.values()):
        cluster.bound(one_gpu_pod(f"odd-{number}", **notes), "good1")
    cluster.settle()
    assert cluster.held("good1") == {"card0": sum(count for _, count in BOUND.values()), "card1": 0}
    problems = cluster.allocations("good1")["problems"]
    assert len(problems) >= len(BOUND) - 2
    assert all(len(text) < 500 for text in problems)
    cluster.check_others()
    for number in range(len(BOUND)):
        cluster.remove(PODS, f"odd-{number}", "d")
    cluster.settle()
    assert cluster.held("good1") == {"card0": 0, "card1": 0}


ENTRY = {"pod": "d/gone", "cards": "card0", "seen": "99999999999", "charged": [{f"{PREFIX}i915": 1}]}
LEDGERS: dict[str, tuple[str, int]] = {
    # an allocation record, and the number of pods that hold card0 according to it
    "no JSON": ("{", 0),
    "a list": ("[]", 0),
    "null": ("null", 0),
    "nested too deep": ('{"u":' * 100_000, 0),
    "an entry nested too deep": ('{"u":' + "[" * 100_000, 0),
    "an entry that cannot be read beside one that can": (json.dumps({"a": 7, "b": ENTRY}), 1),
    "an entry twice": ('{"b":' + json.dumps(ENTRY) + ',"b":' + json.dumps(ENTRY) + "}", 1),
    "amounts beyond 64 bits": (
        json.dumps({"b": ENTRY | {"charged": [{f"{PREFIX}i915": 10**30}]}}),
        2**63 - 1,
    ),
    "negative amounts": (json.dumps({"b": ENTRY | {"charged": [{f"{PREFIX}i915": -5}]}}), 0),
    "amounts of other containers": (json.dumps({"b": ENTRY | {"charged": []}}), 0),
    "a pod without a name": (json.dumps({"": ENTRY | {"pod": ""}}), 1),
    "versions that are none": (json.dumps({"b": ENTRY | {"seen": "٣"}}), 1),
    "a version of 5,000 digits": (json.dumps({"b": ENTRY | {"seen": "9" * 5000}}), 1),
    "100,000 cards": (json.dumps({"b": ENTRY | {"cards": "card0," * 100_000}}), 100_000),
}


def test_ledgers_of_every_wrong_shape(cluster: GpuCluster) -> None:
    """Only nodewise may write records; with any content, other nodes and the process are unaffected."""
    for text, count in LEDGERS.values():
        cluster.put_record("good2", text)
        if count:  # wait for it, since the leader soon removes entries of unknown pods
            cluster.target.until(
                f"{count} of {text[:80]}", lambda count=count: cluster.held("good2")["card0"] == count
            )
            continue
        cluster.settle()
        assert cluster.held("good2")["card0"] == count, (text[:80], cluster.allocations("good2")["problems"])
    cluster.remove(LEASES, "gpu-good2", gpu_cluster.OWN)
    cluster.settle()
    cluster.check_others()


def test_written_annotations_do_not_change_allocations(cluster: GpuCluster) -> None:
    """Annotations have no effect before the pod is bound and while it runs; the allocation record decides."""
    forged = one_gpu_pod("forged", gas_container_cards="card1", gas_container_tiles="card1:gt0", gas_ts="1")
    made = cluster.put(PODS, forged)
    assert json.loads(cluster.bind(made, "good1").body)["Error"] == ""
    now = cluster.find("forged")
    assert now["metadata"]["annotations"]["gas-container-cards"] == "card0"
    assert now["metadata"]["annotations"]["gas-container-tiles"] == ""
    for text in ("", "card1", "card0|card1", "," * 10_000):
        now["metadata"]["annotations"]["gas-container-cards"] = text
        cluster.put(PODS, now)
        cluster.settle()
        assert cluster.held("good1") == {"card0": 1, "card1": 0}
    cluster.remove(PODS, "forged", "d")
    cluster.settle()
    assert cluster.held("good1") == {"card0": 0, "card1": 0}


def test_two_pods_of_one_name(cluster: GpuCluster) -> None:
    """The second pod does not inherit the GPUs of the first, and a bind of the first pod does not affect the second."""
    first = cluster.put(PODS, one_gpu_pod("twin", uid="uid-first"))
    assert json.loads(cluster.bind(first, "good1").body)["Error"] == ""
    cluster.remove(PODS, "twin", "d")
    second = cluster.put(PODS, one_gpu_pod("twin", uid="uid-second"))
    cluster.settle()
    assert cluster.held("good1") == {"card0": 0, "card1": 0}
    assert json.loads(cluster.bind(first, "good2").body)["Error"]
    assert not cluster.find("twin")["spec"].get("nodeName")
    assert json.loads(cluster.bind(second, "good2").body)["Error"] == ""
    cluster.settle()
    expected = ({"card0": 0, "card1": 0}, {"card0": 1, "card1": 0})
    assert (cluster.held("good1"), cluster.held("good2")) == expected
    cluster.remove(PODS, "twin", "d")
    cluster.settle()


def test_thousands_of_victims(cluster: GpuCluster) -> None:
    """A preempt call with 5000 unknown victims on each node."""
    victims = {"Pods": [{"UID": f"nobody-{number}"} for number in range(5000)], "NumPDBViolations": 0}
    names = [*GOOD, "n1", *(f"nowhere-{number}" for number in range(30))]
    body = {"Pod": one_gpu_pod("p"), "NodeNameToMetaVictims": dict.fromkeys(names, victims)}
    with cluster.target.line() as line:
        answer = line.ask("/scheduler/preempt", json.dumps(body).encode())
    assert answer.status == 200
    assert set(json.loads(answer.body)["NodeNameToMetaVictims"]) == set(GOOD)
    cluster.check_others()


def test_a_pod_of_many_cards_fits_where_the_entry_is_still_small(cluster: GpuCluster) -> None:
    """The reservation of the largest pod leaves space in the record for others."""
    made = cluster.put(PODS, pod("large", *_many(allocation_record.MOST_CONTAINERS, i915=1, millicores=1)))
    assert json.loads(cluster.bind(made, "good1").body)["Error"] == ""
    text = cluster.server.call(
        lambda api: api.objects(LEASES)[gpu_cluster.OWN, "gpu-good1"]["metadata"]["annotations"]
    )["nodewise.io/holdings"]
    assert len(text) < 32_000
    cluster.remove(PODS, "large", "d")
    cluster.settle()
    cluster.check_others()
