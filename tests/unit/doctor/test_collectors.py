"""The facts that `nodewise doctor` collects from a fake API server, and the printed reports."""

import asyncio
import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from nodewise.agents.gpu.vendor_resource_names import INTEL, NVIDIA
from nodewise.base import errors
from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadSettings, Problem, Refused, Unavailable
from nodewise.cli.doctor import command, print_findings_json, print_findings_table, use_program_name
from nodewise.doctor.check_runner import examine, fields_of_needed_facts
from nodewise.doctor.collectors import COLLECTORS, collect_facts
from nodewise.doctor.collectors.nodes import parse_node
from nodewise.doctor.collectors.policies import evaluate_policies, parse_policy, policy_objects
from nodewise.doctor.collectors.rights_and_admission_policies import collect_node_restriction
from nodewise.doctor.collectors.schedulers import read_configuration_file
from nodewise.doctor.collectors.session import ClusterReader, ExaminationTarget, Session, attempt, parse_json
from nodewise.doctor.collectors.workloads import ReplicaPod, read_metrics
from nodewise.doctor.facts import (
    Facts,
    GpuNodeInfo,
    NodewiseWorkload,
    PolicyEvaluation,
    UnavailableFact,
    UsageSamples,
)
from nodewise.doctor.findings import CATALOGUE, Report
from nodewise.doctor.parsing.objects import Workload
from nodewise.doctor.parsing.scheduler_configuration import SchedulerConfiguration
from nodewise.kube.api_server_interface import DEADLINE_S, NONE, NotFound, Params
from nodewise.kube.resource_kinds import NODES
from nodewise.metrics.series import Sample, Series
from nodewise.policies.node_labels import VERDICT_LABEL_PREFIX
from tests.unit.doctor.facts_factory import AUTHORITY, CONFIGURATION, ENTRY, OWN, SOUND, entry

ALL = {"metadata": {"name": "p", "namespace": "web"}}
POLICIES = "/apis/telemetry.intel.com/v1alpha1/taspolicies"
PLACEMENT_POLICIES = "/apis/nodewise.io/v1alpha1/placementpolicies"
CLUSTER_PLACEMENT_POLICIES = "/apis/nodewise.io/v1alpha1/clusterplacementpolicies"
PLAIN = {name: value for name, value in ENTRY.items() if name not in ("enableHTTPS", "tlsConfig")}
LOOPBACK = {**CONFIGURATION, "extenders": [{**PLAIN, "urlPrefix": "http://127.0.0.1:9001/scheduler"}]}

TAS, PLACEMENT = "telemetry.intel.com/v1alpha1", "nodewise.io/v1alpha1"
DISCOVERY = {
    "/apis": {
        "kind": "APIGroupList",
        "groups": [{"versions": [{"groupVersion": TAS}]}, {"versions": [{"groupVersion": PLACEMENT}]}],
    },
    f"/apis/{TAS}": {"kind": "APIResourceList", "resources": [{"name": "taspolicies"}]},
    f"/apis/{PLACEMENT}": {
        "kind": "APIResourceList",
        "resources": [{"name": "placementpolicies"}, {"name": "clusterplacementpolicies"}],
    },
}
"""The kinds of an API server with all definitions."""

HOT = {"metricname": "heat", "operator": "GreaterThan", "target": 80}


class ScriptedApi:
    """An API server with lists and objects by path. Paths that contain a word of `forbidden` are forbidden, and pages
    have one item.
    """

    def __init__(self, objects: Mapping[str, Any], forbidden: tuple[str, ...] = ()) -> None:
        self._objects = objects
        self._forbidden = forbidden
        self.requests: list[str] = []

    async def get(
        self, path: str, params: Params = NONE, *, timeout_s: float = DEADLINE_S, **_: Any
    ) -> bytes:
        path = unquote(path)
        self.requests.append(path)
        if any(word in path for word in self._forbidden):
            raise Refused(f"get {path}", [Problem("", 'nodes is forbidden: User "x" cannot', "")])
        if path == "/version":
            return msgspec.json.encode(self._objects.get(path, {"gitVersion": "v1.36.3"}))
        if path in DISCOVERY and path not in self._objects:
            return msgspec.json.encode(DISCOVERY[path])
        value = self._objects.get(path)
        is_list = path.count("/") < 6 and "configmaps" not in path
        if isinstance(value, NotFound):
            raise value
        if isinstance(value, list) or (value is None and is_list):
            return _page(value or [], params)
        if value is None:
            raise NotFound(path)
        return msgspec.json.encode(value)

    async def create(self, path: str, body: object, params: Params = NONE, *, timeout_s: float = 0) -> bytes:
        self.requests.append(path)
        return b'{"status": {"allowed": true}}'


def _page(items: list[Any], params: Params) -> bytes:
    if params.get("fieldSelector"):
        items = [item for item in items if not item["spec"].get("nodeName")]
    number = int(params.get("continue", "0"))
    remaining = len(items) - number - 1
    metadata = {"continue": str(number + 1), "remainingItemCount": remaining} if remaining > 0 else {}
    return msgspec.json.encode({"items": items[number : number + 1], "metadata": metadata})


def facts(objects: Mapping[str, Any], forbidden: tuple[str, ...] = (), *files: str) -> Facts:
    """The facts of a cluster with these objects."""
    api: Any = ScriptedApi(objects, forbidden)
    return asyncio.run(_collect(api, ExaminationTarget(files, namespaces=("nodewise",))))


async def _collect(api: Any, target: ExaminationTarget, *skip: str) -> Facts:
    return await collect_facts(Session(reader(api), target), fields_of_needed_facts(skip))


def reader(api: Any) -> ClusterReader:
    return ClusterReader(api, 5.0, lambda _: None)


def deployment(name: str, namespace: str, *containers: Any, volumes: Any = ()) -> dict[str, Any]:
    spec = {"containers": list(containers), "volumes": list(volumes)}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 1, "template": {"metadata": {"labels": {"app": name}}, "spec": spec}},
        "status": {"readyReplicas": 1},
    }


def second_scheduler(namespace: str = "nodewise") -> dict[str, Any]:
    """A scheduler and nodewise in one pod."""
    mounts = [{"name": "config", "mountPath": "/etc/nodewise"}]
    scheduler = {
        "name": "scheduler",
        "image": "registry.k8s.io/kube-scheduler:v1.36.3",
        "command": ["kube-scheduler", "--config=/etc/nodewise/scheduler.yaml"],
        "volumeMounts": mounts,
    }
    nodewise = {
        "name": "nodewise",
        "command": ["nodewise", "extender", "--agents=safe", "--no-cluster", "--unsafe"],
    }
    volumes = [{"name": "config", "configMap": {"name": "second"}}]
    return deployment("second", namespace, scheduler, nodewise, volumes=volumes)


def static_scheduler(config: str = "/etc/kubernetes/s.yaml") -> dict[str, Any]:
    """The mirror pod of a control plane's kube-scheduler."""
    words = ["kube-scheduler", *([f"--config={config}"] if config else [])]
    mounts = [{"name": "s", "mountPath": "/etc/kubernetes/s.yaml"}]
    container = {"name": "kube-scheduler", "command": words, "volumeMounts": mounts}
    volumes = [{"name": "s", "hostPath": {"path": "/etc/kubernetes/s.yaml"}}]
    return {
        "metadata": {
            "name": "kube-scheduler-cp",
            "namespace": "kube-system",
            "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [{"kind": "Node"}],
        },
        "spec": {
            "containers": [container],
            "volumes": volumes,
            "hostNetwork": True,
            "nodeName": "not-this-host",
        },
    }


DEPLOYMENTS = "/apis/apps/v1/deployments"
MAP = {"data": {"scheduler.yaml": yaml.safe_dump(LOOPBACK)}}
SECOND = {DEPLOYMENTS: [second_scheduler()], "/api/v1/namespaces/nodewise/configmaps/second": MAP}


def test_a_second_scheduler_by_its_config_map() -> None:
    cluster = facts(SECOND)
    (scheduler,) = cluster.schedulers
    assert scheduler.where == "ConfigMap/nodewise/second"
    assert isinstance(scheduler.configuration, SchedulerConfiguration)
    assert scheduler.configuration.entries[0].is_nodewise
    (nodewise,) = cluster.extenders
    assert (nodewise.agents, nodewise.workload.where) == (("safe",), "Deployment/nodewise/second")


def test_a_config_map_that_may_not_be_read_is_said_with_its_right() -> None:
    report = examine(facts(SECOND, ("configmaps",)))
    rights = [finding.expected for finding in report.findings if finding.id == "not-looked-at"]
    assert "the right to get configmaps second in namespace nodewise" in rights


@pytest.mark.parametrize("data", ["{", "kind: Pod", "a: &a [*a]", "", "- 1\n- 2", "\x00"])
def test_a_config_map_that_holds_no_configuration_is_not_sound(data: str) -> None:
    held = {"/api/v1/namespaces/nodewise/configmaps/second": {"data": {"scheduler.yaml": data}}}
    report = examine(facts({**SECOND, **held}))
    assert not report.has_no_errors_or_warnings
    assert "extender-not-registered" in dict(report.not_checked)


@pytest.mark.parametrize("name", ["..", "../../../nodes/n", "a/b"])
def test_a_volume_whose_name_is_a_path_is_not_looked_up(name: str) -> None:
    scheduler = second_scheduler()
    scheduler["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = name
    report = examine(facts({DEPLOYMENTS: [scheduler]}))
    assert not report.has_no_errors_or_warnings
    assert any("segment: " in f.found for f in report.findings if f.id == "not-looked-at")


def test_a_port_that_is_a_path_is_not_asked_by_the_proxy() -> None:
    api: Any = ScriptedApi({})
    settings = {"health_address": "0.0.0.0", "health_port": "9002/../../../../nodes"}
    extender = NodewiseWorkload(Workload("Deployment/nodewise/nodewise", "nodewise"), settings)
    metrics = asyncio.run(attempt(read_metrics(reader(api), extender, ReplicaPod("p", "10.0.0.1", ()))))
    assert isinstance(metrics, UnavailableFact)
    assert "expected a port number" in metrics.reason
    assert api.requests == []


def test_a_tenants_scheduler_is_named_and_not_looked_into() -> None:
    cluster = facts({DEPLOYMENTS: [second_scheduler("web")]})
    assert cluster.schedulers == ()
    assert cluster.programs_elsewhere == ("Deployment/web/second",)


def test_a_static_pod_without_config_has_no_extender() -> None:
    report = examine(facts({"/api/v1/pods": [static_scheduler("")]}))
    assert "extender-not-registered" in {finding.id for finding in report.findings}


def test_a_static_pods_file_on_another_host_has_to_be_named(tmp_path: Path) -> None:
    cluster = {"/api/v1/pods": [static_scheduler()]}
    hidden = examine(facts(cluster))
    assert "--scheduler-config" in " ".join(finding.remedy for finding in hidden.findings)
    file = tmp_path / "copy.yaml"
    file.write_text(yaml.safe_dump({**CONFIGURATION, "extenders": []}))
    named = facts(cluster, (), str(file))
    (scheduler,) = named.schedulers
    expected = (str(file), "Pod/kube-system/kube-scheduler-cp")
    assert (scheduler.where, scheduler.workload.where if scheduler.workload else "") == expected
    assert "extender-not-registered" in {finding.id for finding in examine(named).findings}


@pytest.mark.parametrize(
    ("namespace", "node", "expected"),
    [("kube-system", "cp", True), ("kube-system", "other", False), ("nodewise", "cp", False)],
)
def test_files_of_this_host_are_read_for_its_own_static_pods_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str, node: str, expected: bool
) -> None:
    """Otherwise every user who may create pods could make doctor read any file of the host."""
    monkeypatch.setattr("socket.gethostname", lambda: "cp.example.com")
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump({**CONFIGURATION, "extenders": []}))
    pod = static_scheduler()
    pod["metadata"]["namespace"] = namespace
    pod["spec"] |= {"nodeName": node, "volumes": [{"name": "s", "hostPath": {"path": str(file)}}]}
    cluster = facts({"/api/v1/pods": [pod]})
    (scheduler,) = cluster.schedulers
    assert isinstance(scheduler.configuration, SchedulerConfiguration) == expected


def test_certificates_of_a_second_scheduler_come_from_its_secret_and_its_key_goes_nowhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    workload = second_scheduler()
    spec = workload["spec"]["template"]["spec"]
    spec["containers"][0]["volumeMounts"].append({"name": "tls", "mountPath": "/tls"})
    spec["volumes"].append({"name": "tls", "secret": {"secretName": "client"}})
    tls = {"caFile": "/tls/ca.crt", "certFile": "/tls/tls.crt", "keyFile": "/tls/tls.key"}
    config = {
        **CONFIGURATION,
        "extenders": [{**ENTRY, "urlPrefix": "https://127.0.0.1:9001/scheduler", "tlsConfig": tls}],
    }
    data = {"tls.crt": OWN.cert, "tls.key": OWN.key, "ca.crt": AUTHORITY.cert}
    secret = {"data": {name: base64.b64encode(text).decode() for name, text in data.items()}}
    cluster = facts(
        {
            DEPLOYMENTS: [workload],
            "/api/v1/namespaces/nodewise/configmaps/second": {
                "data": {"scheduler.yaml": yaml.safe_dump(config)}
            },
            "/api/v1/namespaces/nodewise/secrets/client": secret,
        }
    )
    certificates = cluster.schedulers[0].certificates[0]
    assert certificates.client
    assert certificates.client[0].public_key == certificates.key
    for printer in (print_findings_table, print_findings_json):
        assert "PRIVATE" not in capture_report(examine(cluster), capsys, printer)
    assert b"PRIVATE" not in repr(cluster).encode()


def test_policies_metrics_and_pods() -> None:
    rules = {"dontschedule": {"rules": [HOT]}}
    values = [
        {"describedObject": {"name": name}, "metricName": "heat", "value": value}
        for name, value in (("a", "90"), ("b", "10"), ("10.0.0.9:9100", "1"))
    ]
    group = {"preferredVersion": {"version": "v1beta1"}, "versions": []}
    cluster = facts(
        {
            "/api/v1/nodes": [{"metadata": {"name": name}} for name in "abc"],
            POLICIES: [{"metadata": {"name": "pol", "namespace": "web"}, "spec": {"strategies": rules}}],
            "/apis/custom.metrics.k8s.io": group,
            "/apis/custom.metrics.k8s.io/v1beta1/nodes/*/heat": {"items": values},
            "/api/v1/pods": [{**ALL, "spec": {"schedulerName": "mine", "schedulingGates": [{"name": "x"}]}}],
        }
    )
    assert [(policy.where, policy.rejected_nodes, policy.source) for policy in cluster.policies] == [
        ("TASPolicy/web/pol", 1, "by its metrics")
    ]
    heat = cluster.metrics["heat"]
    assert (heat.nodes, heat.other_names, cluster.node_count) == (2, ("10.0.0.9:9100",), 3)
    assert [(pod.name, pod.scheduler_name, pod.is_gated) for pod in cluster.pods] == [("p", "mine", True)]


HOT_NODES = [{"metric": "heat", "above": 80}]


def test_policies_of_all_kinds_and_the_pods_that_they_select() -> None:
    web = {
        "metadata": {"name": "shop", "namespace": "web", "labels": {"app": "shop"}},
        "spec": {"nodeName": "a"},
    }
    other = {"metadata": {"name": "other", "namespace": "web"}, "spec": {"nodeName": "a"}}
    values = [{"describedObject": {"name": "a"}, "metricName": "heat", "value": "90"}]
    cluster = facts(
        {
            "/api/v1/nodes": [{"metadata": {"name": name}} for name in "ab"],
            "/api/v1/namespaces": [{"metadata": {"name": "web", "labels": {"team": "a"}}}],
            PLACEMENT_POLICIES: [
                {
                    "metadata": {
                        "name": "cool",
                        "namespace": "web",
                        "creationTimestamp": "2026-11-21T09:00:00Z",
                    },
                    "spec": {"podSelector": {"matchLabels": {"app": "shop"}}, "avoid": HOT_NODES},
                    "status": {
                        "conditions": [
                            {"type": "MetricsAvailable", "status": "False", "message": "no heat"},
                            {"type": "Suspended", "status": "True", "message": "heat is lost"},
                            {"type": "Flapping", "status": "False", "message": "no rule flaps"},
                        ]
                    },
                }
            ],
            CLUSTER_PLACEMENT_POLICIES: [
                {
                    "metadata": {"name": "wide"},
                    "spec": {
                        "namespaceSelector": {"matchLabels": {"team": "a"}},
                        "podSelector": {"matchLabels": {"app": "shop"}},
                        "avoid": [{"query": "up", "below": 1}],
                    },
                    "status": {
                        "rejectedNodes": 2,
                        "conditions": [
                            {
                                "type": "Ready",
                                "status": "False",
                                "reason": "BudgetExceeded",
                                "message": "too many",
                            }
                        ],
                    },
                }
            ],
            "/apis/custom.metrics.k8s.io": {"preferredVersion": {"version": "v1beta1"}, "versions": []},
            "/apis/custom.metrics.k8s.io/v1beta1/nodes/*/heat": {"items": values},
            "/api/v1/pods": [web, other],
        }
    )
    assert [
        (policy.where, policy.strategies, policy.metrics, policy.rejected_nodes, policy.unavailable_metrics)
        for policy in cluster.policies
        if isinstance(policy, PolicyEvaluation)
    ] == [
        ("PlacementPolicy/web/cool", ("avoid",), ("heat",), 1, "no heat"),
        ("ClusterPlacementPolicy/wide", ("avoid",), (), 2, ""),
    ]
    cool, wide = cluster.policies
    assert isinstance(cool, PolicyEvaluation)
    assert isinstance(wide, PolicyEvaluation)
    assert cool.true_conditions == (("Suspended", "heat is lost"),)
    assert (wide.over_budget, wide.not_trusted) == ("too many", "")
    by_name = {pod.name: pod.policies for pod in cluster.pods}
    assert by_name["shop"] == ("PlacementPolicy/web/cool", "ClusterPlacementPolicy/wide")
    assert by_name["other"] == ()


def test_a_pod_may_name_a_taspolicy_that_another_policy_replaces() -> None:
    pods = [
        {"metadata": {"name": name, "namespace": "web", "labels": {"telemetry-policy": name}}, "spec": {}}
        for name in ("cool", "gone")
    ]
    selector = {"matchLabels": {"telemetry-policy": "cool"}}
    policy = {
        "metadata": {"name": "new", "namespace": "web"},
        "spec": {"podSelector": selector, "avoid": HOT_NODES},
    }
    cluster = facts({PLACEMENT_POLICIES: [policy], "/api/v1/pods": pods})
    assert {pod.name: pod.policies for pod in cluster.pods} == {
        "cool": ("PlacementPolicy/web/new",),
        "gone": ("TASPolicy/web/gone",),
    }
    unknown = [item for item in examine(cluster).findings if item.id == "policy-unknown"]
    assert [item.object for item in unknown] == ["TASPolicy/web/gone"]


def test_policies_that_have_no_effect_on_a_pod_are_known() -> None:
    pods = [
        {"metadata": {"name": track, "namespace": "web", "labels": {"track": track}}, "spec": {}}
        for track in ("canary", "stable")
    ]
    canary = {"mode": "Canary", "canary": {"podSelector": {"matchLabels": {"track": "canary"}}}}
    policies = [
        {
            "metadata": {"name": name, "namespace": "web"},
            "spec": {"podSelector": {}, "avoid": HOT_NODES, **mode},
        }
        for name, mode in (("part", canary), ("shadow", {"mode": "Shadow"}), ("whole", {}))
    ]
    cluster = facts({PLACEMENT_POLICIES: policies, "/api/v1/pods": pods})
    part, shadow, whole = (f"PlacementPolicy/web/{name}" for name in ("part", "shadow", "whole"))
    assert {pod.name: (pod.policies, pod.observed_by) for pod in cluster.pods} == {
        "canary": ((part, shadow, whole), (shadow,)),
        "stable": ((part, shadow, whole), (part, shadow)),
    }


def test_a_kind_of_policies_that_may_not_be_listed_hides_no_other() -> None:
    objects = {POLICIES: [{"metadata": {"name": "pol", "namespace": "web"}, "spec": {}}]}
    cluster = facts(objects, ("clusterplacementpolicies",))
    pol, missing = cluster.policies
    assert isinstance(pol, PolicyEvaluation)
    assert isinstance(missing, UnavailableFact)
    assert (pol.where, missing.right) == ("TASPolicy/web/pol", "list clusterplacementpolicies.nodewise.io")
    report = examine(cluster)
    assert "1 TASPolicy" in report.examined
    assert "the right to list clusterplacementpolicies.nodewise.io" in {
        item.expected for item in report.findings
    }


@pytest.mark.parametrize(
    ("resources", "missing"),
    [
        (["placementpolicies", "clusterplacementpolicies"], ()),
        (["placementpolicies"], ("clusterplacementpolicies.nodewise.io",)),
    ],
)
def test_kinds_that_are_not_served_are_found(resources: list[str], missing: tuple[str, ...]) -> None:
    names = [{"name": name} for name in resources]
    discovery = {f"/apis/{PLACEMENT}": {"kind": "APIResourceList", "resources": names}}
    container = {"name": "nodewise", "command": ["nodewise", "extender", "--agents=telemetry"]}
    workloads = {DEPLOYMENTS: [deployment("nodewise", "nodewise", container)]}
    assert facts({**workloads, **discovery}).kinds_not_served == missing
    (forbidden,) = set(facts(workloads, ("/apis/nodewise.io",)).kinds_not_served)  # type: ignore[arg-type]
    assert isinstance(forbidden, UnavailableFact)


def test_facts_that_no_check_needs_are_not_read() -> None:
    labels = {"cmk.intel.com/cmk-node": "true"}
    nodes = {"/api/v1/nodes": [{"metadata": {"name": "a", "labels": labels}}]}
    with_kubelets, without, without_nodes = ScriptedApi(nodes), ScriptedApi(nodes), ScriptedApi(nodes)
    asyncio.run(_collect(with_kubelets, ExaminationTarget()))
    assert any("proxy/configz" in path for path in with_kubelets.requests)
    asyncio.run(_collect(without, ExaminationTarget(), "kubelet-policy-conflict"))
    assert not any("proxy/configz" in path for path in without.requests)
    asyncio.run(_collect(without_nodes, ExaminationTarget(), *(CATALOGUE.keys() - {"policy-label-misspelt"})))
    expected = {"/version", "/api/v1/pods", POLICIES, PLACEMENT_POLICIES, CLUSTER_PLACEMENT_POLICIES}
    assert set(without_nodes.requests) == expected


def test_each_fact_has_a_collector() -> None:
    assert COLLECTORS.keys() == set(Facts._fields) - {"now", "namespaces"}
    assert fields_of_needed_facts() == set(Facts._fields)


@pytest.mark.parametrize(
    ("age_s", "settings", "rejected"),
    [
        (0, {}, 1),
        (120, {}, 0),
        (120, {"max_age": "5m"}, 1),
        (7200, {"max_age": "1d"}, 1),
        (120, {"when_missing": "reject"}, 2),
    ],
)
def test_policies_are_evaluated_with_the_settings_of_the_replicas(
    age_s: int, settings: dict[str, str], rejected: int
) -> None:
    spec = {"strategies": {"dontschedule": {"rules": [HOT]}}}
    policy = parse_policy(msgspec.json.encode({"metadata": {"name": "p"}, "spec": spec}))
    read = policy_objects({"taspolicies": {("", "p"): policy}})
    now = SystemClock().now()
    samples = {"a": Sample(90 * 10**9, now - age_s), "b": Sample(10 * 10**9, now)}
    extender = NodewiseWorkload(Workload("Deployment/nodewise/nodewise"), settings)
    (slot,) = evaluate_policies(
        read, {"heat": Series("heat", "custom", now, samples)}, "abc", [extender]
    ).values()
    assert slot.verdict is not None
    assert (slot.verdict.codes[:-1] > 0).sum() == rejected


def test_an_account_without_rights_gets_each_missing_right() -> None:
    report = examine(facts({}, ("/api", "/apis")))
    assert not report.has_no_errors_or_warnings
    rights = " ".join(finding.expected for finding in report.findings)
    for right in ("list nodes", "list pods", "list taspolicies.telemetry.intel.com", "list deployments.apps"):
        assert right in rights
    assert {finding.id for finding in report.findings} == {"not-looked-at"}


@pytest.mark.parametrize(
    ("stated", "severity"), [("v1.38.0-beta.0", "warning"), ("v1.33.5-eks-113cf36", "note")]
)
def test_a_version_of_kubernetes_that_was_not_tried_is_found(stated: str, severity: str) -> None:
    report = examine(facts({"/version": {"gitVersion": stated}}))
    (finding,) = (item for item in report.findings if item.id == "kubernetes-version-untested")
    assert finding.found.startswith(f"Kubernetes {stated[1:5]} is ")
    assert finding.severity == severity


@pytest.mark.parametrize("answer", [{}, {"gitVersion": "v0.0.0-master"}, {"gitVersion": 7}])
def test_a_version_that_cannot_be_read_does_not_count_as_tested(answer: Any) -> None:
    read = facts({"/version": answer})
    assert isinstance(read.cluster_version, UnavailableFact)
    assert "kubernetes-version-untested" in [id_ for id_, _ in examine(read).not_checked]


def test_an_api_server_that_is_away_ends_it() -> None:
    class Away(ScriptedApi):
        async def get(
            self, path: str, params: Params = NONE, *, timeout_s: float = DEADLINE_S, **_: Any
        ) -> bytes:
            raise errors.Unavailable(path)

    away: Any = Away({})
    with pytest.raises(errors.Unavailable):
        asyncio.run(_collect(away, ExaminationTarget()))


def test_a_list_that_never_ends_is_left() -> None:
    class Endless(ScriptedApi):
        async def get(
            self, path: str, params: Params = NONE, *, timeout_s: float = DEADLINE_S, **_: Any
        ) -> bytes:
            assert len(self.requests) < 3
            self.requests.append(path)
            return b'{"items": [{}], "metadata": {"continue": "here"}}'

    endless: Any = Endless({})
    listed = asyncio.run(attempt(reader(endless).get_list(NODES, parse_json)))
    assert isinstance(listed, UnavailableFact)
    assert "begins again" in listed.reason


@pytest.mark.parametrize("text", ["kind: Pod", "[", ""])
def test_a_named_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(BadSettings, match="--scheduler-config"):
        read_configuration_file(str(file))


def test_an_id_that_there_is_not_is_refused() -> None:
    done = CliRunner().invoke(command, ["--skip", "everything"])
    assert isinstance(done.exception, BadSettings)
    assert "'everything'" in str(done.exception)


def test_a_misspelt_id_is_refused_with_the_closest_one() -> None:
    done = CliRunner().invoke(command, ["--skip", "metric-mising"])
    assert str(done.exception).endswith('; did you mean "metric-missing"?')


# output


def capture_report(
    report: Report, capsys: pytest.CaptureFixture[str], printer: Callable[..., None] = print_findings_table
) -> str:
    printer(report, color=False)
    return capsys.readouterr().out


def test_a_sound_cluster_is_one_paragraph(capsys: pytest.CaptureFixture[str]) -> None:
    lines = capture_report(examine(SOUND), capsys).splitlines()
    assert lines[0].startswith("Nothing is wrong. Examined: 1 configuration of kube-scheduler")
    assert len(lines) <= 3


def test_findings_stand_by_severity_and_fit_into_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    sick = entry(ignorable=True, httpTimeout=None)._replace(programs_elsewhere=("Pod/web/x",))
    lines = capture_report(examine(sick), capsys).splitlines()
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert heads[:3] == ["Error", "Warning", "Note"]
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert "1 error, 1 warning, 1 note." in " ".join(lines)


def test_json_has_the_fields_that_programs_read(capsys: pytest.CaptureFixture[str]) -> None:
    report = msgspec.json.decode(capture_report(examine(entry(ignorable=True)), capsys, print_findings_json))
    assert report["sound"] is False
    (document,) = report["findings"]
    assert set(document) == {"id", "severity", "object", "seen", "wanted", "remedy", "command", "doc"}
    assert (document["id"], document["doc"]) == ("wrong-ignorable", "docs/how-to/doctor.md#wrong-ignorable")
    assert "wrong-ignorable" in report["checked"]
    assert report["not_checked"] == []


def test_commands_are_printed_in_one_line_and_for_the_kubectl_plugin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    report = examine(SOUND._replace(kinds_not_served=("placementpolicies.nodewise.io",)))
    apply = "configure manifests crds | kubectl apply --server-side --force-conflicts -f -"
    assert f"run: nodewise {apply}\n" in capture_report(report, capsys)
    with click.Context(click.Command("doctor"), info_name="kubectl nodewise"):
        report = use_program_name(report)
    assert f"run: kubectl nodewise {apply}\n" in capture_report(report, capsys)


class NodeApi:
    """An API server as a kubelet uses it: it accepts the patch, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.patches: list[tuple[str, Any, Any]] = []
        self.is_closed = False

    async def patch(self, path: str, body: Any, kind: str, params: Params = NONE, **_: Any) -> bytes:
        self.patches.append((path, body, params))
        if self._error is not None:
            raise self._error
        return b"{}"

    async def close(self) -> None:
        self.is_closed = True


def refused(text: str) -> Refused:
    return Refused("patch", [Problem("", text, "")])


VERDICT = f"{VERDICT_LABEL_PREFIX}0b2f"
LABELLED_NODES = [{"metadata": {"name": "plain"}}, {"metadata": {"name": "rack7", "labels": {VERDICT: "ok"}}}]
RESTRICTED = refused('nodes "rack7" is forbidden: is not allowed to modify labels: policy.x')
FORBIDDEN_USER = refused(
    'users "system:node:rack7" is forbidden: User "x" cannot impersonate resource "users"'
)
NO_NODE_AUTHORIZER = refused(
    'nodes "rack7" is forbidden: User "system:node:rack7" cannot patch resource "nodes"'
)


def api_server_pod(name: str, *flags: str) -> dict[str, Any]:
    container = {"name": "kube-apiserver", "command": ["kube-apiserver", *flags]}
    metadata = {"name": name, "namespace": "kube-system", "labels": {"component": "kube-apiserver"}}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def node_restriction(
    error: Exception | None, *pods: dict[str, Any], nodes: Any = LABELLED_NODES, can_connect: bool = True
) -> tuple[Any, NodeApi, list[str]]:
    """The fact, the API server as the kubelet sees it, and the users that were impersonated."""
    kubelet, users = NodeApi(error), []

    def connect_as_node(user: str) -> Any:
        users.append(user)
        return kubelet

    api: Any = ScriptedApi({"/api/v1/nodes": nodes, "/api/v1/namespaces/kube-system/pods": list(pods)})
    connect = connect_as_node if can_connect else None
    target = ExaminationTarget(namespaces=("nodewise",), connect_as_node=connect)
    return asyncio.run(Session(reader(api), target).get(collect_node_restriction)), kubelet, users


class TestNodeRestriction:
    def test_a_kubelet_that_may_write_the_label(self) -> None:
        fact, kubelet, users = node_restriction(None)
        assert (fact.is_enforced, users, kubelet.is_closed) == (False, ["system:node:rack7"], True)
        ((path, body, params),) = kubelet.patches
        assert (path, params) == ("/api/v1/nodes/rack7", {"dryRun": "All"})
        assert list(body["metadata"]["labels"]) == [f"{VERDICT_LABEL_PREFIX}doctor"]

    def test_a_kubelet_that_may_not(self) -> None:
        fact, kubelet, _ = node_restriction(RESTRICTED)
        assert (fact.is_enforced, kubelet.is_closed) == (True, True)

    @pytest.mark.parametrize(
        "error", [FORBIDDEN_USER, NO_NODE_AUTHORIZER, NotFound("rack7"), Unavailable("late")]
    )
    @pytest.mark.parametrize(
        ("flags", "is_enforced"),
        [
            (["--enable-admission-plugins=NodeRestriction"], True),
            (["--enable-admission-plugins", "AlwaysPullImages,NodeRestriction"], True),
            (
                ["--enable-admission-plugins=NodeRestriction", "--enable-admission-plugins=AlwaysPullImages"],
                True,
            ),
            (["--admission-control=NodeRestriction,LimitRanger"], True),
            (["--enable-admission-plugins=NodeRestrictions"], False),
            (["--disable-admission-plugins=NodeRestriction"], False),
            ([], False),
        ],
    )
    def test_flags_tell_it_where_the_dry_run_cannot(
        self, error: Exception, flags: list[str], *, is_enforced: bool
    ) -> None:
        fact, _, _ = node_restriction(error, api_server_pod("kube-apiserver-m1", *flags))
        assert fact.is_enforced == is_enforced
        assert "Pod/kube-system/kube-apiserver-m1" in fact.evidence

    def test_one_server_of_several_without_the_plugin(self) -> None:
        on = api_server_pod("kube-apiserver-m1", "--enable-admission-plugins=NodeRestriction")
        fact, _, _ = node_restriction(FORBIDDEN_USER, on, api_server_pod("kube-apiserver-m2"))
        assert (fact.is_enforced, "kube-apiserver-m2" in fact.evidence) == (False, True)

    def test_without_rights_and_static_pods_it_is_unknown_which_is_a_note(self) -> None:
        fact, _, _ = node_restriction(FORBIDDEN_USER)
        assert isinstance(fact, UnavailableFact)
        expected = (True, "impersonate users system:node:rack7 and groups system:nodes")
        assert (fact.is_minor, fact.right) == expected

    def test_a_kubeconfig_that_impersonates_is_not_used_for_another_user(self) -> None:
        fact, _, users = node_restriction(None, can_connect=False)
        assert isinstance(fact, UnavailableFact)
        assert (fact.reason, users) == ("the kubeconfig impersonates a user", [])

    def test_nothing_is_tried_without_native_mode(self) -> None:
        fact, _, users = node_restriction(None, nodes=[{"metadata": {"name": "plain"}}])
        assert (fact.is_enforced, users) == (True, [])


@pytest.mark.parametrize(
    ("ready", "taint", "effect", "is_measured"),
    [
        ("True", "", "", True),
        ("False", "", "", False),
        ("Unknown", "", "", False),
        ("True", "node-role.kubernetes.io/control-plane", "NoSchedule", False),
        ("True", "node-role.kubernetes.io/control-plane", "PreferNoSchedule", True),
        ("True", "dedicated", "NoSchedule", True),
    ],
)
def test_nodes_that_should_have_metrics(ready: str, taint: str, effect: str, is_measured: bool) -> None:
    taints = [{"key": taint, "effect": effect}] if taint else []
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    node = {"metadata": {"name": "a"}, "spec": {"taints": taints}, "status": status}
    parsed = parse_node([], msgspec.json.encode(node))
    assert parsed is not None
    assert parsed.is_measured == is_measured


@pytest.mark.parametrize(
    ("labels", "allocatable", "label"),
    [
        ({"nvidia.com/gpu.count": "2"}, {}, "nvidia.com/gpu.count"),
        ({"nvidia.com/gpu.count": "0"}, {}, ""),
        ({"nvidia.com/gpu.count": "2"}, {"nvidia.com/mig-1g.5gb": "7"}, ""),
        ({"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, {}, "pci-0302_10de"),
        ({"feature.node.kubernetes.io/pci-0300_8086.present": "true"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_labels_of_gpus_that_nothing_offers(labels: Any, allocatable: Any, label: str) -> None:
    node = {"metadata": {"name": "a", "labels": labels}, "status": {"allocatable": allocatable}}
    parsed = parse_node([INTEL, NVIDIA], msgspec.json.encode(node))
    assert parsed is not None
    assert (label in parsed.gpus.label) if parsed.gpus else not label


@pytest.mark.parametrize(
    ("metric", "forbidden"),
    [("", ()), ("", ("policies",)), ("cpu_usage", ()), ("memory_usage", ())],
)
@pytest.mark.parametrize(("agents", "is_read"), [("load", True), ("safe", False)])
def test_usage_of_nodes_is_read_once_for_agents_that_score_by_it(
    agents: str, is_read: bool, metric: str, forbidden: tuple[str, ...]
) -> None:
    words = ["nodewise", "extender", f"--agents={agents}"]
    at = datetime.fromtimestamp(SystemClock().now() - 40, UTC).isoformat()
    usage = {"timestamp": at, "window": "1m30s", "usage": {"cpu": "1", "memory": "1Gi"}}
    items = [{"metadata": {"name": name}, **usage} for name in "ab"]
    objects = {
        DEPLOYMENTS: [deployment("nodewise", "nodewise", {"name": "nodewise", "command": words})],
        "/api/v1/nodes": [{"metadata": {"name": name}} for name in "ab"],
        "/apis/metrics.k8s.io/v1beta1/nodes": {"items": items},
    }
    if metric:
        avoid = [{"metric": metric, "above": 4}]
        objects[PLACEMENT_POLICIES] = [
            {"metadata": {"name": "cool", "namespace": "web"}, "spec": {"podSelector": {}, "avoid": avoid}}
        ]
    api: Any = ScriptedApi(objects, forbidden)
    samples = asyncio.run(_collect(api, ExaminationTarget(namespaces=("nodewise",)))).usage_samples
    assert api.requests.count("/apis/metrics.k8s.io/v1beta1/nodes") == (is_read or bool(metric))
    assert isinstance(samples, UsageSamples) == is_read
    if isinstance(samples, UsageSamples):
        assert samples.window_s == 90
        assert 39 < samples.age_s < 100


def source_pods(
    spec: Mapping[str, Any],
    url: str = "http://prometheus.monitoring.svc:9090",
    forbidden: tuple[str, ...] = (),
) -> Any:
    """The pods of Prometheus that a ClusterPlacementPolicy with this spec, and a rule, selects."""
    words = ["nodewise", "controller", *([f"--prometheus-url={url}"] if url else [])]
    api = {"spec": {"service": {"name": "adapter", "namespace": "monitoring"}}}
    pods = [
        {
            "metadata": {"name": name, "namespace": "monitoring", "labels": labels},
            "spec": {},
            "status": status,
        }
        for name, labels, status in (
            ("finished", {"app": "prometheus"}, {"phase": "Succeeded"}),
            ("prometheus-0", {"app": "prometheus", "shard": "0"}, {"phase": "Pending"}),
            ("prometheus-1", {"app": "prometheus"}, {}),
            ("adapter-0", {"app": "adapter"}, {}),
            ("grafana-0", {"app": "grafana"}, {}),
        )
    ]
    labels = {"kubernetes.io/metadata.name": "monitoring"}
    rules = {} if "prefer" in spec else {"avoid": [{"metric": "heat", "above": 80}]}
    selecting = {"namespaceSelector": {}, "podSelector": {}, **rules}
    objects = {
        DEPLOYMENTS: [deployment("nodewise", "nodewise", {"name": "nodewise", "command": words})],
        CLUSTER_PLACEMENT_POLICIES: [{"metadata": {"name": "all"}, "spec": selecting | spec}],
        "/api/v1/namespaces": [{"metadata": {"name": "monitoring", "labels": labels}}],
        "/api/v1/namespaces/monitoring/pods": pods,
        "/apis/apiregistration.k8s.io/v1/apiservices/v1beta2.custom.metrics.k8s.io": api,
        **{
            f"/api/v1/namespaces/monitoring/services/{name}": {"spec": {"selector": {"app": name}}}
            for name in ("prometheus", "adapter")
        },
        "/api/v1/namespaces/monitoring/services/external": {"spec": {"type": "ExternalName"}},
    }
    return facts(objects, forbidden).selected_source_pods


@pytest.mark.parametrize(
    ("url", "service", "pod"),
    [
        ("http://prometheus.monitoring.svc:9090", "prometheus", "prometheus-0"),
        ("http://prometheus.monitoring:9090/path", "prometheus", "prometheus-0"),
        ("https://prometheus.monitoring.svc.cluster.local.", "prometheus", "prometheus-0"),
        ("http://prometheus-1.prometheus.monitoring.svc:9090", "prometheus", "prometheus-0"),
        ("http://external.monitoring:9090", "", ""),
        ("http://absent.monitoring:9090", "", ""),
        ("https://prometheus.example.org", "", ""),
        ("http://prometheus:9090", "", ""),
        ("http://[::1", "", ""),
        ("", "adapter", "adapter-0"),
    ],
)
def test_pods_of_the_source_of_metrics_that_a_policy_selects_are_found(
    url: str, service: str, pod: str
) -> None:
    where = f"Service/monitoring/{service}"
    expected = [("ClusterPlacementPolicy/all", f"Pod/monitoring/{pod}", where)] if pod else []
    assert [tuple(each) for each in source_pods({}, url)] == expected


@pytest.mark.parametrize(
    ("spec", "is_selected"),
    [
        ({"podSelector": {"matchLabels": {"app": "prometheus"}}}, True),
        ({"podSelector": {"matchLabels": {"app": "grafana"}}}, False),
        ({"mode": "Shadow"}, False),
        ({"mode": "Canary", "canary": {"podSelector": {"matchLabels": {"app": "grafana"}}}}, False),
        ({"enforcement": "Preferred"}, False),
        ({"prefer": [{"metric": "heat", "order": "Ascending"}]}, False),
        ({"guard": {"maxWaitingPods": 3}}, True),
        ({"guard": {"maxRejectedShare": "0.5"}}, False),
    ],
)
def test_policies_that_let_the_source_of_metrics_start_are_not_found(
    spec: Mapping[str, Any], *, is_selected: bool
) -> None:
    assert bool(source_pods(spec)) == is_selected


def test_the_missing_right_to_read_the_service_of_a_source_is_named() -> None:
    [missing] = source_pods({}, forbidden=("services/prometheus",))
    assert missing.right == "get services prometheus in namespace monitoring"


SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def gpu_cluster(**labels: str) -> dict[str, Any]:
    """A cluster with the gpu agent, a node of a device plugin, one with these labels, and one with slices alone."""
    words = ["nodewise", "extender", "--agents=gpu", "--gpu-profile=nvidia", "--no-cluster", "--unsafe"]
    plugin = {"metadata": {"name": "plugin"}, "status": {"allocatable": {"nvidia.com/gpu": "2"}}}
    slices: list[Any] = [
        {"spec": {"driver": "gpu.example.com", "nodeName": node, "devices": [{"name": "gpu-0"}]}}
        for node in ("labelled", "plugin", "driver", "driver")
    ]
    return {
        DEPLOYMENTS: [deployment("nodewise", "nodewise", {"name": "nodewise", "command": words})],
        "/api/v1/nodes": [
            plugin,
            {"metadata": {"name": "labelled", "labels": labels}},
            {"metadata": {"name": "driver"}},
        ],
        SLICES: [*slices, {"spec": {"driver": "x", "allNodes": True}}, {"spec": 3}],
    }


def test_nodes_with_devices_of_drivers_are_read_from_slices() -> None:
    nodes = facts(gpu_cluster(**{"nvidia.com/gpu.count": "2"})).gpu_nodes
    assert isinstance(nodes, tuple)
    forms = {node.node: (node.resource, node.drivers) for node in nodes if isinstance(node, GpuNodeInfo)}
    drivers = ("gpu.example.com",)
    expected = {"plugin": ("nvidia.com/gpu", drivers), "labelled": ("", drivers), "driver": ("", drivers)}
    assert forms == expected


@pytest.mark.parametrize(
    ("labels", "severity"),
    [({}, "note"), ({"nvidia.com/gpu.count": "2"}, "warning")],
    ids=["plugin", "label"],
)
def test_a_missing_right_to_read_slices_hides_no_node_of_a_device_plugin(
    labels: dict[str, str], severity: str
) -> None:
    """A warning only if a node's GPUs may be devices of a driver."""
    report = examine(facts(gpu_cluster(**labels), ("resourceslices",)))
    (missing,) = [finding for finding in report.findings if "resourceslices" in finding.object]
    expected = (severity, "the right to list resourceslices.resource.k8s.io")
    assert (missing.severity, missing.expected) == expected
    assert "1 node with GPUs of a device plugin" in report.examined


def test_without_the_kind_only_device_plugins_are_counted() -> None:
    report = examine(facts({**gpu_cluster(), SLICES: NotFound(SLICES)}))
    assert not [finding for finding in report.findings if "resourceslices" in finding.object]
    assert [text for text in report.examined if " with " in text] == ["1 node with GPUs of a device plugin"]


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
def test_slices_of_a_beta_version_are_read(version: str) -> None:
    cluster, group = gpu_cluster(), f"resource.k8s.io/{version}"
    served = {**DISCOVERY["/apis"], "groups": [{"versions": [{"groupVersion": group}]}]}
    kinds = {"kind": "APIResourceList", "resources": [{"name": "resourceslices"}]}
    objects = {
        **cluster,
        SLICES: NotFound(SLICES),
        "/apis": served,
        f"/apis/{group}": kinds,
        f"/apis/{group}/resourceslices": cluster[SLICES],
    }
    assert "3 nodes with devices of the DRA driver gpu.example.com" in examine(facts(objects)).examined


def test_slices_are_not_read_without_a_gpu_agent() -> None:
    api: Any = ScriptedApi({SLICES: gpu_cluster()[SLICES]})
    asyncio.run(_collect(api, ExaminationTarget(namespaces=("nodewise",))))
    assert SLICES not in api.requests
