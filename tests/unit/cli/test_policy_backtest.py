"""`nodewise policy backtest`: what it prints, its page, and what it says about a history that lacks something."""

import json
import time
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner, Result

from nodewise.base import quantity
from nodewise.base.clock import format_rfc3339
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Unavailable
from nodewise.cli.main import command
from nodewise.cli.policy_backtest import html_page
from nodewise.engine import recording_file
from nodewise.engine.recording_file import Header, Record, RecordingWriter, RequestEntry
from nodewise.metrics.prometheus import client
from nodewise.policies.placement_policy import Comparison
from nodewise.policy_tools.policy_backtest import ThresholdCurve
from tests.unit.metrics.fake_prometheus_history import URL, FakeHistory, Value

NOW = 1_700_000_040.0
POLICY = """
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: cool, namespace: web}
spec:
  podSelector: {matchLabels: {app: web}}
  avoid: [{metric: temp, above: 80}]
"""
NODES = "".join(f"---\n{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}}}\n" for name in ("a", "b"))


def minutes_ago(at: float) -> int:
    return round((NOW - at) / 60)


def prometheus(**values: Value) -> FakeHistory:
    fake = FakeHistory(
        {(("__name__", "temp"), ("instance", f"{node}:9100")): value for node, value in values.items()}
    )
    fake.now = NOW
    return fake


def hot(first: int, last: int) -> Value:
    return lambda at: "90" if last <= minutes_ago(at) <= first else "60"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time", lambda: NOW)

    def run(fake: FakeHistory, *options: str, policy: str = POLICY, nodes: str = NODES) -> Result:
        transport = httpx2.MockTransport(fake.answer)
        monkeypatch.setattr(
            client,
            "_create_client",
            lambda *_: httpx2.AsyncClient(base_url=URL, transport=transport),
        )
        (tmp_path / "policy.yaml").write_text(policy + nodes)
        arguments = ["policy", "backtest", str(tmp_path / "policy.yaml"), f"--prometheus-url={URL}", *options]
        return CliRunner().invoke(command, arguments)

    return run


def test_the_text(run) -> None:
    fake = prometheus(a=hot(30, 20), b=hot(25, 24))
    for name, value in {"kube_pod_start_time": str(NOW - 25 * 60), "kube_pod_labels": "1"}.items():
        labels = {"namespace": "web", "pod": "w", "uid": "u", "label_app": "web"}
        fake.instant = {**fake.instant, name: [{"metric": labels, "value": [NOW, value]}]}
    result = run(fake, "--since=1h")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "60 evaluations, one per 1m, of 2 nodes" in lines[0]
    assert "placement policy web/cool" in lines
    assert (
        f"no eligible node: 1 time, 2m in total; the longest: 2m from {format_rfc3339(NOW - 25 * 60)}"
        in lines
    )
    assert "flaps: 0 rejections within an hour after the node passed, 0.0 per hour" in lines
    assert (
        "pods: of 1 selected pods that started, 1 would have waited, the longest 2m, 2m in total;"
        " 0 would have run on another node" in lines
    )
    assert f"a 11m 1 11m from {format_rfc3339(NOW - 30 * 60)}" in lines
    assert any(line.startswith("temp above 80 above 88 ") for line in lines)


TAS_POLICY = """---
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {name: named, namespace: web}
spec: {strategies: {dontschedule: {rules: [{metricname: temp, operator: GreaterThan, target: 80}]}}}
"""


@pytest.mark.parametrize(
    ("labels", "unknown"),
    [
        (None, "app or telemetry-policy"),
        ({}, "app or telemetry-policy"),
        ({"label_tier": "1"}, "app or telemetry-policy"),
        ({"label_app": "web"}, "telemetry-policy"),
    ],
)
def test_labels_that_kube_state_metrics_does_not_export(
    run, labels: dict[str, str] | None, unknown: str
) -> None:
    fake = prometheus(a=hot(30, 20), b=hot(25, 24))
    pod = {"namespace": "web", "pod": "w", "uid": "u"}
    series = {"kube_pod_start_time": (pod, str(NOW - 25 * 60))}
    series |= {} if labels is None else {"kube_pod_labels": (pod | labels, "1")}
    fake.instant = fake.instant | {
        name: [{"metric": metric, "value": [NOW, value]}] for name, (metric, value) in series.items()
    }
    result = run(fake, "--since=1h", "--output=json", policy=POLICY + TAS_POLICY)
    document = json.loads(result.stdout)
    note = f"no pod that started has the label {unknown} in kube-state-metrics"
    assert any(text.startswith(note) for text in document["notes"]), document["notes"]
    pods = {policy["policy"]: policy["pods"] for policy in document["policies"]}
    assert pods["web/cool"]["would_have_waited"] == 1
    assert pods["web/named"] is None, "not 0: it is not known"


def test_pods_of_a_recording(run, tmp_path: Path) -> None:
    def request(name: str, at: float, **labels: str) -> Record:
        pod = {"metadata": {"name": name, "namespace": "web", "uid": name, "labels": labels}}
        body = json.dumps({"Pod": pod, "NodeNames": ["a"]}).encode()
        return recording_file.record(RequestEntry(path="/scheduler/filter", at=at, generation=1), body, b"{}")

    file = tmp_path / "recording.gz"
    writer = RecordingWriter(file.open("wb"))
    header = Header(format=recording_file.FORMAT, nodewise="0", agents=(), sync_period_s=5.0, at=0.0)
    writer.write(recording_file.record(header))
    for name, minutes, app in (("w", 29, "web"), ("w", 25, "web"), ("x", 25, "db"), ("y", 10, "web")):
        writer.write(request(name, NOW - 60 * minutes, app=app))
    writer.close()
    fake = prometheus(a=hot(30, 20), b=hot(25, 24))
    result = run(fake, "--since=1h", "--output=json", f"--recording={file}")
    pods = json.loads(result.stdout)["policies"][0]["pods"]
    assert (pods["selected"], pods["would_have_waited"], pods["wait_s"]["total"]) == (2, 1, 120.0)
    assert not any("kube_pod" in query["query"] for query in fake.queries)
    assert isinstance(run(fake, "--recording=/nowhere").exception, BadInput)


def test_the_page_loads_nothing_and_escapes_texts(run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    policy = POLICY.replace("podSelector", "enforcement: Preferred\n  podSelector", 1)
    fake = prometheus(a=hot(30, 20), b=hot(25, 24), **{"<b>gone": hot(1, 1)})
    result = run(fake, "--since=1h", f"--html={page}", policy=policy)
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "avoided: " in text
    assert "&lt;b&gt;gone:9100" in text
    assert "<b>gone" not in text
    assert "<script" not in text
    assert "default-src 'none'" in text


def test_the_plot_of_a_query_with_characters_of_formulas() -> None:
    query = 'label_replace(t, "node", "$1", "i", "(.+)$")'
    comparison = Comparison("", "above", quantity.NANO, query=query)
    assert "<svg" in html_page.threshold_curve(ThresholdCurve(comparison, [0.0, 1.0, 2.0], [1.0, 0.5, 0.0]))


def test_a_page_that_cannot_be_written_does_not_lose_the_report(run) -> None:
    result = run(prometheus(a=hot(30, 20)), "--since=1h", "--html=/nowhere/page.html")
    assert isinstance(result.exception, BadSettings)
    assert "placement policy web/cool" in result.stdout


@pytest.mark.parametrize(
    ("fake", "options", "message"),
    [
        (prometheus(), ["--since=1h"], "temp: no series in"),
        (prometheus(x=hot(30, 20)), ["--since=1h"], "of x:9100, none of today's nodes"),
        (prometheus(a=lambda _: "NaN"), ["--since=1h"], "several series of each node, or no numbers"),
        (prometheus(a=hot(1, 2)), [f"--until={format_rfc3339(NOW + 600)}"], "--until"),
    ],
    ids=["empty range", "none of today's nodes", "no numbers", "in the future"],
)
def test_a_history_that_cannot_be_used_is_an_error(
    run, fake: FakeHistory, options: list[str], message: str
) -> None:
    result = run(fake, *options)
    assert isinstance(result.exception, BadInput)
    assert message in str(result.exception)


def test_gaps_of_the_history_are_noted(run, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = prometheus(
        a=lambda at: None if minutes_ago(at) > 40 or 10 <= minutes_ago(at) < 15 else "60", gone=hot(30, 20)
    )
    fake.now = NOW + 300
    fake.most_points = 20
    notes = json.loads(run(fake, "--since=1h", "--output=json").stdout)["notes"]
    for note in (
        "clock skew: Prometheus' clock is 5m ahead of the local clock",
        "the history begins at",
        "gaps: for 5m in total, no node has a value of temp",
        "1 of 2 nodes have no history: b",
        "series of 1 names are of none of today's nodes: gone:9100",
        "queries were repeated in halves",
        "pods are not counted: Prometheus has no kube_pod_start_time",
    ):
        assert any(note in text for text in notes), (note, notes)


def test_a_policy_whose_query_needs_trust_rejects_all_nodes(run) -> None:
    """Its Namespace is not in FILE."""
    policy = TAS_POLICY.replace(
        "rules: [", "rules: [{metricname: q, query: x, operator: Equals, target: 1}, "
    )
    result = run(prometheus(a=hot(30, 20)), "--since=1h", policy=policy)
    assert result.exit_code == 0, result.exception
    assert "all nodes rejected for 1h: telemetry policy web/named: namespace web is not trusted" in " ".join(
        result.stdout.split()
    )


def served_by_two(first: Value, second: Value, other: Value) -> FakeHistory:
    """Node a has a series of each of two exporters, node b has one."""
    name = ("__name__", "temp")
    fake = FakeHistory(
        {
            (name, ("instance", "a:9100"), ("job", "ipmi")): first,
            (name, ("instance", "a:9100"), ("job", "redfish")): second,
            (name, ("instance", "b:9100"), ("job", "ipmi")): other,
        }
    )
    fake.now = NOW
    return fake


def test_a_node_is_rejected_while_all_of_its_differing_values_meet_the_rule(run) -> None:
    def first(at: float) -> str:
        return "88.5" if 10 <= minutes_ago(at) <= 40 else "61"

    def second(at: float) -> str:
        return "93" if 20 <= minutes_ago(at) <= 50 else "64"

    fake = served_by_two(first, second, lambda _: "60")
    result = run(fake, "--since=1h", "--output=json")
    document = json.loads(result.stdout)
    [rule] = document["policies"][0]["rules"]
    assert [(entry["node"], entry["rejected_s"]) for entry in rule["nodes"]] == [("a", 21 * 60)]
    assert document["policies"][0]["rejected_share"] == pytest.approx(21 / 120)
    assert not any("no history" in note for note in document["notes"])


def test_a_node_whose_differing_values_met_the_rule_stays_rejected_in_a_gap(run) -> None:
    def until_the_gap(text: str) -> Value:
        return lambda at: text if minutes_ago(at) >= 30 else None

    fake = served_by_two(until_the_gap("88.5"), until_the_gap("93"), until_the_gap("60"))
    [policy] = json.loads(run(fake, "--since=1h", "--output=json").stdout)["policies"]
    assert policy["rejected_share"] == pytest.approx(1 / 2)


def test_modes_and_guards_are_not_considered_and_noted(run) -> None:
    canary = POLICY + "  mode: Shadow\n  guard: {maxRejectedShare: '0.5'}\n"
    document = json.loads(run(prometheus(a=hot(30, 20)), "--since=1h", "--output=json", policy=canary).stdout)
    note = "placement policy web/cool is evaluated as if it were enforced for all pods, without mode Shadow and guard"
    assert note in document["notes"]
    assert document["policies"][0]["rules"][0]["rejections"]


GPUS = """\
apiVersion: nodewise.io/v1alpha1
kind: ClusterPlacementPolicy
metadata: {name: gpus}
spec:
  deviceTaints: [{metric: temp, above: 90, driver: gpu.example.com, deviceLabel: UUID}]
"""


@pytest.mark.parametrize(
    ("options", "policy", "kind", "message"),
    [
        (["--step=0s"], POLICY, BadSettings, "--step"),
        (["--since=10s"], POLICY, BadSettings, "--since"),
        (["--prometheus-url=http://b"], POLICY, BadSettings, "and http://b; expected one URL, whose history"),
        (["--until=yesterday"], POLICY, BadSettings, "--until"),
        ([], POLICY.replace("avoid: [{metric: temp, above: 80}]", "prefer: [{metric: temp, order: Ascending}]"),
         BadInput,
         "no rules that reject nodes"),
        ([], "", BadInput, "no policy"),
        ([], GPUS.replace("90", "90%"), BadInput, "gpus: spec.deviceTaints[0].above: '90%'"),
        ([], POLICY.replace("above", "abuve"), BadInput, "web/cool: spec.avoid[0].abuve: an unknown field"),
    ],
)  # fmt: skip
def test_settings_and_policies_that_cannot_be_used(
    run, options: list[str], policy: str, kind: type[NodewiseError], message: str
) -> None:
    result = run(prometheus(a=hot(30, 20)), *options, policy=policy)
    assert isinstance(result.exception, kind)
    assert message in str(result.exception)


def test_a_prometheus_that_is_unreachable_is_an_error_that_names_the_option(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("All connection attempts failed", request=request)

    fake = prometheus(a=hot(30, 20))
    monkeypatch.setattr(fake, "answer", refuse)
    result = run(fake, "--since=1h")
    assert isinstance(result.exception, Unavailable)
    assert "(start Prometheus, or correct --prometheus-url)" in str(result.exception)
