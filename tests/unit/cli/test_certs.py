"""`nodewise certs`, from the command line to the output and to the files of a folder."""

import base64
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from nodewise.base.errors import BadInput, BadSettings, Unavailable
from nodewise.cli import certs
from nodewise.install import certificate_folder

NAMES = {"tls.crt", "tls.key", "ca.crt", "client.crt", "client.key"}


def run(*arguments: str | Path) -> Result:
    completed = CliRunner().invoke(certs.command, [*map(str, arguments)], standalone_mode=False)
    if completed.exception:
        raise completed.exception
    return completed


def run_check(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and output of --check."""
    completed = run("--check", *arguments)
    return completed.return_value or completed.exit_code, completed.stdout


def file_contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in NAMES}


def serial(folder: Path, name: str = "tls.crt") -> int:
    return x509.load_pem_x509_certificate((folder / name).read_bytes()).serial_number


def keys_below(folder: Path) -> list[bytes]:
    """All private keys in the files below a folder."""
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    keys_by_file = (
        re.findall(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [^\n]*\n", text, re.DOTALL)
        for text in texts
    )
    return [key for keys in keys_by_file for key in keys]


def has_no_key(stderr: str) -> bool:
    """Whether an output contains no key, neither in PEM nor in base64."""
    texts = [
        stderr,
        *(
            base64.b64decode(word).decode("latin-1")
            for word in re.findall(r"[A-Za-z0-9+/]{40,}={0,2}", stderr)
            if len(word) % 4 == 0
        ),
    ]
    return not any("PRIVATE" in text for text in texts)


def test_two_secrets_are_printed_by_default() -> None:
    server, client = yaml.load_all(run("-n", "web", "--name", "10.0.0.7").stdout, yaml.CSafeLoader)
    expected = ("nodewise-tls", "nodewise-scheduler-client")
    assert (server["metadata"]["name"], client["metadata"]["name"]) == expected
    leaf = x509.load_pem_x509_certificate(base64.b64decode(server["data"]["tls.crt"]))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "nodewise.web.svc" in names.get_values_for_type(x509.DNSName)
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    listed = json.loads(run("-o", "json").stdout)
    assert [manifest["kind"] for manifest in listed["items"]] == ["Secret", "Secret"]


def test_files_are_made_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "pki"
    run("--host", folder)
    assert {name: stat.S_IMODE((folder / name).stat().st_mode) for name in NAMES} == {
        name: 0o600 if name.endswith(".key") else 0o644 for name in NAMES
    }
    before = file_contents(folder)
    completed = run("--host", folder)
    assert completed.stdout.startswith("nothing is due before ")
    assert file_contents(folder) == before
    assert run_check("--host", folder)[0] == 0


def test_renewal_announces_first_and_switches_with_restarted(tmp_path: Path) -> None:
    run("--host", tmp_path)
    first = serial(tmp_path)
    completed = run("--host", tmp_path, "--renew")
    assert "restart all replicas of kube-scheduler before " in completed.stderr
    assert serial(tmp_path) == first
    assert (tmp_path / "ca.crt").read_bytes().count(b"BEGIN") == 2
    code, output = run_check("--host", tmp_path, "-o", "json")
    assert (code, json.loads(output)["due"], json.loads(output)["next"]) == (3, True, "wait")
    assert run("--host", tmp_path).stdout.startswith("waiting until ")
    with pytest.raises(Unavailable, match="has to reach both sides first"):
        run("--host", tmp_path, "--restarted")
    run("--host", tmp_path, "--restarted", "--settle", "0s")
    assert serial(tmp_path) != first
    assert run_check("--host", tmp_path)[0] == 0


def test_check_changes_nothing_and_prints_the_due_step(tmp_path: Path) -> None:
    code, output = run_check("--host", tmp_path / "none")
    assert (code, output.splitlines()[0]) == (3, "due: the first certificates")
    assert not (tmp_path / "none").exists()
    run("--host", tmp_path)
    code, output = run_check("--host", tmp_path, "--name", "other.example")
    assert (code, "does not name other.example" in output) == (3, True)


@pytest.mark.parametrize("name", ["tls.key", "ca.crt", "..data"])
def test_another_ones_file_is_not_written_over_unless_it_is_to_be_replaced(tmp_path: Path, name: str) -> None:
    if name == "..data":
        (tmp_path / "others").mkdir()
        (tmp_path / name).symlink_to("others")
    else:
        (tmp_path / name).write_text("mine")
    with pytest.raises(BadInput, match=f"{name}: was not written by nodewise certs; expected --replace"):
        run("--host", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {name, "others"}
    run("--host", tmp_path, "--replace")
    assert run_check("--host", tmp_path)[0] == 0


def test_no_key_of_an_authority_and_no_forgotten_key_is_on_the_disk_and_none_is_printed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "pki"
    for more, count in (([], 2), (["--renew"], 4), (["--restarted", "--settle", "0s"], 2), ([], 2)):
        completed = run("--host", folder, *more)
        assert has_no_key(completed.output)
        keys = [serialization.load_pem_private_key(key, None).public_key() for key in keys_below(folder)]
        assert len(keys) == count
        trusted = x509.load_pem_x509_certificates((folder / "ca.crt").read_bytes())
        assert not [authority for authority in trusted if authority.public_key() in keys]
        assert has_no_key(run("--check", "--host", folder, "-o", "json").output)
    assert not has_no_key(run().stdout), "this test would see a key"


@pytest.mark.parametrize("name", ["ca.key", "apiserver.crt", "sa.key"])
def test_nothing_is_written_beside_a_clusters_own_certificates(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("the cluster's")
    for more in ([], ["--replace"], ["--systemd"], ["--check"]):
        with pytest.raises(BadInput, match=f"the cluster's own certificates are there, such as {name}"):
            run("--host", tmp_path, *more)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    run("--host", tmp_path / "nodewise")


@pytest.mark.parametrize("text", ["apiVersion: v1\nkind: Pod\n", '{"kind": "Pod"}', "\ufeffkind: 'Pod'\r\n"])
def test_nothing_is_written_where_the_kubelet_looks_for_pods(tmp_path: Path, text: str) -> None:
    (tmp_path / "any-name.txt").write_text(text)
    with pytest.raises(BadInput, match="a folder of static pods"):
        run("--host", tmp_path, "--replace")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(BadInput, match="a folder of static pods"):
        run("--host", tmp_path / "link")
    for folder in ("/etc/kubernetes/manifests", "/etc/kubernetes/manifests/nodewise"):
        with pytest.raises(BadInput, match="a folder of static pods"):
            run("--host", folder, "--check")


def test_two_runs_at_once_make_one_set(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "nodewise"
    folder = tmp_path / "pki"
    words = [program, "certs", "--host", folder]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert sorted(text.partition(" ")[0] for text in outputs) == ["created:", "nothing", "nothing"]
    assert len(keys_below(folder)) == 2


def test_unreadable_certificates_are_replaced_with_instructions(tmp_path: Path) -> None:
    run("--host", tmp_path, "--lifetime", "1m")
    before = certificate_folder.read_certificates(tmp_path).certificates
    over = before._replace(
        server=before.server._replace(cert=before.server.cert[:-40] + before.server.cert[-30:])
    )
    certificate_folder.write_certificates(tmp_path, over._replace(client=over.client._replace(key=b"")))
    code, output = run_check("--host", tmp_path)
    assert (code, output.splitlines()[0]) == (3, "due: the first certificates")
    completed = run("--host", tmp_path)
    assert completed.stdout.startswith("created: ")
    assert "  before: nodewise's certificate cannot be read" in completed.stdout
    assert "restart all replicas now" in completed.stderr
    assert run_check("--host", tmp_path)[0] == 0


def test_full_disk_keeps_previous_file(tmp_path: Path) -> None:
    run("--host", tmp_path)
    before = file_contents(tmp_path)
    limited = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)); "
    limited += "from nodewise.cli.main import run; run(sys.argv[1:])"
    words = [sys.executable, "-B", "-c", limited, "certs", "--host", tmp_path, "--renew"]
    completed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert completed.returncode == 1
    assert "File too large" in completed.stderr
    assert file_contents(tmp_path) == before
    assert len(keys_below(tmp_path)) == 2


@pytest.mark.parametrize("step", ["", "--renew", "--restarted"])
def test_a_run_that_is_ended_at_any_write_leaves_pairs_that_match_and_the_next_one_mends_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    arguments = ["--host", tmp_path / "pki", "--settle", "0s"]
    if step:
        run(*arguments)
    else:
        (tmp_path / "pki").mkdir()
    if step == "--restarted":
        run(*arguments, "--renew")
    for number in itertools.count():
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(tmp_path / "pki", copy, symlinks=True)
        if not is_ended_at_write(
            number, ["--host", copy, "--settle", "0s", *filter(None, [step])], monkeypatch
        ):
            break
        contents = certificate_folder.read_certificates(copy)
        assert contents.foreign == ()
        for side in contents.certificates:
            if not step and not (side.cert and side.key):
                continue
            leaf = x509.load_pem_x509_certificate(side.cert)
            assert serialization.load_pem_private_key(side.key, None).public_key() == leaf.public_key()
        run("--host", copy, "--settle", "0s", *(["--renew"] if step else []))
        run("--host", copy, "--settle", "0s", "--restarted")
        assert run_check("--host", copy)[0] == 0
        assert len(keys_below(copy)) == 2
    assert number > 10


def is_ended_at_write(number: int, arguments: list[str | Path], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a run ends at its write call of this number, without any clean-up, as if it were killed."""
    left = [number]

    class EndedError(BaseException):
        pass

    def ending(call):
        def called(*arguments, **named):
            if left[0] == 0:
                raise EndedError
            left[0] -= 1
            return call(*arguments, **named)

        return called

    with monkeypatch.context() as patched:
        for where, name in (
            (os, "open"),
            (os, "fsync"),
            (os, "symlink"),
            (os, "rename"),
            (os, "mkdir"),
            (os, "fchmod"),
        ):
            patched.setattr(where, name, ending(getattr(os, name)))
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        try:
            run(*arguments)
        except EndedError:
            return True
    return False


@pytest.mark.root
def test_files_keep_the_owner_that_somebody_gave_them(tmp_path: Path) -> None:
    run("--host", tmp_path)
    os.chown(tmp_path / "tls.key", 65532, 65532)
    run("--host", tmp_path, "--renew")
    run("--host", tmp_path, "--restarted", "--settle", "0s")
    assert (tmp_path / "tls.key").stat().st_uid == 65532
    assert (tmp_path / "client.key").stat().st_uid == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--apply", "--host", "x"], "--apply --host: given together"),
        (["--cert-manager", "--apply"], "--apply --cert-manager: given together"),
        (["--systemd"], "--systemd: without --host"),
        (["--restarted"], "--restarted: given; expected together with --apply or --host"),
        (["--signer-name", "x", "--host", "y"], "--signer-name: with --host"),
        (["--secret", "a", "--client-secret", "a"], "--client-secret: the same as --secret"),
        (["--name", "a_b"], "--name: 'a_b'"),
        (["--lifetime", "1s"], "--lifetime"),
    ],
)
def test_contradictory_flags_are_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        run(*arguments)


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    program = Path(sys.executable).parent / "nodewise"
    command = [program, "certs", "--host", "a folder", "--name=x.example", "--systemd"]
    text = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert f'certs --host "{folder}" --name=x.example\n' in text
    _, service, timer = re.split(r"^# /etc/systemd/system/.*\n", text, flags=re.MULTILINE)
    (tmp_path / "nodewise-certs.service").write_text(service)
    (tmp_path / "nodewise-certs.timer").write_text(timer)
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    units = [str(tmp_path / f"nodewise-certs.{kind}") for kind in ("service", "timer")]
    completed = subprocess.run([analyze, "verify", *units], check=False, capture_output=True, text=True)
    assert "nodewise-certs" not in completed.stderr, completed.stderr


def test_objects_for_cert_manager_are_printed() -> None:
    manifests = list(yaml.load_all(run("--cert-manager", "-n", "web").stdout, yaml.CSafeLoader))
    expected = ["Issuer", "Certificate", "Issuer", "Certificate", "Certificate"]
    assert [manifest["kind"] for manifest in manifests] == expected
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {"web"}
