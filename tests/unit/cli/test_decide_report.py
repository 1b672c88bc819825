"""The tables of `nodewise decide`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from nodewise.cli import main

OBJECTS = """
apiVersion: v1
kind: Node
metadata: {name: fan-1}
---
apiVersion: v1
kind: Node
metadata: {name: fan-2}
---
apiVersion: v1
kind: Node
metadata: {name: fan-3}
---
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: fans, namespace: web}
spec:
  podSelector: {}
  avoid: [{metric: fan_errors, above: 3}]
---
apiVersion: v1
kind: Pod
metadata: {name: shop, namespace: web}
spec: {containers: [{name: shop, image: shop}]}
"""
METRICS = """
apiVersion: custom.metrics.k8s.io/v1beta2
kind: MetricValueList
metadata: {}
items:
- describedObject: {kind: Node, name: fan-1}
  metric: {name: fan_errors}
  timestamp: "2026-05-01T10:00:00Z"
  value: "2"
- describedObject: {kind: Node, name: fan-2}
  metric: {name: fan_errors}
  timestamp: "2026-05-01T09:55:30Z"
  value: "9"
"""


def decide(folder: Path, *options: str) -> str:
    (folder / "objects.yaml").write_text(OBJECTS)
    (folder / "metrics.yaml").write_text(METRICS)
    files = [str(folder / name) for name in ("objects.yaml", "metrics.yaml")]
    return CliRunner().invoke(main.command, ["decide", *files, "--agents", "telemetry", *options]).output


def test_wide_table_marks_values_that_no_rule_compares(tmp_path: Path) -> None:
    table = decide(tmp_path, "-o", "wide")
    measured = {line[1]: " ".join(line[3:-1]) for line in map(str.split, table.splitlines()[1:])}
    assert measured == {
        "fan-1": "fan_errors=2",
        "fan-2": "fan_errors=9 (stale, 4m30s old)",
        "fan-3": "fan_errors=missing",
    }


def test_every_format_marks_values_of_the_future(tmp_path: Path) -> None:
    before = ("--now", "2026-05-01T09:55:00Z")
    table = decide(tmp_path, *before, "-o", "wide")
    for text in ("fan_errors=2 (5m in the future)", "fan_errors=9 (30s in the future)", "fan_errors=missing"):
        assert f"  {text}  " in table
    values = json.loads(decide(tmp_path, *before, "-o", "json"))["decisions"][0]["values"]
    expected = {"fan-1": ("fresh", -300.0), "fan-2": ("fresh", -30.0), "fan-3": ("missing", None)}
    assert {value["node"]: (value["state"], value["age_s"]) for value in values} == expected
    assert (
        decide(tmp_path, *before)
        .splitlines()[1]
        .endswith(
            "1 placement policy web/fans: fan_errors above 3; "
            "fan_errors has a time in the future on 2 nodes: fan-1, fan-2"
        )
    )


def test_table_marks_values_that_no_rule_compares_without_their_ages(tmp_path: Path) -> None:
    """The ages change all the time, and --watch prints the table again when a row changes."""
    for now, nodes in (("10:00:00", "1 node: fan-2"), ("10:01:30", "2 nodes: fan-1, fan-2")):
        [_, row] = decide(tmp_path, "--now", f"2026-05-01T{now}Z").splitlines()
        assert row.endswith(f" fan_errors is stale on {nodes}")


CLAIMING = """
apiVersion: v1
kind: Node
metadata: {name: fan-1}
---
apiVersion: v1
kind: Pod
metadata: {name: shop, namespace: web}
spec:
  containers: [{name: shop, image: shop}]
  resourceClaims: [{name: gpu, resourceClaimName: gpu}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: gpu, namespace: web}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: a}}]}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: a}
spec: {}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: a
  nodeName: fan-1
  pool: {name: fan-1, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}]
"""


def test_pods_with_claims_are_decided_by_the_gpu_agent_without_an_option(tmp_path: Path) -> None:
    (tmp_path / "claiming.yaml").write_text(CLAIMING)
    table = CliRunner().invoke(main.command, ["decide", str(tmp_path / "claiming.yaml")]).output
    assert "devices gpu: gpu-0" in table


OTHER_NODE = """
---
apiVersion: v1
kind: Node
metadata: {name: cpu-1}
"""
OTHER_SLICE = (
    OTHER_NODE
    + """
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: c}
spec:
  driver: a
  nodeName: cpu-1
  pool: {name: cpu-1, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}]
"""
)
NETWORK_SLICE = """
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: network}
spec:
  driver: nic
  SCOPE
  pool: {name: fabric, generation: 1, resourceSliceCount: 1}
  devices: [{name: nic-0, allNodes: true}]
"""


STATUS = """
status:
  reservedFor: [{resource: pods, name: POD, uid: o}]
  allocation:
    devices: {results: [{request: gpu, driver: a, pool: NODE, device: gpu-0}]}
    nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [NODE]}]}]}
"""


def allocated(pod: str, node: str) -> str:
    """The objects with the claim allocated on a node, and in use by a pod."""
    spec = "{name: gpu, exactly: {deviceClassName: a}}]}}"
    return CLAIMING.replace(spec, spec + STATUS.replace("POD", pod).replace("NODE", node))


@pytest.mark.parametrize("placement", ["first-fit", "pack"])
@pytest.mark.parametrize(
    ("objects", "fits", "misfits"),
    [
        (
            CLAIMING.replace("deviceClassName: a}", "deviceClassName: a, count: 2}") + OTHER_NODE,
            [],
            {
                "fan-1": "the claims do not fit the free devices",
                "cpu-1": "the node has no devices for the claims",
            },
        ),
        (CLAIMING + OTHER_NODE, ["fan-1"], {"cpu-1": "the node has no devices for the claims"}),
        (CLAIMING + OTHER_NODE + NETWORK_SLICE.replace("SCOPE", "allNodes: true"), ["fan-1", "cpu-1"], {}),
        (
            CLAIMING + OTHER_NODE + NETWORK_SLICE.replace("SCOPE", "perDeviceNodeSelection: true"),
            ["fan-1", "cpu-1"],
            {},
        ),
        (
            allocated("other", "fan-1") + OTHER_SLICE,
            ["fan-1"],
            {"cpu-1": "a claim in use has devices of another node"},
        ),
        # kube-scheduler takes the devices from the claim if no other pod uses it
        (allocated("shop", "fan-1") + OTHER_SLICE, ["fan-1", "cpu-1"], {}),
        # the driver does not publish the device any more
        (
            allocated("other", "cpu-1") + OTHER_NODE,
            ["cpu-1"],
            {"fan-1": "a claim in use has devices of another node"},
        ),
        (
            CLAIMING.replace(
                "spec: {}", """spec: {selectors: [{cel: {expression: 'device.driver == "a"'}}]}"""
            )
            + OTHER_NODE
            + NETWORK_SLICE.replace("SCOPE", "allNodes: true"),
            ["fan-1"],
            {"cpu-1": "the node has no devices for the claims"},
        ),
    ],
    ids=[
        "too few",
        "no devices",
        "devices of all nodes",
        "scope by device",
        "devices that other pods use",
        "devices that no other pod uses",
        "devices in use without a slice",
        "other devices of all nodes",
    ],
)
def test_nodes_whose_free_devices_do_not_fit_are_named_and_not_counted(
    tmp_path: Path, placement: str, objects: str, fits: list[str], misfits: dict[str, str]
) -> None:
    file = tmp_path / "claiming.yaml"
    file.write_text(objects)
    options = [str(file), "--gpu-placement", placement]
    result = CliRunner().invoke(main.command, ["decide", *options])
    row = result.output.splitlines()[1].split(maxsplit=3)
    assert row[1] == f"{len(fits)}/2"
    assert (row[2] == "-") == (not fits)
    assert all(f"1 {reason}" in row[3] for reason in misfits.values())
    assert result.exit_code == (0 if fits else 3)
    document = json.loads(CliRunner().invoke(main.command, ["decide", *options, "-o", "json"]).output)
    (decision,) = document["decisions"]
    assert (decision["feasible"], decision.get("misfits", {}), decision["rejected"]) == (fits, misfits, {})
    wide = CliRunner().invoke(main.command, ["decide", *options, "-o", "wide"]).output
    assert {line.split()[1] for line in wide.splitlines()[1:]} == {"fan-1", "cpu-1"}


@pytest.mark.parametrize("options", [("intel", "first-fit"), ("intel", "pack"), ("nvidia", "pack")])
@pytest.mark.parametrize(
    ("counted", "fits"),
    [
        # cpu-1 has no devices for the claim
        ("other.example/gpu", ["fan-1"]),
        # kube-scheduler counts what the nodes offer
        ("nvidia.com/gpu", ["fan-1", "cpu-1"]),
    ],
)
def test_nodes_that_offer_the_extended_resource_of_a_pod_with_a_claim_are_counted(
    tmp_path: Path, options: tuple[str, str], counted: str, fits: list[str]
) -> None:
    offer = "\nstatus: {allocatable: {nvidia.com/gpu: 2}}"
    objects = CLAIMING.replace("{name: fan-1}", "{name: fan-1}" + offer, 1).replace(
        "image: shop}", "image: shop, resources: {requests: {nvidia.com/gpu: 1}}}"
    )
    gpus = f"""
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: gpu}}
spec: {{extendedResourceName: {counted}, selectors: [{{cel: {{expression: 'device.driver == "gpu"'}}}}]}}
"""
    file = tmp_path / "claiming.yaml"
    file.write_text(objects + OTHER_NODE + offer + gpus)
    profile, placement = options
    arguments = [str(file), "--gpu-profile", profile, "--gpu-placement", placement, "-o", "json"]
    document = json.loads(CliRunner().invoke(main.command, ["decide", *arguments]).output)
    assert document["decisions"][0]["feasible"] == fits
