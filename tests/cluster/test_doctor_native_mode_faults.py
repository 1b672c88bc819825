"""`nodewise doctor` finds each defect of native mode, whose remedy ends it, and nothing in a healthy cluster."""

from collections.abc import Iterator

import pytest

from tests.cluster import doctor_cases, healthy_native_cluster
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.controlplane import ControlPlane
from tests.cluster.doctor_cases import DoctorCase
from tests.cluster.healthy_cluster import HealthyCluster
from tests.cluster.native_doctor_cases import NATIVE_CASES


@pytest.fixture(scope="module")
def cluster(
    plane: ControlPlane, audit_log: AuditLog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HealthyCluster]:
    with healthy_native_cluster.installed(plane, audit_log, tmp_path_factory.mktemp("native")) as cluster:
        yield cluster


@pytest.mark.kubernetes_versions(oldest=36)
def test_nothing_is_found_in_a_sound_cluster(cluster: HealthyCluster) -> None:
    diagnosis = cluster.diagnose()
    assert (diagnosis.code, diagnosis.sound, diagnosis.ids("error", "warning")) == (0, True, set()), diagnosis


@pytest.mark.parametrize("case", NATIVE_CASES, ids=doctor_cases.case_name)
def test_a_planted_fault_is_found_and_its_remedy_ends_it(cluster: HealthyCluster, case: DoctorCase) -> None:
    with case.defect(cluster):
        doctor_cases.find_and_follow_remedy(cluster, case)
