"""`nodewise devices` from files: what it prints, its exit codes, and hostile names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodewise.cli import main

DRIVER = "gpu.example.com"


def slice_of(node: str, count: int, **spec: Any) -> dict[str, Any]:
    devices = [
        {
            "name": f"gpu-{number}",
            "capacity": {"memory": {"value": "80Gi"}},
            "attributes": {"index": {"int": number}},
        }
        for number in range(count)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-s"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices, **spec},
    }


def claim_of(name: str, node: str, device: str, pod: str = "train") -> dict[str, Any]:
    result = {"request": "r", "driver": DRIVER, "pool": node, "device": device}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": "u"}],
        },
    }


CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}
NODES = [slice_of("a", 4), slice_of("b", 2), claim_of("c", "a", "gpu-1"), CLASS]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_devices(objects: list[dict[str, Any]], *arguments: str) -> tuple[int, str, str]:
        file = tmp_path / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        with pytest.raises(SystemExit) as ended:
            main.run(["devices", "--objects-from", str(file), *arguments])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run_devices


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_nodes_are_listed_with_the_claims_that_still_fit(run: Run) -> None:
    code, out, _ = run(NODES)
    assert (code, cells(out)) == (
        0,
        [
            ["NODE", "DRIVERS", "DEVICES", "FREE", "ALLOCATED"],
            ["a", DRIVER, "4", "3", "1"],
            ["b", DRIVER, "2", "2", "0"],
            ["6", "devices", "on", "2", "nodes:", "5", "free,", "1", "allocated"],
            [],
            [
                "CLAIM",
                "SIZE",
                "CLAIMS",
                "THAT",
                "FIT",
                "ON",
                "NODES",
                "FREE",
                "DEVICES",
                "OUT",
                "OF",
                "REACH",
            ],
            ["1", "5", "2", "0%"],
            ["2", "2", "2", "20%"],
            ["4", "0", "0", "100%"],
        ],
    )


def test_a_node_is_listed_by_device_with_holders_and_taints(run: Run) -> None:
    sick = slice_of("a", 2)
    sick["spec"]["devices"][0]["taints"] = [{"key": "xid", "value": "79", "effect": "NoSchedule"}]
    code, out, _ = run([sick, claim_of("c", "a", "gpu-1")], "a")
    assert code == 0
    assert cells(out)[1:3] == [
        ["a", "gpu-0", DRIVER, "a", "free", "-", "-", "memory", "80Gi", "xid=79:NoSchedule", "(driver)"],
        ["a", "gpu-1", DRIVER, "a", "allocated", "team/c", "team/train", "memory", "0", "of", "80Gi", "-"],
    ]


@pytest.mark.parametrize(("size", "code", "first"), [("3", 0, "a"), ("4", 3, "a"), ("2", 0, "a")])
def test_a_claim_that_fits_nowhere_is_a_negative_answer(run: Run, size: str, code: int, first: str) -> None:
    ended, out, _ = run(NODES, "--claim", size, "--class", "gpu")
    assert ended == code
    assert cells(out)[1][0] == first


def test_json_has_all_that_is_known(run: Run) -> None:
    _, out, _ = run(NODES, "-o", "json", "--claim", "2")
    document = json.loads(out)
    assert [(node["node"], node["claims"]) for node in document["nodes"]] == [("a", 1), ("b", 1)]
    assert document["nodes"][0]["devices"][1] == {
        "driver": DRIVER,
        "pool": "a",
        "device": "gpu-1",
        "state": "allocated",
        "available": False,
        "attributes": {f"{DRIVER}/index": 1},
        "capacity": {f"{DRIVER}/memory": {"value": "80Gi", "free": "0"}},
        "holders": [{"namespace": "team", "claim": "c", "request": "r", "pods": ["train"], "consumed": {}}],
        "taints": [],
    }
    assert document["fits"][1] == {"devices": 2, "claims": 2, "nodes": 2, "fragmentation": pytest.approx(0.2)}


def test_an_incomplete_pool_is_named(run: Run) -> None:
    pool = {"name": "a", "generation": 3, "resourceSliceCount": 2}
    code, out, _ = run([slice_of("a", 2, pool=pool)])
    assert code == 0
    assert f"pool {DRIVER}/a: found 1 of 2 slices of generation 3" in out
    assert run([slice_of("a", 2, pool=pool)], "--claim", "1")[0] == 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--class", "gpo"], 2, "found 'gpo', expected the name of a DeviceClass; did you mean \"gpu\"?"),
        (["--claim", "-1"], 2, "-1"),
        (["--claim", "many"], 2, "many"),
        (["worker-1"], 3, "found no devices of node worker-1"),
    ],
)
def test_an_unknown_name_or_invalid_size_is_refused(
    run: Run, arguments: list[str], code: int, message: str
) -> None:
    ended, _, error = run(NODES, *arguments)
    assert ended == code
    assert message.removeprefix("found ").partition(",")[0] in error


def test_without_devices_nothing_is_listed(run: Run) -> None:
    assert run([CLASS])[:2] == (3, "found no devices: no DRA driver has published a ResourceSlice\n")


def test_names_of_tenants_cannot_write_to_the_terminal(run: Run) -> None:
    for arguments in (["a"], ["-o", "wide"]):
        _, out, _ = run([slice_of("a", 2), claim_of("c\x1b[2J", "a", "gpu-0", "p\r\n")], *arguments)
        assert "\x1b" not in out
        assert "\r" not in out


def test_devices_of_the_network_are_listed_once(run: Run) -> None:
    everywhere = slice_of("net", 2, nodeName=None, allNodes=True)
    _, out, _ = run([slice_of("a", 1), everywhere])
    assert [line[0] for line in cells(out)[1:3]] == ["a", "(network)"]
    _, out, _ = run([slice_of("a", 1), everywhere], "a")
    assert [line[1] for line in cells(out)[1:4]] == ["gpu-0", "gpu-0", "gpu-1"]


UNMATCHED = {
    **CLASS,
    "metadata": {"name": "other"},
    "spec": {"selectors": [{"cel": {"expression": "false"}}]},
}
UNEVALUATED = {
    **CLASS,
    "metadata": {"name": "broken"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver =="}}]},
}


@pytest.mark.parametrize("arguments", [(), ("a",), ("-o", "wide"), ("--claim", "1")])
def test_a_class_without_devices_is_named(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run([*NODES, UNMATCHED], *arguments, "--class", "other")
    assert (code, err) == (3, "nodewise: found no devices of DeviceClass other\n")
    assert "published" not in out


def test_a_class_that_cannot_be_evaluated_is_named_with_the_number_of_devices(run: Run) -> None:
    code, _, err = run([*NODES, UNEVALUATED], "--class", "broken")
    expected = (
        "the selectors of DeviceClass broken cannot be evaluated for 6 devices, which count as not available"
    )
    assert (code, err) == (0, f"nodewise: {expected}\n")


def test_a_node_that_does_not_exist_has_no_devices_of_the_network(run: Run) -> None:
    network = slice_of("net", 2, nodeName="", allNodes=True)
    nodes = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in ("worker-1", "worker-2")
    ]
    assert run([network, *nodes], "worker-1")[0] == 0
    code, _, err = run([network, *nodes], "worker-3")
    assert (code, err) == (3, 'nodewise: found no node worker-3; did you mean "worker-2"?\n')


def test_network_devices_are_no_node(run: Run) -> None:
    code, out, _ = run([slice_of("net", 2, nodeName="", allNodes=True), slice_of("a", 1)])
    assert code == 0
    assert "3 devices on 1 node and the network: 3 free" in out


def test_json_has_attributes_of_all_types(run: Run) -> None:
    types = {
        "version": {"version": "1.2.3"},
        "versions": {"versions": ["1.0.0", "2.0.0"]},
        "ints": {"ints": [1, 2]},
        "bool": {"bool": False},
        "zero": {"int": 0},
        "empty": {"string": ""},
        "newer": {"colour": "red"},
    }
    _, out, _ = run([slice_of("a", 1, devices=[{"name": "gpu-0", "attributes": types}])], "-o", "json")
    attributes = json.loads(out)["nodes"][0]["devices"][0]["attributes"]
    assert {name.removeprefix(f"{DRIVER}/"): value for name, value in attributes.items()} == {
        "version": "1.2.3",
        "versions": ["1.0.0", "2.0.0"],
        "ints": [1, 2],
        "bool": False,
        "zero": 0,
        "empty": "",
        "newer": None,
    }
