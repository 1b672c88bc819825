"""Doctor finds no problem in the rendered manifests and in the configurations that nodewise prints."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nodewise.cli.configure import command as configure
from nodewise.doctor import check_runner
from nodewise.doctor.collectors import tls_probe
from nodewise.doctor.facts import ProbedServer
from nodewise.doctor.findings import Finding
from nodewise.serve.certificate_issuer import CertificateIssuer
from tests.unit.doctor.facts_factory import CLIENT, HOST, YEAR
from tests.unit.doctor.test_collectors import facts

AUTHORITY = CertificateIssuer("nodewise-ca", datetime.now(UTC), YEAR)
SERVER, OWN = AUTHORITY.server([HOST], "nodewise"), AUTHORITY.client(CLIENT)
DEPLOY = Path(__file__).parents[3] / "deploy"
RENDERED = sorted(path.parent.name for path in (DEPLOY / "kustomize").glob("*/nodewise.yaml"))
CERTIFICATES = {"nodewise-tls": (SERVER, AUTHORITY), "nodewise-scheduler-client": (OWN, AUTHORITY)}
COLLECTIONS = {
    "Deployment": "apps/v1/deployments",
    "DaemonSet": "apps/v1/daemonsets",
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
OBJECTS = {"ConfigMap": "configmaps", "Service": "services"}


@pytest.fixture(autouse=True)
def _without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(_: object) -> ProbedServer:
        return ProbedServer(attempts=("not from here",))

    monkeypatch.setattr(tls_probe, "connect", connect)


def parse_manifest(text: str) -> dict[str, Any]:
    """The objects of a manifest with the status of running workloads, by path."""
    objects: dict[str, Any] = {}
    for document in filter(None, yaml.safe_load_all(text)):
        kind, metadata = document["kind"], document["metadata"]
        if kind in COLLECTIONS:
            if kind in ("Deployment", "DaemonSet"):
                document["status"] = {"readyReplicas": document["spec"].get("replicas", 1), "numberReady": 0}
            objects.setdefault(f"/apis/{COLLECTIONS[kind]}", []).append(document)
        elif kind in OBJECTS:
            objects[f"/api/v1/namespaces/{metadata['namespace']}/{OBJECTS[kind]}/{metadata['name']}"] = (
                document
            )
    for name, (leaf, authority) in CERTIFICATES.items():
        data = {"tls.crt": leaf.cert, "tls.key": leaf.key, "ca.crt": authority.cert}
        secret = {"data": {key: base64.b64encode(text).decode() for key, text in data.items()}}
        objects[f"/api/v1/namespaces/nodewise/secrets/{name}"] = secret
    ready = [{"addresses": ["10.0.0.7"], "conditions": {"ready": True}}]
    slices = "/apis/discovery.k8s.io/v1/namespaces/nodewise/endpointslices"
    objects[slices] = [{"endpoints": ready, "ports": [{"name": "https", "port": 9001}]}]
    return objects


def run_configure(*arguments: str) -> str:
    done = CliRunner().invoke(configure, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def find_problems(text: str, *files: str) -> list[Finding]:
    report = check_runner.examine(facts(parse_manifest(text), (), *files))
    return [finding for finding in report.findings if finding.severity != "note"]


@pytest.fixture
def certificate_flags(tmp_path: Path) -> list[str]:
    """Flags that name kube-scheduler's certificate files."""
    for name, text in (("ca.crt", AUTHORITY.cert), ("tls.crt", OWN.cert), ("tls.key", OWN.key)):
        (tmp_path / name).write_bytes(text)
    return [f"--ca={tmp_path}/ca.crt", f"--cert={tmp_path}/tls.crt", f"--key={tmp_path}/tls.key"]


def rendered_setups() -> Iterator[tuple[str, str, list[str]]]:
    """Name, agents and flags of entries for each rendered set-up with an extender."""
    for name in RENDERED:
        lines = (
            line.strip() for line in (DEPLOY / "kustomize" / name / "nodewise.yaml").read_text().splitlines()
        )
        agents = next((line.removeprefix("agents: ") for line in lines if line.startswith("agents: ")), "")
        filtering = {"telemetry", "gpu"}.intersection(agents.split(","))
        if agents:
            yield name, agents, ["--one-entry-per-agent"]
        if agents and (
            not filtering or filtering.issuperset(agents.split(","))
        ):  # one entry cannot tell these agents apart
            yield name, agents, []


@pytest.mark.parametrize(("name", "agents", "entries"), list(rendered_setups()))
def test_rendered_set_ups(
    name: str, agents: str, entries: list[str], certificate_flags: list[str], tmp_path: Path
) -> None:
    text = (DEPLOY / "kustomize" / name / "nodewise.yaml").read_text()
    if "kind: KubeSchedulerConfiguration" in text:
        assert find_problems(text) == []
        return
    file = tmp_path / "scheduler.yaml"
    file.write_text(run_configure("render-scheduler", f"--agents={agents}", *entries, *certificate_flags))
    assert find_problems(text, str(file)) == []


def test_a_scheduler_of_ones_own() -> None:
    assert find_problems((DEPLOY / "scoring.yaml").read_text()) == []


@pytest.mark.parametrize("agents", ["telemetry", "telemetry,gpu", "gpu", "safe,congestion"])
def test_a_printed_second_scheduler(agents: str) -> None:
    version = ["--kubernetes-version=v1.36.3"]
    assert find_problems(run_configure("--mode=second-scheduler", f"--agents={agents}", *version)) == []
