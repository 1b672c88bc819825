"""`nodewise decide --cluster` with the settings and metric values of a running nodewise."""

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.engine import metric_values_endpoint
from nodewise.kube.resource_kinds import DEVICE_CLASSES, NAMESPACES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from tests.cluster import device_objects
from tests.unit.cli.running_replica import AT, POLICY, Replica, heat, replica

__all__ = ["replica"]


def test_values_of_the_replica_decide_at_its_time(replica: Replica) -> None:
    replica.serve(MetricsSnapshot({"heat": heat(90, 70)}))
    document = replica.decide()
    [decision] = document["decisions"]
    assert decision["feasible"] == ["b"]
    assert document["inputs"] == ("settings and metric values of Pod/nodewise/nw-1, fetched at most 2s ago")
    assert "with settings and metric values of Pod/nodewise/nw-1" in replica.run().stdout


def test_settings_of_the_replica_apply_unless_the_user_gives_them(replica: Replica) -> None:
    replica.serve(MetricsSnapshot({"heat": heat(70, 90)}), allowed_metrics="power")
    assert replica.decide(expected=3)["decisions"][0]["feasible"] == []
    assert replica.decide("--allowed-metrics=heat")["decisions"][0]["feasible"] == ["a"]


def test_the_maximum_age_is_that_of_the_replicas_period(replica: Replica) -> None:
    old = MetricsSnapshot({"heat": heat(90, 70, age_s=200.0)})
    replica.serve(old, sync_period_s=60.0)
    assert replica.decide()["decisions"][0]["feasible"] == ["b"]
    replica.serve(old, sync_period_s=5.0)
    [decision] = replica.decide(expected=3)["decisions"]
    assert decision["feasible"] == []


def test_files_and_sources_of_the_user_override_the_values(replica: Replica, tmp_path: Path) -> None:
    replica.serve(MetricsSnapshot({"heat": heat(90, 70)}))
    file = tmp_path / "heat.csv"
    file.write_text("a,heat,1\nb,heat,99\n")
    assert replica.decide(str(file))["decisions"][0]["feasible"] == ["a"]
    document = replica.decide(f"--metrics=file:{file}")
    assert document["decisions"][0]["feasible"] == ["a"]
    assert document["inputs"].startswith("settings of Pod/nodewise/nw-1")


def test_standard_input_is_read_once(replica: Replica) -> None:
    replica.serve(MetricsSnapshot({"heat": heat(90, 70)}))
    document = POLICY | {"spec": POLICY["spec"] | {"avoid": [{"metric": "heat", "below": 80}]}}
    assert replica.decide("--policy=-", stdin=json.dumps(document))["decisions"][0]["feasible"] == ["a"]


def test_a_failure_in_the_replica_is_reported_with_its_cause(replica: Replica) -> None:
    why = "prometheus: query heat: HTTP status 503"
    replica.serve(MetricsSnapshot({}, {"heat": why}))
    done = replica.run()
    assert done.returncode == 3
    assert why in done.stderr


def test_without_a_replica_a_message_names_the_settings_that_apply(replica: Replica) -> None:
    done = replica.run("-o", "json")
    assert (
        "are those of this command, not of a running nodewise: no replica of nodewise answers" in done.stderr
    )
    assert "inputs" not in json.loads(done.stdout)
    replica.api.forward.refusals["nw-1"] = 403
    done = replica.run()
    assert "pods/portforward" in done.stderr


@pytest.mark.parametrize(
    ("namespace", "code", "message"),
    [
        ("wbe", 1, "--namespace: 'wbe'; expected a namespace of the cluster; did you mean \"web\"?"),
        ("unlike", 1, "--namespace: 'unlike'; expected a namespace of the cluster"),
        ("idle", 0, ""),
    ],
)
def test_a_namespace_that_does_not_exist_is_an_error(
    replica: Replica, namespace: str, code: int, message: str
) -> None:
    for name in ("web", "idle"):
        namespace_object = {"metadata": {"name": name}}
        replica.api.objects.put(NAMESPACES, namespace_object)
    done = replica.run("-n", namespace)
    assert done.returncode == code
    assert done.stderr.splitlines()[1:] == ([f"nodewise: decide: {message}"] if message else [])
    assert done.stdout == ("" if message else "no pod waits\n")


def test_pods_of_files_may_be_in_another_namespace_than_those_of_the_cluster(
    replica: Replica, tmp_path: Path
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text("{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: planned}}\n")
    assert replica.run(str(path), "-n", "planned").returncode == 0


def test_pages_are_read_to_the_end(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_values_endpoint, "MAX_PAGE_VALUES", 1)
    other = msgspec.structs.replace(heat(1, 1), metric="dust")
    metrics = MetricsSnapshot({"heat": heat(90, 70), "dust": other})
    replica.serve(metrics)
    header = metric_values_endpoint.decode_page(replica.pages[""]).header
    replica.pages["dust"] = cooperative_scheduling.run_without_pauses(
        metric_values_endpoint.encode_page(header, metrics, "dust", AT)
    )
    assert replica.decide()["decisions"][0]["feasible"] == ["b"]


_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "metadata": {"name": "gpu.example.com"},
    "spec": {"extendedResourceName": "example.com/gpu"},
}
_CLAIM = {"metadata": {"name": "gpu", "namespace": "web"}, "spec": device_objects.claim("gpu")["spec"]}
_DOES_NOT_FIT = "the claims do not fit the free devices"


@pytest.mark.parametrize(
    ("spec", "misfits", "request_name"),
    [
        (
            {"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]},
            {"a": "the node has no devices for the claims", "b": _DOES_NOT_FIT},
            "gpu",
        ),
        # node a may have the resource from a device plugin
        (
            {"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]},
            {"b": _DOES_NOT_FIT},
            "container-0-request-0",
        ),
    ],
    ids=["claim", "extended resource"],
)
def test_devices_are_checked_without_the_agent_gpu(
    replica: Replica, spec: dict[str, object], misfits: dict[str, str], request_name: str
) -> None:
    """The running nodewise does not have the agent gpu, which neither rejects nor scores nodes then."""
    api = replica.api.objects
    taint = {"key": "sick", "effect": "NoSchedule"}
    devices = [device_objects.device("gpu-0", taints=[taint]), device_objects.device("gpu-1")]
    api.put(RESOURCE_SLICES, device_objects.resource_slice("b", devices))
    api.put(DEVICE_CLASSES, _CLASS)
    api.put(RESOURCE_CLAIMS, _CLAIM)
    pod = {"metadata": {"name": "waits", "namespace": "web", "uid": "p1"}, "spec": spec, "status": {}}
    api.put(PODS, pod)
    replica.serve(MetricsSnapshot({"heat": heat(90, 70)}))
    api.calls.clear()
    [decision] = replica.decide()["decisions"]
    lists = Counter(path for verb, path in api.calls if verb == "list")
    assert [path for path, count in lists.items() if count > 1 and not path.endswith("/pods")] == []
    assert (decision["feasible"], decision.get("misfits")) == (["b"], None)
    assert decision["details"]["b"] == {"gpu": f"devices {request_name}: gpu-1"}
    assert decision["scores"] == {"b": 0}
    replica.serve(MetricsSnapshot({"heat": heat(70, 70)}))
    api.put(RESOURCE_SLICES, device_objects.resource_slice("b", devices[:1]))
    [decision] = replica.decide(expected=3 if len(misfits) == 2 else 0)["decisions"]
    assert (decision["misfits"], decision["rejected"]) == (misfits, {})
    replica.api.refused = RESOURCE_SLICES.plural
    [decision] = replica.decide()["decisions"]
    assert (decision["feasible"], decision.get("misfits")) == (["a", "b"], None)
    for kind in (RESOURCE_SLICES, RESOURCE_CLAIMS, DEVICE_CLASSES):
        replica.api.refused = kind.plural
        stderr = replica.run().stderr
        assert f"whether free devices fit pods is not known without {kind.plural}" in stderr
        assert "Traceback" not in stderr
