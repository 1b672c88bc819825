"""Parsing of workloads, configurations, policies and metrics."""

from typing import Any

import msgspec
import pytest
import yaml

from nodewise.doctor.checks.policies import feasible_nodes_to_find
from nodewise.doctor.collectors.rights_and_admission_policies import (
    enforced_admission_policies,
    needed_rights,
)
from nodewise.doctor.collectors.workloads import parse_descheduler_policy, parse_metrics
from nodewise.doctor.facts import AdmissionPolicy, UnavailableFact
from nodewise.doctor.parsing import objects, scheduler_configuration
from nodewise.doctor.parsing.objects import Container, VolumeMount, Workload
from nodewise.doctor.parsing.scheduler_configuration import (
    ExtenderEntry,
    SchedulerConfiguration,
    list_refusals,
    parse,
    parse_configz,
)
from nodewise.install.scheduler_versions import SchedulerVersion
from tests.unit.doctor.facts_factory import CONFIGURATION, EXTENDER

KIND = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
V1BETA3 = {"apiVersion": "kubescheduler.config.k8s.io/v1beta3"}


def parsed(value: Any) -> SchedulerConfiguration:
    return parse(yaml.safe_dump(value).encode())


def entry(**fields: Any) -> ExtenderEntry:
    (only_entry,) = parsed({**KIND, "extenders": [fields]}).entries
    return only_entry


def admission_policy(**spec: Any) -> Any:
    rules = [{"apiGroups": [""], "resources": ["nodes", "nodes/*"]}]
    conditions = [{"name": "account", "expression": "a == 'b'"}]
    policy_spec = {"matchConstraints": {"resourceRules": rules}, "matchConditions": conditions, **spec}
    return {"metadata": {"name": "p"}, "spec": policy_spec}


def admission_binding(**spec: Any) -> Any:
    return {"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"], **spec}}


def test_reason_for_missing_pods_is_that_of_the_api_server() -> None:
    """A Deployment without pods reports why they are refused, such as by Pod Security or a quota."""
    message = 'pods "nodewise-5" is forbidden: violates PodSecurity "restricted:latest"'
    metadata = {"name": "nodewise", "namespace": "nodewise"}
    for status, problems in (("True", (message,)), ("False", ())):
        condition = {"type": "ReplicaFailure", "status": status, "message": message}
        deployment = {"metadata": metadata, "spec": {"replicas": 2}, "status": {"conditions": [condition]}}
        assert objects.parse("Deployment", deployment).problems == problems


@pytest.mark.parametrize(
    ("policy", "binding", "is_enforced"),
    [
        (admission_policy(), admission_binding(), True),
        (
            admission_policy(failurePolicy="Fail"),
            admission_binding(validationActions=["Audit", "Deny"]),
            True,
        ),
        (admission_policy(failurePolicy="Ignore"), admission_binding(), False),
        (admission_policy(), admission_binding(validationActions=["Warn"]), False),
        (admission_policy(), admission_binding(policyName="q"), False),
        (admission_policy(), admission_binding(matchResources={"namespaceSelector": {}}), False),
        (admission_policy(), {}, False),
    ],
)
def test_which_admission_policies_are_enforced(policy: Any, binding: Any, is_enforced: bool) -> None:
    wanted = AdmissionPolicy("p", frozenset({"nodes", "nodes/*"}), ("a == 'b'",))
    assert enforced_admission_policies([policy], [binding]) == ((wanted,) if is_enforced else ())


@pytest.mark.parametrize(
    ("url", "verb", "owner"),
    [
        ("https://n:9001/scheduler", "filter", (True, "")),
        ("https://n:9001/scheduler/", "filter", (True, "")),
        ("https://n:9001", "scheduler/filter", (True, "")),
        ("https://n:9001/agents/gpu", "filter", (True, "gpu")),
        ("http://localhost:8888/scheduler", "predicates/always_true", (True, "")),
        ("http://127.0.0.1:32766/gpushare-scheduler", "filter", (False, "")),
        ("http://hami:443", "filter", (False, "")),
        ("https://[n:9001/scheduler", "filter", (False, "")),
        ("", "", (False, "")),
    ],
)
def test_whose_entry_it_is(url: str, verb: str, owner: tuple[bool, str]) -> None:
    extender = entry(urlPrefix=url, filterVerb=verb)
    assert (extender.is_nodewise, extender.agent) == owner


def test_configz_has_the_names_of_gos_fields() -> None:
    internal = {
        "Profiles": [{"SchedulerName": "mine", "PercentageOfNodesToScore": 30}],
        "PercentageOfNodesToScore": 0,
        "Extenders": [
            {
                "URLPrefix": "https://n:9001/scheduler",
                "FilterVerb": "filter",
                "Weight": 10,
                "EnableHTTPS": True,
                "HTTPTimeout": "1s",
                "NodeCacheCapable": True,
                "ManagedResources": [{"Name": "telemetry/scheduling", "IgnoredByScheduler": True}],
                "TLSConfig": {"CAFile": "/ca", "CertFile": "/cert", "KeyFile": "/key"},
            }
        ],
    }
    configuration = parse_configz({"kubescheduler.config.k8s.io": internal})
    (only_entry,) = configuration.entries
    assert (
        only_entry.http_timeout,
        only_entry.node_cache_capable,
        only_entry.enable_https,
        only_entry.ca_file,
        only_entry.weight,
    ) == ("1s", True, True, "/ca", 10)
    assert (configuration.profiles[0].scheduler_name, configuration.profiles[0].percentage) == ("mine", 30)
    assert only_entry.managed_resources[0].is_ignored


@pytest.mark.parametrize(
    "text",
    [b"", b"- 1", b"{", b"kind: Pod", b"kind: [x]", b"\xff\xfe", b"a: &a [*a]", b"a: 1\n---\nb: 2", b"[]: 1"],
)
def test_a_text_without_configuration_has_a_problem(text: bytes) -> None:
    configuration = parse(text)
    assert configuration.problem
    assert not configuration.profiles


@pytest.mark.parametrize(
    ("minor", "changed", "refusal"),
    [
        (37, {}, ""),
        (37, {"profile": []}, 'profile: unknown field; did you mean "profiles"?'),
        (
            36,
            {"extenders": [{"filterverb": "filter"}]},
            'extenders[0].filterverb: unknown field; did you mean "filterVerb"?',
        ),
        (
            36,
            {"profiles": [{"plugins": {"podGroupPostFilter": {}}}]},
            "profiles[0].plugins.podGroupPostFilter: unknown field in kube-scheduler 1.36; it exists since 1.37",
        ),
        (37, {"extenders": [{"weight": "10"}]}, "extenders[0].weight: found '10', expected a whole number"),
        (
            29,
            {"apiVersion": "kubescheduler.config.k8s.io/v1beta3"},
            (
                "apiVersion: found 'kubescheduler.config.k8s.io/v1beta3', which kube-scheduler 1.29 does not load;"
                " expected kubescheduler.config.k8s.io/v1"
            ),
        ),
        (28, {"apiVersion": "kubescheduler.config.k8s.io/v1beta3"}, ""),
        (
            37,
            {"profiles": [{"pluginConfig": [{"name": "NodeResourcesFit", "args": {"ignoredResource": []}}]}]},
            'profiles[0].pluginConfig[0].args.ignoredResource: unknown field; did you mean "ignoredResources"?',
        ),
        (30, {"profiles": [{"plugins": {"filter": {"enabled": [{"name": "EBSLimits"}]}}}]}, ""),
        (
            31,
            {"profiles": [{"plugins": {"filter": {"enabled": [{"name": "EBSLimits"}]}}}]},
            "profiles[0].plugins.filter.enabled[0]: EBSLimits no longer exists; remove it",
        ),
        (28, {"profiles": [{"pluginConfig": [{"name": "NodeAffinity", "args": V1BETA3}]}]}, ""),
        (
            29,
            {"profiles": [{"pluginConfig": [{"name": "NodeAffinity", "args": V1BETA3}]}]},
            (
                "profiles[0].pluginConfig[0].args.apiVersion: found 'kubescheduler.config.k8s.io/v1beta3', expected"
                " kubescheduler.config.k8s.io/v1"
            ),
        ),
        (
            39,
            {"field": 1, "profiles": [{"plugins": {"point": {}, "other": 5, "third": {"enabled": [5]}}}]},
            "",
        ),  # of a version that is not known yet
        (
            24,
            {"apiVersion": "kubescheduler.config.k8s.io/v1beta2", "clientConnection": "a"},
            "clientConnection: found 'a', expected an object",
        ),
    ],
)
def test_why_kube_scheduler_refuses_a_configuration(minor: int, changed: Any, refusal: str) -> None:
    refusals = list_refusals(KIND | changed, SchedulerVersion(minor))
    assert refusals == ([refusal] if refusal else [])


def test_the_last_of_duplicate_keys_counts() -> None:
    entries = "extenders: [{urlPrefix: a, urlPrefix: b}]\nextenders: [{urlPrefix: c, urlPrefix: d}]"
    configuration = parse(f"{yaml.safe_dump(KIND)}{entries}".encode())
    assert configuration.duplicate_keys == ("extenders", "extenders[0].urlPrefix")
    assert [entry.url for entry in configuration.entries] == ["d"]


@pytest.mark.parametrize(
    "value", [None, 1, "x", [], [1], {"a": 1}, [[]], [None], [{"tlsConfig": 1, "managedResources": {}}]]
)
def test_extenders_of_any_shape(value: Any) -> None:
    assert parsed({**KIND, "extenders": value, "profiles": value}).profiles


def test_sample_is_kube_schedulers() -> None:
    """numFeasibleNodesToFind of v1.36 for these numbers."""
    for nodes, percentage, wanted in [
        (50, 0, 50), (100, 0, 100), (150, 0, 100), (500, 0, 230), (1000, 0, 420), (5000, 0, 500), (6000, 0, 300),
        (5000, 5, 250), (5000, 1, 100), (5000, 100, 5000), (1000, 30, 300),
    ]:  # fmt: skip
        assert feasible_nodes_to_find(nodes, percentage) == wanted, (nodes, percentage)


MOUNTS = (
    VolumeMount("/etc/all", "configMap", "all"),
    VolumeMount("/etc/all/inner", "secret", "inner"),
    VolumeMount("/etc/some", "configMap", "some", items=(("key", "file.yaml"),)),
    VolumeMount("/etc/one.yaml", "configMap", "one", sub_path="one.yaml"),
    VolumeMount("/etc/kubernetes/s.yaml", "hostPath", "/root/s.yaml"),
    VolumeMount("/etc/certs", "hostPath", "/root/certs"),
)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/etc/all/s.yaml", ("all", "s.yaml")),
        ("/etc/all//./s.yaml", ("all", "s.yaml")),
        ("/etc/all/inner/tls.crt", ("inner", "tls.crt")),
        ("/etc/some/file.yaml", ("some", "key")),
        ("/etc/some/other.yaml", None),
        ("/etc/one.yaml", ("one", "one.yaml")),
        ("/etc/kubernetes/s.yaml", ("/root/s.yaml", "")),
        ("/etc/certs/a/b.crt", ("/root/certs", "a/b.crt")),
        ("/etc/allother/s.yaml", None),
        ("/elsewhere", None),
        ("relative", None),
    ],
)
def test_where_a_file_comes_from(path: str, wanted: tuple[str, str] | None) -> None:
    mount = objects.find_mount(Container("c", mounts=MOUNTS), path)
    assert (None if mount is None else (mount[0].name, mount[1])) == wanted


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("kube-scheduler", "--config=/a"), "/a"),
        (("kube-scheduler", "--config", "/a"), "/a"),
        (("kube-scheduler", "-config", "/a"), "/a"),
        (("kube-scheduler", "--config=/a", "--config=/b"), "/b"),
        (("kube-scheduler", "--config", "--v=2"), ""),
        (("kube-scheduler", "--configuration=/a"), None),
    ],
)
def test_flags_of_a_command(words: tuple[str, ...], value: str | None) -> None:
    assert objects.flag(Container("c", command=words), "config") == value


def pod(**container: Any) -> Workload:
    return objects.parse(
        "Pod", {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [container]}}
    )


@pytest.mark.parametrize(
    ("container", "runs"),
    [
        ({"command": ["kube-scheduler", "--v=2"]}, True),
        ({"command": ["/usr/local/bin/kube-scheduler"]}, True),
        ({"command": ["/bin/sh", "-c", "exec kube-scheduler --config=/a"]}, True),
        ({"image": "registry.k8s.io/kube-scheduler:v1.36.3", "args": ["--config=/a"]}, True),
        ({"image": "registry.k8s.io/kube-scheduler@sha256:0"}, True),
        ({"image": "registry.k8s.io/kube-scheduler:v1", "command": ["sleep"]}, False),
        ({"image": "kube-schedulers:v1"}, False),
        ({"command": ["/bin/sh", "-c", "echo 'unclosed"]}, False),
    ],
)
def test_a_container_runs_a_program_by_its_command_or_image(container: Any, runs: bool) -> None:
    assert objects.runs(pod(**container).containers[0], "kube-scheduler") == runs


def test_settings_of_flags_variables_and_file() -> None:
    words = (
        "nodewise",
        "extender",
        "--config=/c",
        "--agents=gpu",
        "--client-name=a",
        "--client-name=b",
        "--unsafe",
    )
    container = Container("c", command=words, environment={"NODEWISE_AGENTS": "safe", "NODEWISE_PORT": "1"})
    file = (
        b"{agents: telemetry, health-port: 9003, no_cluster: true, metrics: [custom, resource], gpu: {x: 1}}"
    )
    settings = objects.settings(container, file)
    assert {
        name: settings[name] for name in ("agents", "client_name", "unsafe", "port", "health_port", "metrics")
    } == {
        "agents": "gpu",
        "client_name": "a,b",
        "unsafe": "true",
        "port": "1",
        "health_port": "9003",
        "metrics": "custom,resource",
    }
    assert EXTENDER._replace(settings=settings).is_set("no_cluster")
    assert objects.settings_file_path(container) == "/c"


@pytest.mark.parametrize(
    ("profile", "field"),
    [
        ({"plugins": {"score": {"disabled": [{"name": "*"}, {"name": "NodeResourceFit"}]}}},
         "plugins.score.disabled[1].name"),
        ({"plugins": {"multiPoint": {"disabled": [{"name": "imagelocality"}]}}},
         "plugins.multiPoint.disabled[0].name"),
        ({"pluginConfig": [{"name": "NodeAffinty", "args": None}]}, "pluginConfig[0].name"),
        ({"pluginConfig": [{"name": "NodeResourcesFitPlus"}],
          "plugins": {"score": {"enabled": [{"name": "NodeResourcesFitPlus"}]}, "filter": None}}, ""),
        ({"pluginConfig": [{"name": "Coscheduling"}]}, ""),
        ({"plugins": {"filter": {"disabled": [{"name": "EBSLimits"}, {"name": "VolumeZone"}, None, {}]}}}, ""),
        ({"plugins": None, "pluginConfig": None}, ""),
    ],
)  # fmt: skip
def test_misspelt_plugins_that_a_profile_disables_or_configures(profile: dict[str, Any], field: str) -> None:
    problems = scheduler_configuration.list_plugins_without_effect(KIND | {"profiles": [profile]})
    assert [problem.partition(":")[0] for problem in problems] == ([f"profiles[0].{field}"] if field else [])
    assert all("did you mean" in problem for problem in problems)


def test_plugins_that_another_profile_enables_are_not_misspelt() -> None:
    """For example one that only some profiles of Koordinator's scheduler use."""
    enabled = {"plugins": {"multiPoint": {"enabled": [{"name": "NodeResourcesFitPlus"}]}}}
    disabled = {"plugins": {"score": {"disabled": [{"name": "NodeResourcesFitPlus"}]}}}
    configured = {"pluginConfig": [{"name": "NodeResourcesFitPlus"}]}
    document = KIND | {"profiles": [disabled, configured, enabled]}
    assert scheduler_configuration.list_plugins_without_effect(document) == []


@pytest.mark.parametrize("profiles", [5, [5], [{"plugins": []}], [{"pluginConfig": [{"name": 5}]}]])
def test_plugins_of_an_older_version_are_not_examined(profiles: Any) -> None:
    document = V1BETA3 | {"profiles": profiles}
    assert scheduler_configuration.list_refusals(document, SchedulerVersion(27)) == []
    assert scheduler_configuration.list_plugins_without_effect(document) == []


def test_plugins_of_both_versions_of_a_deschedulers_policy() -> None:
    new = """
        apiVersion: descheduler/v1alpha2
        profiles:
        - pluginConfig:
          - name: RemovePodsViolatingNodeAffinity
            args: {nodeAffinityType: [requiredDuringSchedulingIgnoredDuringExecution]}
          plugins: {deschedule: {enabled: [RemovePodsViolatingNodeAffinity]}, balance: {enabled: [RemoveDuplicates]}}
    """
    old = """
        apiVersion: descheduler/v1alpha1
        strategies:
          RemovePodsViolatingNodeAffinity: {enabled: true, params: {nodeAffinityType: [x]}}
          LowNodeUtilization: {enabled: false}
    """
    policy = parse_descheduler_policy("d", new.encode())
    assert policy.plugins == ("RemovePodsViolatingNodeAffinity", "RemoveDuplicates")
    assert policy.affinity_types == ("requiredDuringSchedulingIgnoredDuringExecution",)
    assert parse_descheduler_policy("d", old.encode()).plugins == ("RemovePodsViolatingNodeAffinity",)
    assert isinstance(parse_descheduler_policy("d", b"{").plugins, UnavailableFact)


def test_numbers_of_a_replica() -> None:
    body = b"""# HELP x y
process_start_time_seconds 1.0e3
nodewise_requests_total{route="/scheduler/filter",status="200"} 7.0
nodewise_requests_total{route="/readyz",status="200"} 99.0
nodewise_requests_total{route="/agents/gpu/bind",status="200"} 2.0
nodewise_ca_clients_total 1.0
nodewise_connections_ended_total{reason="client_name"} 4.0
nodewise_metric_nodes{metric="heat"} 12.0
nodewise_metric_series_unmatched{metric="heat"} NaN
rubbish
"""
    metrics = parse_metrics("p", body, 1100.0)
    assert (metrics.calls, metrics.uptime_s, metrics.ca_clients) == (9, 100.0, 1)
    expected = ({"client_name": 4}, {"heat": 12}, {})
    assert (metrics.refused, metrics.metric_nodes, metrics.unmatched) == expected


def test_rights_follow_agents_and_settings() -> None:
    def needed(*metrics: str, **settings: str) -> set[str]:
        return {str(right) for right in needed_rights(EXTENDER._replace(settings=settings), metrics)}

    assert "get nodes/heat.custom.metrics.k8s.io" in needed("heat", agents="telemetry")
    assert "list nodes.metrics.k8s.io" in needed("cpu_usage", agents="telemetry")
    assert "get nodes/heat.custom.metrics.k8s.io" not in needed(
        "heat", agents="telemetry", prometheus_url="http://p"
    )
    usage = {"list nodes.metrics.k8s.io", "list pods.metrics.k8s.io"}
    assert usage <= needed(agents="load")
    assert usage <= needed("predicted_cpu_share", agents="telemetry")
    assert not usage & needed(agents="load", prometheus_url="http://p")
    assert not usage & needed(agents="safe")
    assert "get nodes/predicted_cpu_share.custom.metrics.k8s.io" not in needed("predicted_cpu_share")
    assert "create pods/binding" in needed(agents="gpu")
    assert "create pods/binding" not in needed(agents="telemetry")
    assert "update configmaps nodewise-memory in namespace nodewise" in needed(agents="learned")
    assert needed(agents="safe", no_cluster="true") == set()


def test_a_key_leaves_no_trace_in_an_entry() -> None:
    extender = entry(urlPrefix="https://n/scheduler", tlsConfig={"keyData": "c2VjcmV0IGtleQ=="})
    assert b"secret" not in msgspec.json.encode([field for field in extender if isinstance(field, str)])
    assert extender.key_data == b""


def test_a_sound_configuration_is_read_whole() -> None:
    configuration = parsed(CONFIGURATION)
    assert not configuration.problem
    assert configuration.entries[0].is_nodewise
