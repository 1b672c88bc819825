"""A control-plane host in a temporary folder, on which the real command runs."""

import contextlib
import datetime as dt
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import structlog
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodewise.cli import main
from tests import forked_commands
from tests.conformance.configure.scheduler_manifests import TAS_TEMPLATE, kubeadm_pod, to_yaml

TEMPLATE = "deploy/extender-configuration/scheduler-config.yaml"
PROGRAM = [sys.executable, "-m", "nodewise", "configure"]


class RunResult(NamedTuple):
    code: int
    out: str
    err: str


class KeyPair(NamedTuple):
    cert: bytes
    key: bytes


class ControlPlaneHost:
    """A control-plane host. K is `root/K`, as in the list of cases; the working directory has the template of TAS."""

    def __init__(self, root: Path, minor: int = 30) -> None:
        self.k, self.work = root / "K", root / "S"
        self.certs = self.k / "certs"
        for folder in (self.k / "manifests", self.k / "pki", (self.work / TEMPLATE).parent):
            folder.mkdir(parents=True)
        self.manifest = self.k / "manifests" / "kube-scheduler.yaml"
        self.config = self.k / "scheduler-config.yaml"
        self.template = self.work / TEMPLATE
        self.template.write_bytes(TAS_TEMPLATE.encode())
        (self.work / "deploy" / "tas-deployment.yaml").write_text(
            "a: node-role.kubernetes.io/control-plane\n"
        )
        self.write(to_yaml(kubeadm_pod(minor)))
        for name, data in CERTIFICATE_FILES.items():
            self.write_certificate(name, data)

    def write_certificate(self, name: str, data: bytes) -> Path:
        path = self.k / "pki" / name
        path.write_bytes(data)
        path.chmod(0o600 if name.endswith(".key") else 0o644)
        return path

    def write(self, manifest: str | bytes | dict[str, Any]) -> None:
        """Write the manifest: a text, or an object as YAML."""
        text = to_yaml(manifest) if isinstance(manifest, dict) else manifest
        self.manifest.write_bytes(text if isinstance(text, bytes) else text.encode())
        self.manifest.chmod(0o600)

    def base_flags(self, **other: str) -> list[str]:
        """The flags of all cases, with other values for some."""
        flags = {
            "b": f"{self.k}",
            "d": f"{self.k}",
            "cert": f"{self.k}/pki/scheduler-client.crt",
            "key": f"{self.k}/pki/scheduler-client.key",
            "cert-dir": f"{self.certs}/",
            "m": f"{self.manifest}",
        } | {name.replace("_", "-"): value for name, value in other.items()}
        return [word for name, value in flags.items() for word in (f"-{name}", value)]

    def run(self, *more: str, **other: str) -> RunResult:
        return self.configure(*self.base_flags(**other), *more)

    def configure(
        self, *words: str, env: dict[str, str] | None = None, before: Callable[[], object] | None = None
    ) -> RunResult:
        """Run the command: in this process, or in a fork if `before` changes the process."""
        environment = env or {
            name: value for name, value in os.environ.items() if not name.startswith("NODEWISE_")
        }
        if before is None:
            result = self._configure_in_this_process(words, environment)
        else:
            command = [forked_commands.NODEWISE, "configure", *words]
            completed = forked_commands.run(command, cwd=self.work, env=environment, before=before)
            result = RunResult(completed.returncode, completed.stdout, completed.stderr)
        assert "Traceback" not in result.err, result.err
        return result

    def _configure_in_this_process(self, words: Sequence[str], environment: dict[str, str]) -> RunResult:
        out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        with (
            mock.patch.dict(os.environ, environment, clear=True),
            contextlib.chdir(self.work),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main.run(["configure", *words])
        structlog.reset_defaults()
        out.seek(0)
        return RunResult(int(ended.value.code or 0), out.read(), err.getvalue())

    @property
    def pod(self) -> dict[str, Any]:
        return yaml.load(self.manifest.read_bytes(), yaml.CSafeLoader)

    @property
    def container(self) -> dict[str, Any]:
        return self.pod["spec"]["containers"][0]

    @property
    def configuration(self) -> dict[str, Any]:
        return yaml.load(self.config.read_bytes(), yaml.CSafeLoader)

    @property
    def backups(self) -> list[Path]:
        return sorted(self.k.glob("backup_*"))

    def snapshot(self) -> dict[str, tuple[int, bytes | None]]:
        """Modes and contents of all files and folders by path; None for folders."""
        return {
            str(path.relative_to(self.k)): (
                path.lstat().st_mode,
                path.read_bytes() if path.is_file() else None,
            )
            for path in sorted(self.k.rglob("*"))
        }


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def issue(
    name: str,
    *,
    by: KeyPair | None = None,
    is_ca: bool = False,
    key: bytes | None = None,
    days: int = 100,
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
) -> KeyPair:
    """A certificate with its key, in PEM; self-signed without `by`."""
    own = serialization.load_pem_private_key(key, None) if key else ec.generate_private_key(ec.SECP256R1())
    assert isinstance(own, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(by.cert).subject if by else _name(name)
    signer = serialization.load_pem_private_key(by.key, None) if by else own
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=200))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if not is_ca:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    pem = serialization.Encoding.PEM
    private = own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(builder.sign(signer, hashes.SHA256()).public_bytes(pem), private)  # type: ignore[arg-type]


AUTHORITY = issue("kubernetes", is_ca=True)
CLIENT = issue("nodewise-scheduler-client", by=AUTHORITY)
CERTIFICATE_FILES = {
    "ca.crt": AUTHORITY.cert,
    "ca.key": AUTHORITY.key,
    "scheduler-client.crt": CLIENT.cert,
    "scheduler-client.key": CLIENT.key,
}
