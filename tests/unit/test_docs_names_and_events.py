"""`docs/reference/names.md` and `kubernetes-events.md` name what the code reads, writes and records."""

import ast
import itertools
import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from nodewise.agent import bind_plugin_interface
from nodewise.agents.gpu import (
    agent,
    gpu_node_labels,
    node_allocations,
    pod_gpu_requests,
    typical_pods,
)
from nodewise.engine import agent_memory_storage, decision
from nodewise.kube import event_recorder, leader_election
from nodewise.kube.event_recorder import Type
from nodewise.metrics.missing_values import CauseReason
from nodewise.policies import policy_status
from nodewise.policies.placement_policy_fields import VIOLATING
from nodewise.policies.policy_selection import POLICY_LABEL
from nodewise.policies.taspolicy_parser import PREFIX
from nodewise_cpu import cmk_names
from nodewise_scorers.annotator import node_patches
from nodewise_scorers.statistics import load_annotations

ROOT = Path(__file__).parents[2]
SOURCES = [*ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")]
TELEMETRY = ROOT / "src/nodewise/policies"
PAGE = (ROOT / "docs/reference/names.md").read_text()
EVENTS = (ROOT / "docs/reference/kubernetes-events.md").read_text()
KEY = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)+/[A-Za-z0-9._-]*")
NONE_OF_THESE = {
    "app.kubernetes.io/component": "a label of the shipped manifests",
    "app.kubernetes.io/name": "a label of the shipped manifests",
    "config.yaml.d/nodewise.yaml": "a file",
    "kubectl.kubernetes.io/last-applied-configuration": "kubectl's own, which is not copied",
    "kubernetes.io/": "what no prefix may end with",
    "kubernetes.io/kube-apiserver-client": "a signer",
    "kubernetes.io/metadata.name": "every namespace has it, from the API server",
    "kubernetes.io/os": "the kubelet's label, by which pods of nodewise are placed",
    "kubernetes.io/service-name": "the API server's label of EndpointSlices",
    "kubernetes.io/tls": "a type of Secrets",
}
"""Texts in this form that are not an annotation, a label or a resource that nodewise writes or reads."""
LOAD_ANNOTATIONS = [
    text for name, text in vars(load_annotations).items() if name.isupper() and isinstance(text, str)
]


@cache
def texts() -> frozenset[str]:
    """Every string literal of the code."""
    nodes = itertools.chain.from_iterable(ast.walk(ast.parse(path.read_text())) for path in SOURCES)
    return frozenset(
        node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def keys() -> set[str]:
    """Every string literal in the form of a key, without API groups, which end or are followed by a version."""
    keys = {text for text in texts() if KEY.fullmatch(text)}
    is_group = re.compile(r".*(k8s\.io/.*|/v\d\w*)")
    own = {text for text in keys if not is_group.fullmatch(text)}
    return own - NONE_OF_THESE.keys()


def test_the_page_of_names_has_every_key_that_the_code_has() -> None:
    assert len(keys()) > 30
    assert [key for key in sorted(keys()) if f"`{key}" not in PAGE] == []


def test_other_names_exist_in_the_code() -> None:
    assert NONE_OF_THESE.keys() - texts() == set()


@pytest.mark.parametrize(
    "name",
    [
        POLICY_LABEL,
        PREFIX,
        VIOLATING,
        pod_gpu_requests.ALLOW,
        pod_gpu_requests.DENY,
        pod_gpu_requests.SAME_GPU,
        pod_gpu_requests.LINKED,
        pod_gpu_requests.SINGLE_NUMA,
        node_allocations.GPUS,
        node_allocations.SUBDEVICES,
        agent.BIND_TIME,
        gpu_node_labels._DISABLE,
        gpu_node_labels._DESCHEDULE,
        gpu_node_labels._PREFER,
        gpu_node_labels._SUBDEVICE_DISABLE,
        gpu_node_labels._SUBDEVICE_DESCHEDULE,
        gpu_node_labels._SUBDEVICE_PREFERRED,
        cmk_names.OWNER,
        cmk_names.config_map("<node>"),
        node_patches.FIELD_MANAGER,
        bind_plugin_interface.RESERVATIONS_ANNOTATION,
        leader_election.CONTROLLER_LEASE,
        leader_election.EXTENDER_LEASE,
        agent_memory_storage.NAME,
        typical_pods.NAME,
        *LOAD_ANNOTATIONS,
    ],
)
def test_the_page_of_names_has(name: str) -> None:
    assert f"`{name}" in PAGE


def test_the_page_of_names_has_every_field_manager() -> None:
    managers = {
        text for text in texts() if re.fullmatch(r"nodewise-(telemetry|gpu|cpu|annotator|wake|devices)", text)
    }
    written = {
        name for path in SOURCES for name in re.findall(r'"fieldManager": "([\w-]+)"', path.read_text())
    }
    assert written <= managers
    assert [name for name in sorted(managers) if f"| `{name}` |" not in PAGE] == []


def test_the_page_of_events_has_every_reason() -> None:
    code = "\n".join(path.read_text() for path in SOURCES)
    calls = len(re.findall(r"recorder\.record\(\s*about", code))
    assert calls == 4, "an Event that the page does not know"
    kinds = (*policy_status.CONDITIONS, *policy_status.TASPOLICY_CONDITIONS)
    conditions = {kind.reason for kind in kinds if kind.reason}  # others have a cause as their reason
    reasons = {event_recorder.NO_NODE_PASSES, decision.NOT_BOUND, "AsExpected", "DeviceTainted"}
    reasons |= conditions | policy_status.NOT_READY.keys()
    documented = set(re.findall(r"^\| `(\w+)` \| (?:Warning|Normal) \|", EVENTS, re.MULTILINE))
    assert documented == reasons
    assert set(get_args(Type)) == {"Warning", "Normal"}


def test_the_page_of_metrics_has_every_cause() -> None:
    page = (ROOT / "docs/how-to/metrics.md").read_text()
    table = page.partition("| reason | cause |")[2].partition("\n\n")[0]
    first_columns = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    documented = [name for column in first_columns for name in re.findall(r"`(\w+)`", column)]
    assert sorted(documented) == sorted(get_args(CauseReason))
