"""`nodewise certs` with the programs that use its certificates: nodewise under load, kube-scheduler, an API server."""

import base64
import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from nodewise.tls.x509_certificates import is_issued_by
from tests import forked_commands
from tests.cluster import (
    api_user_kubeconfigs,
    child_processes,
    extender_process,
    kubernetes_objects,
    steady_filter_calls,
)
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.certificates import CertificatePair
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import NODEWISE, ROOT, policy
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.steady_filter_calls import ClientIdentity
from tests.cluster.test_certificate_rotation import clients_end_after, reloads
from tests.cluster.test_scheduler_certificate_rotation import HOT, stream

CLIENT = "nodewise-scheduler-client"
NAMES = ("nodewise-tls", CLIENT)
SIGNER = "kubernetes.io/kube-apiserver-client"


def certs(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs the command and checks its exit code."""
    done = forked_commands.run([forked_commands.NODEWISE, "certs", *arguments])
    assert done.returncode == code, done.stdout + done.stderr
    assert "PRIVATE" not in done.stdout + done.stderr
    return done


class WrittenCertificates(extender_process.CertificateFiles):
    """The certificates in a folder that the command wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = CertificatePair(folder / "tls.crt", folder / "tls.key")
        self.client = CertificatePair(folder / "client.crt", folder / "client.key")
        self.authority: Any = SimpleNamespace(ca_file=folder / "ca.crt")

    def certs(self, *arguments: str, code: int = 0) -> str:
        return certs("--host", self.folder, "--settle=0s", *arguments, code=code).stdout

    @property
    def flags(self) -> list[str]:
        """The certificate flags of nodewise."""
        return [
            f"--cert={self.server.cert}",
            f"--key={self.server.key}",
            f"--client-ca={self.authority.ca_file}",
            f"--client-name={CLIENT}",
            "--reload-period=100ms",
            "--connection-age=1s",
        ]

    def serial(self) -> str:
        return f"{x509.load_pem_x509_certificate(self.server.cert.read_bytes()).serial_number:X}"


@pytest.fixture
def written(tmp_path: Path) -> WrittenCertificates:
    certificates = WrittenCertificates(tmp_path / "pki")
    certificates.certs()
    return certificates


# Certificates in files


def test_two_renewals_under_load_cost_no_call_of_clients_that_read_their_ca_file_once(
    written: WrittenCertificates, tmp_path: Path
) -> None:
    trusted = tmp_path / "as-it-was-at-the-start.crt"
    shutil.copy(written.authority.ca_file, trusted)
    arguments = [
        f"--objects-from={ROOT / 'examples' / 'health-metric'}",
        "--address=127.0.0.1",
        "--port=0",
        "--health-port=0",
        *written.flags,
    ]
    with extender_process.started(tmp_path, arguments, written) as nodewise:
        nodewise.process.wait_ready(nodewise.is_ready)
        with steady_filter_calls.load(nodewise, ClientIdentity(trusted, written.client)) as load:
            for times in (1, 2):
                before = written.serial()
                written.certs("--renew")
                wait("both CAs are trusted", lambda n=times: reloads(nodewise, "client_ca") >= n or None)
                load.sees(before)
                shutil.copy(written.authority.ca_file, tmp_path / "fresh.crt")
                (tmp_path / "fresh.crt").rename(trusted)  # as if clients were restarted
                load.goes_on()
                written.certs("--restarted")
                assert written.serial() != before
                load.sees(written.serial())
        assert nodewise.events("tls_reload_failed") == []
        assert nodewise.events("connection_ended") == []


def test_a_scheduler_restarted_as_instructed_binds_through_a_renewal(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    written: WrittenCertificates,
    tmp_path: Path,
) -> None:
    sandbox.nodes(*(kubernetes_objects.node(name, cpu="400") for name in "ab"))
    metrics.set("heat", {"a": 90, "b": 10})
    policy(sandbox, dontschedule=[HOT])
    with extender_process.extender(plane, tmp_path, *written.flags, certificates=written) as nodewise:
        wait("the metric is known", lambda: nodewise.fetched("heat") or None)
        config = {"extenders": [nodewise.entry()]}
        with plane.start_scheduler(config) as first, stream(sandbox) as pods:
            written.certs("--renew", "--lifetime=700d")
            wait("both CAs are trusted", lambda: reloads(nodewise, "client_ca") or None)
            pods.goes_on()
            first.stop()
            with plane.start_scheduler(config):
                pods.goes_on()
                written.certs("--restarted", "--lifetime=700d")
                wait("the certificate is loaded", lambda: reloads(nodewise, "serving") or None)
                wait("the scheduler shows its new one", lambda: clients_end_after(nodewise, 600) or None)
                pods.goes_on()
                pods.stop()
        assert nodewise.events("connection_ended") == []


# Certificates in Secrets


@pytest.fixture
def operator(plane: ControlPlane, sandbox: Sandbox) -> User:
    """A user with the rights that the documentation of certificates lists, in the test's namespace only."""
    rules = [api_user_kubeconfigs.rule("get create update", "secrets")]
    return plane.user(f"operator-{child_processes.number()}", rules, sandbox.namespace)


class AppliedCertificates:
    """Runs the command as a user for the test's namespace."""

    def __init__(self, sandbox: Sandbox, user: User) -> None:
        self.sandbox = sandbox
        self.given = (f"--kubeconfig={user.kubeconfig}", f"--namespace={sandbox.namespace}", "--settle=0s")

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return certs(*self.given, *arguments, code=code)

    def secret(self, name: str) -> Object:
        return self.sandbox.api.get(f"/api/v1/namespaces/{self.sandbox.namespace}/secrets/{name}")

    def held(self) -> list[dict[str, bytes]]:
        """The content of both Secrets, after a check that they contain no private key of a CA."""
        secrets = [
            {key: base64.b64decode(text) for key, text in self.secret(name)["data"].items()} for name in NAMES
        ]
        keys = [
            serialization.load_pem_private_key(text, None).public_key()
            for secret in secrets
            for key, text in secret.items()
            if key.endswith(".key")
        ]
        for secret in secrets:
            assert all(
                ca.public_key() not in keys
                for ca in x509.load_pem_x509_certificates(secret.get("ca.crt") or b"")
            )
        return secrets


@pytest.fixture
def applied(sandbox: Sandbox, operator: User) -> AppliedCertificates:
    return AppliedCertificates(sandbox, operator)


def test_secrets_are_written_once_and_renewed_in_two_steps(applied: AppliedCertificates) -> None:
    assert "due: the first certificates" in applied("--check", code=3).stdout
    applied("--apply")
    versions = [applied.secret(name)["metadata"]["resourceVersion"] for name in NAMES]
    first = applied.held()
    applied("--apply")
    assert [applied.secret(name)["metadata"]["resourceVersion"] for name in NAMES] == versions
    assert "nothing is due before" in applied("--check").stdout
    done = applied("--apply", "--renew")
    assert "restart all replicas of kube-scheduler" in done.stderr
    second = applied.held()
    assert [secret["tls.crt"] for secret in second] == [secret["tls.crt"] for secret in first]
    assert all(secret["ca.crt"].count(b"BEGIN") == 2 for secret in second)
    assert json.loads(applied("--check", "-o", "json", code=3).stdout)["next"] == "wait"
    assert "has to reach both sides first" in applied("--apply", "--restarted", "--settle=1h", code=1).stderr
    applied("--apply", "--restarted")
    third = applied.held()
    assert [secret["tls.crt"] for secret in third] == [secret["next.crt"] for secret in second]
    assert set(third[0]) == {"tls.crt", "tls.key", "ca.crt"}
    applied("--check")


def test_runs_at_once_leave_sides_that_trust_each_other(applied: AppliedCertificates) -> None:
    """A later run reads the Secrets again, which an earlier run may have written only in part."""
    command = [NODEWISE, "certs", *applied.given, "--apply"]
    for more in ([], ["--renew"]):
        running = [
            subprocess.Popen([*map(str, command), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(4)
        ]
        outputs = [process.communicate(timeout=120) for process in running]
        assert [process.returncode for process in running] == [0] * 4, outputs
        server, client = applied.held()
        for shown, trusts in ((server, client), (client, server)):
            leaf = x509.load_pem_x509_certificate(shown["tls.crt"])
            own = serialization.load_pem_private_key(shown["tls.key"], None).public_key()
            assert own == leaf.public_key()
            assert [ca for ca in x509.load_pem_x509_certificates(trusts["ca.crt"]) if is_issued_by(leaf, ca)]
    applied("--apply", "--restarted")
    applied("--check")


def test_printed_secrets_can_be_applied_and_renewed(
    plane: ControlPlane, applied: AppliedCertificates, tmp_path: Path
) -> None:
    command = [NODEWISE, "certs", f"--namespace={applied.sandbox.namespace}"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    (tmp_path / "secrets.yaml").write_text(printed)
    plane.kubectl("apply", "-f", str(tmp_path / "secrets.yaml"))
    applied("--check")
    applied("--apply", "--renew")
    for name in NAMES:
        assert "last-applied" not in json.dumps(applied.secret(name)["metadata"]), "there was a key in it"


@pytest.mark.parametrize("kind", ["Opaque", "kubernetes.io/tls"])
def test_another_ones_secret_is_not_written_over_unless_it_is_to_be_replaced(
    applied: AppliedCertificates, sandbox: Sandbox, plane: ControlPlane, kind: str
) -> None:
    data = {"tls.crt": base64.b64encode(b"mine").decode(), "tls.key": ""}
    sandbox.put(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CLIENT}, "type": kind, "data": data}
    )
    message = applied("--apply", code=1).stderr
    assert f"Secret {sandbox.namespace}/{CLIENT}: was not written by nodewise certs" in message
    assert applied.secret(CLIENT)["data"] == data
    assert sandbox.api.find(f"/api/v1/namespaces/{sandbox.namespace}/secrets/{NAMES[0]}") is None
    AppliedCertificates(sandbox, plane.admin)("--apply", "--replace")
    assert applied.secret(CLIENT)["type"] == "kubernetes.io/tls"
    applied("--check")


def test_a_missing_right_to_read_secrets_is_reported(plane: ControlPlane, sandbox: Sandbox) -> None:
    user = plane.user(f"nobody-{child_processes.number()}")
    assert "is forbidden" in AppliedCertificates(sandbox, user)("--apply", code=1).stderr


# Certificates from the cluster's signer


@pytest.fixture
def signer(plane: ControlPlane) -> Iterator[None]:
    """A kube-controller-manager that signs approved requests with the cluster's CA."""
    flags = {
        "cluster-signing-cert-file": str(plane.ca_file),
        "cluster-signing-key-file": str(plane.authority.key_file()),
    }
    process = plane.start_controller_manager("csrsigning", flags)
    yield
    process.stop()


@contextlib.contextmanager
def waiting_command(sandbox: Sandbox, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs the command; yields it with the name of its CertificateSigningRequest."""
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    before = {request["metadata"]["name"] for request in sandbox.api.get(path)["items"]}
    command = [
        NODEWISE,
        "certs",
        f"--kubeconfig={sandbox.plane.admin.kubeconfig}",
        f"--namespace={sandbox.namespace}",
        f"--signer-name={SIGNER}",
        "--settle=0s",
        *arguments,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:

        def request_name() -> str | None:
            names = {request["metadata"]["name"] for request in sandbox.api.get(path)["items"]} - before
            return next(iter(names), None)

        try:
            yield child, wait("the request exists", request_name)
        finally:
            child.kill()


def test_the_clusters_signer_signs_the_client_which_is_trusted_through_the_next_renewal(
    plane: ControlPlane, sandbox: Sandbox, signer: None, tmp_path: Path
) -> None:
    applied = AppliedCertificates(sandbox, plane.admin)
    applied("--apply")
    before = applied.held()
    with waiting_command(sandbox, "--apply", "--timeout=60s") as (child, name):
        plane.kubectl("certificate", "approve", name)
        out, err = child.communicate(timeout=90)
    assert child.returncode == 0, err
    assert f"kubectl certificate approve {name}" in err
    assert f"until nodewise trusts {SIGNER}" in err
    assert f"start nodewise with --client-name {CLIENT}" in err
    assert "PRIVATE" not in out + err
    server, client = applied.held()
    assert server["tls.crt"] == before[0]["tls.crt"]
    assert client["ca.crt"] == before[1]["ca.crt"]
    assert plane.authority.ca_pem.strip() in server["ca.crt"]
    assert authenticated_name(plane, client, tmp_path) == CLIENT
    applied("--check")

    applied("--apply", "--renew")
    applied("--apply", "--restarted")
    renewed, kept = applied.held()
    assert renewed["tls.crt"] != server["tls.crt"]
    assert kept["tls.crt"] == client["tls.crt"]
    assert plane.authority.ca_pem.strip() in renewed["ca.crt"]
    assert plane.authority.ca_pem.strip() not in kept["ca.crt"]


def authenticated_name(plane: ControlPlane, held: dict[str, bytes], folder: Path) -> str:
    """The user name that the API server reads from a certificate."""
    pair = CertificatePair(folder / "client.crt", folder / "client.key")
    for path, key in zip(pair, ("tls.crt", "tls.key"), strict=True):
        path.write_bytes(held[key])
    user = User(SimpleNamespace(url=plane.url, authority=plane.authority, folder=folder), "signed", pair=pair)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    with user.api as api:
        return str(api.request("POST", path, json=review).json()["status"]["userInfo"]["username"])


def test_a_certificate_of_the_signer_is_printed_as_one_secret(
    plane: ControlPlane, sandbox: Sandbox, signer: None
) -> None:
    with waiting_command(sandbox, "--timeout=60s") as (child, name):
        plane.kubectl("certificate", "approve", name)
        out, err = child.communicate(timeout=90)
    assert child.returncode == 0, err
    [secret] = yaml.safe_load_all(out)
    assert (secret["metadata"]["name"], set(secret["data"])) == (CLIENT, {"tls.crt", "tls.key"})


@pytest.mark.parametrize("answer", ["denied", "silence"])
def test_a_failed_signing_request_is_reported_and_removed(
    plane: ControlPlane, sandbox: Sandbox, answer: str
) -> None:
    applied = AppliedCertificates(sandbox, plane.admin)
    applied("--apply")
    before = applied.held()
    with waiting_command(sandbox, "--apply", "--timeout=2s" if answer == "silence" else "--timeout=60s") as (
        child,
        name,
    ):
        if answer == "denied":
            plane.kubectl("certificate", "deny", name)
        _, err = child.communicate(timeout=90)
    assert child.returncode == 1
    assert ("Denied" if answer == "denied" else "not approved and signed after 2 s") in err
    assert sandbox.api.find(f"/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}") is None
    assert applied.held() == before


def test_nodewise_has_a_certificate_before_the_cluster_signs_for_its_client(
    plane: ControlPlane, sandbox: Sandbox
) -> None:
    done = AppliedCertificates(sandbox, plane.admin)("--apply", f"--signer-name={SIGNER}", code=1)
    assert (
        f"Secret {sandbox.namespace}/nodewise-tls: does not exist; expected `--apply` without" in done.stderr
    )


def test_a_signer_with_an_unknown_authority_requires_its_name(plane: ControlPlane, sandbox: Sandbox) -> None:
    done = AppliedCertificates(sandbox, plane.admin)("--apply", "--signer-name=example.com/clients", code=1)
    assert "--signer-ca: not given, and the CA of example.com/clients is unknown" in done.stderr
