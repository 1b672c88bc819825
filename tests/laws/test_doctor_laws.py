"""Whatever stands in a cluster, it is read and examined, and nothing that a terminal obeys is printed."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.agents.telemetry import policy as policies
from nodewise.cli.doctor import measuring, nodes, pods
from nodewise.cli.doctor.nodes import gpu_profiles
from nodewise.configure.doctor import (
    admission,
    configurations,
    counted,
    deschedulers,
    examination,
    papers,
    workloads,
)
from nodewise.configure.doctor import settings as settings_
from nodewise.configure.doctor.facts import Descheduler, Extender, Facts, Measured, Papers, Scheduler, Server
from nodewise.visible import short
from tests.unit.configure.doctor.setups import NOW, SOUND

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
KINDS = st.sampled_from(["Pod", "Deployment", "DaemonSet", "StatefulSet", "CronJob", "Job"])


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


@settings(deadline=None)
@given(KINDS, VALUES, TEXTS)
def test_workloads_of_any_shape_are_read(kind: str, value: Any, path: str) -> None:
    pod = workloads.read(kind, value)
    for one in pod.containers:
        settings_.of(one, encoded(value))
        settings_.config_path(one)
        workloads.mount(one, path)
        workloads.mount(one, f"/{path}")
    pods._single(encoded(value))
    pods._waiting(0.0, encoded(value))
    nodes._kept(encoded(value), list(gpu_profiles.PROFILES.values()))
    measuring._read(encoded(value))


@settings(deadline=None)
@given(st.binary(max_size=80) | VALUES.map(encoded))
def test_texts_of_any_kind_are_read(text: bytes) -> None:
    configurations.parse(text)
    deschedulers.parse("d", text)
    settings_.of_file(text)
    counted.read("p", text, 0.0)
    papers.chain(text)
    papers.public(text)
    papers.of_der([text])


@settings(deadline=None)
@given(VALUES, VALUES, VALUES)
def test_a_cluster_of_any_shape_is_examined(config: Any, workload: Any, more: Any) -> None:
    whole = {
        "kind": "KubeSchedulerConfiguration",
        "extenders": [more],
        **(config if isinstance(config, dict) else {}),
    }
    pod = workloads.read("Deployment", {"spec": {"template": workload}, "metadata": more})
    read = configurations.read(whole)
    listed = policies.read(policies.PolicyObject(spec=msgspec.Raw(encoded(more))))
    problems = tuple(map(str, listed.problems))
    facts = Facts(
        NOW,
        schedulers=(
            Scheduler(
                str(config),
                read,
                pod,
                {one.number: Papers((), (), b"") for one in read.entries},
                {one.number: Server() for one in read.entries},
            ),
            *SOUND.schedulers,
        ),
        extenders=(Extender(pod, settings_.of_file(encoded(more))),),
        pods=tuple(one for one in [pods._waiting(0.0, encoded(workload))] if one),
        policies=tuple(one._replace(problems=problems) for one in SOUND.policies),
        nodes=5000,
        measured={"heat": Measured(0, (str(more),))},
        admission=admission.read([config, more], [more]),
        deschedulers=(deschedulers.read("d", more), Descheduler("e", ())),
        elsewhere=(pod.where,),
    )
    for one in examination.examine(facts).findings:
        for text in one[1:]:
            assert text
            assert text == short(text, 10_000)
            assert text.isprintable()
