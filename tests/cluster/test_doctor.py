"""`nodewise doctor` in a real cluster: no findings in a healthy one, and one finding for each defect."""

import contextlib
import copy
import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
import yaml

from nodewise.doctor.findings import CATALOGUE
from tests.cluster import (
    child_processes,
    doctor_cases,
    extender_process,
    followed_remedies,
    healthy_cluster,
    kubernetes_objects,
    misconfigurations,
    rbac_rights_comparison,
    read_only_commands,
    shipped_installation,
)
from tests.cluster.api_client import Object, path_of
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.controlplane import ControlPlane
from tests.cluster.doctor_cases import DOCTOR_CASES, OUTSIDE, DoctorCase
from tests.cluster.healthy_cluster import Diagnosis, HealthyCluster
from tests.cluster.hostile_objects import HOSTILE, HOSTILE_FILES
from tests.cluster.native_doctor_cases import NATIVE_CASES

BAD_SETTINGS, FOUND = 2, 3
FORBIDDEN: Final = 403
LONGEST: Final = 100_000
CROWD: Final = {"crowd": ""}
GATED: Final = {"schedulingGates": [{"name": "tests/held"}]}
UNPRINTABLE: Final = re.compile("[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
"""Control characters that a terminal may interpret, except the line feed, which the report uses."""


@pytest.fixture(scope="module")
def cluster(
    plane: ControlPlane, audit_log: AuditLog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HealthyCluster]:
    with healthy_cluster.installed(plane, audit_log, tmp_path_factory.mktemp("sound")) as cluster:
        yield cluster


def test_nothing_is_found_in_a_sound_cluster(cluster: HealthyCluster) -> None:
    assert_sound(cluster.diagnose())


def assert_sound(diagnosis: Diagnosis) -> None:
    assert (diagnosis.code, diagnosis.sound, diagnosis.findings, diagnosis.not_checked) == (
        0,
        True,
        [],
        [],
    ), diagnosis
    assert set(diagnosis.checked) == CATALOGUE.keys() - {"not-looked-at"}


def test_nor_when_kube_scheduler_says_itself_how_it_is_configured(cluster: HealthyCluster) -> None:
    arguments = [f"--kubeconfig={cluster.plane.admin.kubeconfig}", f"--scheduler-url={cluster.scheduler_url}"]
    assert_sound(Diagnosis(read_only_commands.run("doctor", *arguments, "-o", "json")))


def test_nor_where_nodewise_runs_outside_of_the_cluster(cluster: HealthyCluster) -> None:
    with OUTSIDE(cluster):
        diagnosis = cluster.diagnose()
    assert (diagnosis.code, diagnosis.sound, diagnosis.ids()) == (0, True, {"not-looked-at"}), diagnosis
    not_checked = {check["id"] for check in diagnosis.not_checked}
    assert not_checked >= {"rights-missing", "any-client", "replicas-not-ready"}
    assert not_checked.isdisjoint(diagnosis.checked)
    assert not_checked | {*diagnosis.checked} == CATALOGUE.keys() - {"not-looked-at"}


def test_nor_where_the_entry_names_the_service(cluster: HealthyCluster) -> None:
    with by_service(cluster):
        assert_sound(cluster.diagnose())


def test_nor_with_the_second_scheduler_that_configure_prints(cluster: HealthyCluster) -> None:
    with second_scheduler(cluster) as config:
        assert_sound(cluster.diagnose())
        text = config["data"]["scheduler.yaml"]
        assert text.count("ignorable: false") == 1
        path = path_of(config)
        cluster.api.patch(
            path, {"data": {"scheduler.yaml": text.replace("ignorable: false", "ignorable: true")}}
        )
        (finding,) = cluster.diagnose().findings
        assert finding["id"] == "wrong-ignorable"
        assert finding["object"].startswith("ConfigMap/nodewise/nodewise-scheduler, http://127.0.0.1:")


def test_rights_of_a_second_scheduler_are_granted_by_the_remedy(cluster: HealthyCluster) -> None:
    admission = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    with second_scheduler(cluster):
        cluster.api.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/nodewise-scheduler")
        [finding] = cluster.diagnose().of("rights-missing")
        assert finding["object"] == "ServiceAccount/nodewise/nodewise-scheduler"
        followed_remedies.run_in_shell(cluster, finding["command"])
        assert_sound(cluster.diagnose())
        for kind in ("ies", "ybindings"):
            cluster.api.delete(f"{admission}{kind}/nodewise-scheduler-nodes")


def test_a_scheduler_that_cannot_be_seen_is_no_fault_beside_one_that_asks_nodewise(
    cluster: HealthyCluster,
) -> None:
    arguments = [f"--kubeconfig={cluster.doctor.kubeconfig}", "-o", "json"]
    alone = Diagnosis(read_only_commands.run("doctor", *arguments))
    assert (alone.code, alone.ids()) == (3, {"not-looked-at"})
    assert "--scheduler-config" in alone.findings[0]["remedy"]
    with second_scheduler(cluster):
        diagnosis = Diagnosis(read_only_commands.run("doctor", *arguments))
    assert (diagnosis.code, diagnosis.sound, diagnosis.ids("note")) == (0, True, diagnosis.ids())
    assert diagnosis.not_checked


@contextlib.contextmanager
def second_scheduler(cluster: HealthyCluster) -> Iterator[Object]:
    """Creates a second scheduler with nodewise in its pod; yields its ConfigMap."""
    done = read_only_commands.run("configure", "--mode", "second-scheduler", "--kubernetes-version=v1.36.3")
    made = [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest["kind"] != "Namespace"]
    deployment = next(manifest for manifest in made if manifest["kind"] == "Deployment")
    pod = deployment["spec"]["template"]
    try:
        for manifest in made:
            if manifest is deployment:
                healthy_cluster.put_deployment(cluster.api, manifest)
            else:
                cluster.api.create(manifest)
        running = healthy_cluster.running_pod(
            "second-0", healthy_cluster.NAMESPACE, healthy_cluster.PLAIN[0], pod, owner="second"
        )
        with misconfigurations.created(running)(cluster):
            yield next(manifest for manifest in made if manifest["kind"] == "ConfigMap")
    finally:
        for manifest in made:
            cluster.api.delete(path_of(manifest))


def by_service(cluster: HealthyCluster) -> contextlib.AbstractContextManager[None]:
    """Uses the DNS name of the Service in the extender's entry."""
    return misconfigurations.entry(urlPrefix=f"https://{shipped_installation.HOST}:9001/scheduler")(cluster)


def test_each_finding_is_planted() -> None:
    # this control plane has a version that the tests run on; test_doctor_node_restriction.py has one without the plugin
    not_planted = {"kubernetes-version-untested", "verdict-labels-writable"}
    assert {case.finding for case in (*DOCTOR_CASES, *NATIVE_CASES)} == CATALOGUE.keys() - not_planted


@pytest.mark.parametrize("case", DOCTOR_CASES, ids=doctor_cases.case_name)
def test_a_planted_fault_is_found_and_its_remedy_ends_it(cluster: HealthyCluster, case: DoctorCase) -> None:
    configuration = copy.deepcopy(cluster.config)
    try:
        with case.defect(cluster):
            doctor_cases.find_and_follow_remedy(cluster, case)
    finally:
        cluster.config = configuration


def test_commands_are_for_the_cluster_that_was_examined(cluster: HealthyCluster) -> None:
    with misconfigurations.entry(bindVerb=None)(cluster):
        lines = cluster.ask("-o", "table").stdout.splitlines()
    assert any(line.strip().startswith("run: nodewise configure render-scheduler ") for line in lines)
    assert lines[-1] == f"Before you run these commands: export KUBECONFIG={cluster.doctor.kubeconfig}"


# Hostile objects


def test_control_characters_in_objects_are_not_printed(cluster: HealthyCluster) -> None:
    """All hostile objects exist at the same time."""
    with contextlib.ExitStack() as stack:
        for defect in HOSTILE.values():
            stack.enter_context(defect(cluster))
        outputs = {name: cluster.ask("-o", name, "--timeout=3s") for name in ("json", "table")}
    for done in outputs.values():
        assert done.returncode == FOUND, done.stderr
        assert_harmless(done)
    json.loads(outputs["json"].stdout)


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_a_hostile_file_is_read_or_refused(cluster: HealthyCluster, name: str) -> None:
    with HOSTILE_FILES[name](cluster):
        done = cluster.ask()
    assert done.returncode in {FOUND, BAD_SETTINGS}
    assert_harmless(done)


def assert_harmless(done: "subprocess.CompletedProcess[str]") -> None:
    for text in (done.stdout, done.stderr):
        assert not UNPRINTABLE.search(text)
        assert not re.search(r"^KIND", text, re.MULTILINE)
        assert len(text) < LONGEST
        assert "Traceback" not in text


# Rights


def _rules() -> list[Object]:
    """The shipped rights of doctor."""
    rules: list[Object] = next(
        manifest for manifest in extender_process.manifest("doctor.yaml") if manifest["kind"] == "ClusterRole"
    )["rules"]
    return rules


def test_the_rights_that_ship_are_enough_and_hardly_one_is_too_many(cluster: HealthyCluster) -> None:
    account = f"system:serviceaccount:{healthy_cluster.NAMESPACE}:{healthy_cluster.DOCTOR}"
    earlier = len(cluster.log.requests(account))  # some are forbidden by a planted fault
    assert_sound(cluster.diagnose())
    with by_service(cluster):
        assert_sound(cluster.diagnose())
    requests = cluster.log.requests(account)
    assert [request for request in requests[earlier:] if request.code == FORBIDDEN] == []
    used = {
        (right.verb, right.resource, right.group)
        for right in rbac_rights_comparison.needed(request for request in requests if request.resource)
    }
    granted = {
        (right.verb, right.resource, right.group)
        for right in rbac_rights_comparison.granted(extender_process.manifest("doctor.yaml"))
    }
    # read only with a gpu agent, and with the agent load
    by_agents = {("list", "resourceslices", "resource.k8s.io"), ("list", "nodes", "metrics.k8s.io")}
    assert granted - used - by_agents == {("list", "namespaces", "")}, "no ClusterPlacementPolicy"


def test_the_job_that_ships_is_one_for_a_real_api_server(cluster: HealthyCluster) -> None:
    file = str(extender_process.ROOT / "deploy" / "doctor.yaml")
    assert "job.batch/nodewise-doctor" in cluster.plane.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", file
    )


def test_an_unreadable_resource_is_reported_with_the_missing_right(cluster: HealthyCluster) -> None:
    half = [rule for rule in _rules() if not {"nodes", "taspolicies", "configmaps"} & set(rule["resources"])]
    user = cluster.plane.user("half", half)
    diagnosis = cluster.diagnose(user=user)
    assert diagnosis.code == 3
    assert diagnosis.ids() == {"not-looked-at"}
    text = str(diagnosis)
    assert all(f"list {resource}" in text for resource in ("nodes", "taspolicies")), text
    assert {check["id"] for check in diagnosis.not_checked} >= {"gpu-node-without-labels", "policy-unknown"}
    assert not {check["id"] for check in diagnosis.not_checked} & set(diagnosis.checked)


def test_a_user_without_rights_sees_all_missing_rights_in_few_lines(cluster: HealthyCluster) -> None:
    done = cluster.ask("-o", "table", user=cluster.plane.user("nobody"))
    assert done.returncode == 3
    assert "list nodes" in done.stdout
    assert len(done.stdout.splitlines()) < 60


def test_an_api_server_that_is_away_is_one_plain_line(cluster: HealthyCluster) -> None:
    kubeconfig = cluster.folder / "away.kubeconfig"
    text = cluster.plane.admin.kubeconfig.read_text()
    away = f"https://127.0.0.1:{child_processes.free_port()}"
    kubeconfig.write_text(text.replace(cluster.plane.url, away))
    done = read_only_commands.run("doctor", f"--kubeconfig={kubeconfig}")
    assert (done.returncode, done.stdout) == (1, "")
    assert away in done.stderr
    assert len(done.stderr.splitlines()) == 1


# Large clusters


@contextlib.contextmanager
def crowded(cluster: HealthyCluster, nodes: int, policies: int) -> Iterator[None]:
    """Creates nodes, and policies with a pod each, with a common label by which they are deleted at the end."""
    names = [f"crowd-{at}" for at in range(nodes)]
    made = [kubernetes_objects.node(name, labels=CROWD) for name in names]
    for at in range(policies):
        policy = healthy_cluster.policy(f"crowd-{at}", dontschedule=[extender_process.HOT])
        policy["metadata"]["labels"] = CROWD
        pod = misconfigurations.waiting(f"crowd-{at}", labels=CROWD | {"telemetry-policy": f"crowd-{at}"})
        made += [policy, pod | {"spec": pod["spec"] | GATED}]
    cluster.metrics.set("heat", dict.fromkeys([*healthy_cluster.NODES, *names], 20))
    try:
        with ThreadPoolExecutor(8) as workers:
            list(workers.map(cluster.api.create, made))
        yield
    finally:
        for path in (
            "/api/v1/nodes",
            f"/api/v1/namespaces/{healthy_cluster.TENANT}/pods",
            healthy_cluster.POLICIES,
        ):
            query = {"labelSelector": ",".join(CROWD), "gracePeriodSeconds": "0"}
            cluster.api.request("DELETE", path, params=query)
        cluster.metrics.set("heat", dict.fromkeys(healthy_cluster.NODES, 20))


def test_it_ends_in_a_large_cluster_and_its_memory_is_bounded(cluster: HealthyCluster) -> None:
    with crowded(cluster, nodes=500, policies=150):
        diagnosis, most_mib = cluster.measured()
    assert diagnosis.code in {0, 3}
    assert most_mib < 120
    assert len(diagnosis.done.stdout) < 100_000
