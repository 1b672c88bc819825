"""`doctor` reads and examines any cluster, and prints no terminal control sequence."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.agents.gpu import vendor_resource_names
from nodewise.base.errors import short
from nodewise.doctor import check_runner
from nodewise.doctor.collectors import nodes, policies, rights_and_admission_policies, workloads
from nodewise.doctor.collectors.policies import PolicySelectors
from nodewise.doctor.facts import (
    Descheduler,
    EntryCertificates,
    Facts,
    MetricCoverage,
    NodewiseWorkload,
    ProbedServer,
    SchedulerInfo,
)
from nodewise.doctor.parsing import certificates, objects, scheduler_configuration
from nodewise.policies import taspolicy_parser
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policies.state import POLICY_KINDS
from nodewise.tls.x509_certificates import public_key_of_private_key
from tests.unit.doctor.facts_factory import NOW, POLICY, SOUND

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_NAMES = """
metadata name namespace labels annotations spec status containers command args env volumes configMap
secret hostPath items key path volumeMounts mountPath image template jobTemplate conditions type
message extenders profiles plugins score enabled urlPrefix filterVerb weight httpTimeout tlsConfig
caFile certFile keyFile caData managedResources kind strategies dontschedule rules metricname
operator target affinity nodeAffinity requiredDuringSchedulingIgnoredDuringExecution
nodeSelectorTerms matchExpressions pluginConfig allocatable telemetry-policy nodewise.io/gpu-cards
gpu.intel.com/i915 gpu.intel.com/gpu-numbers
"""
KEYS = st.sampled_from(_NAMES.split())
WORDS = st.sampled_from(
    [
        "kube-scheduler",
        "nodewise",
        "extender",
        "--config=/etc/x",
        "https://nodewise.nodewise.svc:9001/scheduler",
        "http://[::1",
        "filter",
        "KubeSchedulerConfiguration",
        "True",
        "1",
        "\x1b[2J\u202e",
        "-",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXTS, inner, max_size=6),
    max_leaves=25,
)
SELECTORS = PolicySelectors()
KINDS = st.sampled_from(["Pod", "Deployment", "DaemonSet", "StatefulSet", "CronJob", "Job"])


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


@settings(deadline=None)
@given(KINDS, VALUES, TEXTS)
def test_workloads_of_any_shape_are_read(kind: str, value: Any, path: str) -> None:
    for container in objects.parse(kind, value).containers:
        objects.settings(container, encoded(value))
        objects.settings_file_path(container)
        objects.find_mount(container, path)
        objects.find_mount(container, f"/{path}")
    workloads.parse_pod_without_controller(encoded(value))
    policies.parse_pod(0.0, SELECTORS, encoded(value))
    nodes.parse_node(list(vendor_resource_names.PROFILES.values()), encoded(value))
    if policy := policies.parse_policy(encoded(value)):
        key = policy.metadata.namespace, policy.metadata.name
        listed = {name: {key: policy} for name in POLICY_KINDS}
        policies.evaluate_policies(policies.policy_objects(listed), {}, ["a"], [])


@settings(deadline=None)
@given(st.binary(max_size=80) | VALUES.map(encoded))
def test_texts_of_any_kind_are_read(text: bytes) -> None:
    scheduler_configuration.parse(text)
    workloads.parse_descheduler_policy("d", text)
    objects.parse_settings(text)
    workloads.parse_metrics("p", text, 0.0)
    certificates.parse_pem(text)
    public_key_of_private_key(text)
    certificates.parse_der([text])


@settings(deadline=None)
@given(VALUES, VALUES, VALUES)
def test_a_cluster_of_any_shape_is_examined(config: Any, workload: Any, more: Any) -> None:
    whole = {
        "kind": "KubeSchedulerConfiguration",
        "extenders": [more],
        **(config if isinstance(config, dict) else {}),
    }
    deployment = objects.parse("Deployment", {"spec": {"template": workload}, "metadata": more})
    read = scheduler_configuration.read(whole)
    listed = taspolicy_parser.parse_policy(PolicyObject(spec=msgspec.Raw(encoded(more))))
    problems = tuple(map(str, listed.problems))
    facts = Facts(
        NOW,
        schedulers=(
            SchedulerInfo(
                str(config),
                read,
                deployment,
                {entry.number: EntryCertificates((), (), b"") for entry in read.entries},
                {entry.number: ProbedServer() for entry in read.entries},
            ),
            *SOUND.schedulers,
        ),
        extenders=(NodewiseWorkload(deployment, objects.parse_settings(encoded(more))),),
        pods=tuple(filter(None, [policies.parse_pod(0.0, SELECTORS, encoded(workload))])),
        policies=(POLICY._replace(problems=problems),),
        node_count=5000,
        metrics={"heat": MetricCoverage(0, (str(more),))},
        admission_policies=rights_and_admission_policies.enforced_admission_policies([config, more], [more]),
        deschedulers=(workloads.read_descheduler_policy("d", more), Descheduler("e", ())),
        programs_elsewhere=(deployment.where,),
    )
    for finding in check_runner.examine(facts).findings:
        for text in finding[1:]:
            assert text or text is finding.command
            assert text == short(text, 10_000)
            assert text.isprintable()
