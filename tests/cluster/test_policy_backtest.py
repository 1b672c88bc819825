"""A backtest over the history of a real Prometheus, and the agreement of its verdicts with `nodewise decide`."""

import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from nodewise.base.clock import format_rfc3339, parse_rfc3339
from tests.cluster import debian_packages, read_only_commands
from tests.cluster.api_client import Object
from tests.cluster.prometheus_process import PrometheusProcess

NODES = ("cold", "hot", "late", "wave")
STEP_S = 60
HOURS = 6
STEPS = HOURS * 60
POLICY = """
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: cool, namespace: web}
spec:
  podSelector: {matchLabels: {app: web}}
  avoid:
  - {metric: temp, above: 80}
  - {metric: load, above: 4, aggregate: max, whenMissing: Reject}
"""


def temperature(node: str, minute: int) -> float | None:
    """`hot` is above 80 in the fourth hour, `wave` in every third half hour, all nodes for ten minutes at the end."""
    if node == "late" and minute < 60:
        return None
    if 340 <= minute < 350:
        return 90
    if node == "hot" and 180 <= minute < 240:
        return 85.5
    if node == "wave":
        return round(70 + 12.3 * math.sin(minute / 15), 2)
    return 60


def samples(start: float) -> Iterator[str]:
    for node in NODES:
        for minute in range(STEPS):
            value = temperature(node, minute)
            if value is not None:
                yield f'temp{{instance="{node}:9100"}} {value} {start + 60 * minute:.3f}'
    for node in NODES:
        for cpu in range(2):
            for minute in range(60 if node == "late" else 0, STEPS):
                yield f'load{{instance="{node}:9100",cpu="{cpu}"}} {cpu + minute % 4} {start + 60 * minute:.3f}'
    # starts while every node is hot, on a hot node, and on a good node
    for number, (minute, node) in enumerate([(342, "cold"), (200, "hot"), (200, "cold")]):
        labels = f'namespace="web",pod="web-{number}",uid="u{number}"'
        at = start + 60 * minute + 5
        for later in range(minute + 1, STEPS):
            time_text = f"{start + 60 * later:.3f}"
            yield f"kube_pod_start_time{{{labels}}} {at} {time_text}"
        for later in range(minute + 1, STEPS):
            yield f'kube_pod_info{{{labels},node="{node}",created_by_kind="ReplicaSet"}} 1 {start + 60 * later:.3f}'
        for later in range(minute + 1, STEPS):
            yield f'kube_pod_labels{{{labels},label_app="web"}} 1 {start + 60 * later:.3f}'


class Held(NamedTuple):
    url: str
    start: float
    folder: Path

    def backtest(self, *options: str) -> Object:
        command = ["policy", "backtest", str(self.folder / "objects.yaml"), f"--prometheus-url={self.url}"]
        until = format_rfc3339(self.start + 60 * (STEPS - 1))
        done = read_only_commands.run(*command, f"--until={until}", *options)
        assert done.returncode == 0, done.stderr
        report: Object = json.loads(done.stdout)
        return report


@pytest.fixture(scope="module")
def held(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Held]:
    folder = tmp_path_factory.mktemp("backtest")
    start = (time.time() - HOURS * 3600) // STEP_S * STEP_S
    nodes = "".join(
        f"---\n{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}}}\n" for name in (*NODES, "new")
    )
    (folder / "objects.yaml").write_text(POLICY + nodes)
    server = PrometheusProcess(prometheus_programs, folder / "prometheus", {})
    server.hold_samples(samples(start))
    server.start()
    try:
        yield Held(server.url, start, folder)
    finally:
        server.stop()


def test_rejections_outages_and_pods_are_those_of_the_history(held: Held) -> None:
    page = held.folder / "page.html"
    report = held.backtest("--since=7h", "--output=json", f"--html={page}")
    assert any("the history begins at" in note for note in report["notes"])
    assert any("1 of 5 nodes have no history: new" in note for note in report["notes"])
    [policy] = report["policies"]
    minute = {interval["from"]: interval for interval in policy["without_eligible_node"]}
    assert list(minute) == [format_rfc3339(held.start + 60 * 340)]
    assert minute.popitem()[1]["to"] == format_rfc3339(held.start + 60 * 350)
    assert policy["pods"] == {
        "selected": 3,
        "would_have_waited": 1,
        "wait_s": {"total": 475.0, "longest": 475.0},
        "would_have_run_elsewhere": 1,
    }
    hot = [entry for entry in policy["rules"][0]["rejections"] if entry["node"] == "hot"]
    assert [(entry["from"], entry["to"]) for entry in hot] == [
        (format_rfc3339(held.start + 60 * first), format_rfc3339(held.start + 60 * last))
        for first, last in ((180, 240), (340, 350))
    ]
    assert [row["change"] for row in policy["alternatives"]][:1] == ["without it"]
    text = page.read_text()
    assert text.count("<svg") == 4
    assert "http://" not in text.replace("http://www.w3.org/", "")


def test_at_random_times_it_agrees_with_decide_on_the_same_values(held: Held) -> None:
    report = held.backtest("--since=5h", "--output=json")
    rules = report["policies"][0]["rules"]
    chance = random.Random(20)
    pod = "---\n{apiVersion: v1, kind: Pod, metadata: {name: w, namespace: web, labels: {app: web}}}\n"
    (held.folder / "pod.yaml").write_text(pod)
    for minute in chance.sample(range(70, STEPS), 10):
        at = held.start + 60 * minute
        lines = [f"{node},temp,{temperature(node, minute)}" for node in NODES]
        lines += [f"{node},load,{1 + minute % 4}" for node in NODES]
        (held.folder / "metrics.csv").write_text("\n".join(lines))
        files = [str(held.folder / name) for name in ("objects.yaml", "pod.yaml", "metrics.csv")]
        done = read_only_commands.run("decide", *files, "-o", "json", "--now", format_rfc3339(at))
        rejected = set(json.loads(done.stdout)["decisions"][0]["rejected"]) - {"new"}
        expected = {
            entry["node"]
            for rule in rules
            for entry in rule["rejections"]
            if parse_rfc3339(entry["from"]) <= at < parse_rfc3339(entry["to"])
        }
        assert rejected == expected, minute
