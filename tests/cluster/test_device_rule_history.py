"""Device rules in `policy backtest`, `policy diff` and `policy recording-rules`, on a real Prometheus."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from nodewise.base.clock import format_rfc3339
from tests.cluster import debian_packages, device_objects, kubernetes_objects, read_only_commands
from tests.cluster.api_client import Object
from tests.cluster.device_objects import DRIVER
from tests.cluster.prometheus_process import PrometheusProcess

NODES: Final = ("n1", "n2")
GPUS: Final = 4
STEPS: Final = 180
"""Minutes."""
HOT: Final[Object] = {
    "metric": "DCGM_FI_DEV_GPU_TEMP",
    "above": 90,
    "release": 80,
    "for": "3m",
    "driver": DRIVER,
    "deviceLabel": "UUID",
    "deviceAttribute": "uuid",
}
XID: Final[Object] = {
    "query": "DCGM_FI_DEV_XID_ERRORS == 79",
    "above": 0,
    "emptyMeans": "Healthy",
    "keepFor": "10m",
    "driver": DRIVER,
    "deviceLabel": "gpu",
    "deviceAttribute": "index",
    "effect": "NoExecute",
    "maxTaintedShare": "0.2",
}


def temperature(node: str, gpu: int, minute: int) -> float | None:
    """n1/0 is hot for 20 minutes and cools down slowly; n2/1 flickers; n2/2 loses its exporter while it is hot; at the
    end three GPUs are hot.
    """
    if (node, gpu) == ("n1", 0):
        return 95 if 30 <= minute < 50 else 85 if 50 <= minute < 60 else 70
    if (node, gpu) == ("n2", 1):
        return 95 if minute % 2 and minute < 170 else 70
    if (node, gpu) == ("n2", 2) and minute >= 70:
        return 99 if minute < 80 else None if minute < 110 else 60
    return 96 if minute >= 170 and gpu >= 2 else 50


def samples(start: float) -> Iterator[str]:
    for node in NODES:
        for gpu in range(GPUS):
            labels = f'gpu="{gpu}",UUID="GPU-{node}-{gpu}",Hostname="{node}",node="{node}"'
            for minute in range(STEPS):
                if (value := temperature(node, gpu, minute)) is not None:
                    yield f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} {value} {start + 60 * minute:.3f}"
    labels = 'gpu="1",UUID="GPU-n1-1",Hostname="n1",node="n1"'
    for minute in range(STEPS):
        yield f"DCGM_FI_DEV_XID_ERRORS{{{labels}}} {79 if 100 <= minute < 105 else 0} {start + 60 * minute:.3f}"


class HeldHistory(NamedTuple):
    url: str
    start: float
    folder: Path

    def time(self, minute: int) -> str:
        return format_rfc3339(self.start + 60 * minute)

    def write(self, name: str, *rules: Object, **spec: Any) -> Path:
        file = self.folder / name
        policy = {
            "apiVersion": "nodewise.io/v1alpha1",
            "kind": "ClusterPlacementPolicy",
            "metadata": {"name": "gpus"},
            "spec": {"deviceTaints": list(rules), **spec},
        }
        file.write_text(yaml.safe_dump(policy))
        return file


def slice_of(node: str) -> Object:
    return device_objects.resource_slice(
        node,
        [
            device_objects.device(f"gpu-{gpu}", attributes={"uuid": f"GPU-{node}-{gpu}", "index": gpu})
            for gpu in range(GPUS)
        ],
    )


@pytest.fixture(scope="module")
def held(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HeldHistory]:
    folder = tmp_path_factory.mktemp("device-rules")
    start = (time.time() - 60 * STEPS) // 60 * 60
    objects = [*map(kubernetes_objects.node, NODES), *map(slice_of, NODES)]
    (folder / "objects.yaml").write_text(yaml.safe_dump_all(objects))
    server = PrometheusProcess(prometheus_programs, folder / "prometheus", {})
    server.hold_samples(samples(start))
    server.start()
    try:
        yield HeldHistory(server.url, start, folder)
    finally:
        server.stop()


def backtest(held: HeldHistory, policy: Path, *options: str) -> Any:
    command = ["policy", "backtest", str(policy), str(held.folder / "objects.yaml")]
    done = read_only_commands.run(
        *command, f"--prometheus-url={held.url}", f"--until={held.time(STEPS - 1)}", "--since=170m", *options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_backtest_replays_for_release_keep_for_and_limit(held: HeldHistory) -> None:
    policy, page = held.write("policy.yaml", HOT, XID, mode="Shadow"), held.folder / "page.html"
    report = json.loads(backtest(held, policy, "--output=json", f"--html={page}"))
    [gpus] = report["device_policies"]
    assert report["policies"] == []
    assert [
        (taint["device"].removeprefix(f"{DRIVER}/"), taint["effect"], taint["from"], taint["to"])
        for taint in gpus["taints"]
    ] == [
        ("n1/gpu-0", "NoSchedule", held.time(33), held.time(60)),
        ("n2/gpu-2", "NoSchedule", held.time(73), held.time(110)),
        ("n1/gpu-1", "NoExecute", held.time(100), held.time(115)),
        ("n1/gpu-2", "NoSchedule", held.time(173), held.time(180)),
        ("n1/gpu-3", "NoSchedule", held.time(173), held.time(180)),
    ]
    assert (gpus["devices"], gpus["most_tainted"], gpus["limited_s"]) == (8, 2, 420)
    text = backtest(held, policy)
    assert "taints: 5 DeviceTaintRules would have been written, for 5 of 8 devices; at most 2 at once" in text
    assert "limit: for 7m, maxTaintedShare kept devices that meet a rule from a taint" in text
    assert f"{DRIVER}/n2/gpu-2  37m      1" in text
    assert "Devices that were tainted for the longest time" in page.read_text()


def test_backtest_names_labels_without_device_of_series_that_have_ended(held: HeldHistory) -> None:
    rule = {name: value for name, value in XID.items() if name != "emptyMeans"} | {"deviceLabel": "UUID"}
    report = json.loads(backtest(held, held.write("policy.yaml", rule), "--output=json"))
    assert '1 value of the label "UUID", "GPU-n1-1", is' in report["device_policies"][0]["unmatched"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"deviceLabel": "uid"}, "without the label uid; expected deviceLabel"),
        ({"metric": "DCGM_TEMP"}, "DCGM_TEMP: no series in"),
    ],
)
def test_backtest_without_values_of_devices_says_why(
    held: HeldHistory, change: Mapping[str, Any], expected: str
) -> None:
    policy = held.write("policy.yaml", HOT | dict(change))
    files = [str(policy), str(held.folder / "objects.yaml")]
    done = read_only_commands.run(
        "policy", "backtest", *files, f"--prometheus-url={held.url}", "--since=170m"
    )
    assert done.returncode == 1
    assert expected in done.stderr


def diff(held: HeldHistory, *options: str, code: int = 3) -> str:
    files = [str(held.folder / name) for name in ("old.yaml", "new.yaml", "objects.yaml")]
    done = read_only_commands.run(
        "policy", "diff", *files, "--metrics=prometheus", f"--prometheus-url={held.url}", *options
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_diff_lists_rules_and_devices_that_change(held: HeldHistory) -> None:
    now = {name: value for name, value in HOT.items() if name != "for"} | {
        "maxAge": "10m",
        "maxTaintedShare": "0.5",
    }
    held.write("old.yaml", now)
    held.write("new.yaml", now | {"above": 97}, XID | {"maxAge": "10m"})
    lines = [" ".join(line.split()) for line in diff(held).splitlines()]
    rule = "DCGM_FI_DEV_GPU_TEMP above {} (release 80): NoSchedule for gpu.example.com by UUID = uuid"
    reason = "NoSchedule: DCGM_FI_DEV_GPU_TEMP above 90 (release 80)"
    assert lines[:3] == [
        "cluster placement policy gpus: device rule",
        f"before: {rule.format(90)}, maxTaintedShare 0.5",
        f"after: {rule.format(97)}, maxTaintedShare 0.5",
    ]
    assert [line for line in lines if line.startswith(DRIVER)] == [
        f"{DRIVER}/n1/gpu-2 {reason} not tainted",
        f"{DRIVER}/n1/gpu-3 {reason} not tainted",
        f"{DRIVER}/n2/gpu-3 {reason} not tainted",
    ]
    assert lines[-1].endswith("2 device rules and 3 of 8 devices change")
    document = json.loads(diff(held, "--output=json"))
    assert [each["after"] for each in document["devices"]] == [{"effect": None, "reason": None}] * 3
    held.write("new.yaml", now)
    assert diff(held, code=0).splitlines()[-1] == "nothing changes"
    held.write("new.yaml", now | {"above": "97%"})
    lines = diff(held).splitlines()
    assert lines[0].startswith(
        "Note: cluster placement policy gpus is invalid, so its taints stay as they are: "
    )
    assert lines[-1].endswith("1 device rule and 0 of 8 devices change")
    held.write("new.yaml", HOT | {"maxAge": "10m", "maxTaintedShare": "0.25"})
    lines = [" ".join(line.split()) for line in diff(held).splitlines()]
    assert f"{DRIVER}/n1/gpu-2 {reason} not tainted yet, because of for" in lines


def test_diff_compares_taints_over_the_history(held: HeldHistory) -> None:
    rule = {**HOT, "maxAge": "10m", "maxTaintedShare": "0.5"}
    held.write("old.yaml", rule)
    held.write("new.yaml", rule | {"above": 98})
    since = f"--since={STEPS + (time.time() - held.start - 60 * STEPS) // 60:.0f}m"
    document = json.loads(diff(held, since, "--output=json"))
    devices = {each.pop("device").removeprefix(f"{DRIVER}/"): each for each in document["history"]["devices"]}
    # hot from minute 30 on, tainted after 3 minutes, and below 80 from minute 60 on
    assert devices["n1/gpu-0"] == {
        "effect": "NoSchedule",
        "before": 27 * 60,
        "after": 0,
        "only_before": 27 * 60,
        "only_after": 0,
    }
    lines = [" ".join(line.split()) for line in diff(held, since).splitlines()]
    assert f"{DRIVER}/n1/gpu-0 NoSchedule 27m 0 27m 0" in lines, lines
    held.write("new.yaml", rule)
    document = json.loads(diff(held, since, "--output=json", code=0))
    assert document["history"]["devices"] == []
