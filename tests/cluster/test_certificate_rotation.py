"""Each certificate is replaced under load, and no call of an authorized client fails."""

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import plain_http
from tests.cluster import extender_process, steady_filter_calls
from tests.cluster.certificates import CertificateAuthority, IssuedCertificate
from tests.cluster.extender_process import ROOT, ExtenderProcess
from tests.cluster.namespace_sandboxes import wait
from tests.cluster.steady_filter_calls import ClientIdentity
from tests.cluster.tls_resumption import REFUSED, RESUMED, SERVED, ResumingClient, resumed

HOSTS = ("127.0.0.1", "localhost")


class RotationFiles:
    """The certificate files of nodewise, which serves the example's objects, and of its client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = extender_process.CertificateFiles(folder)
        self.ca = self.certificates.authority
        self.bundle = folder / "client-ca.crt"
        self.bundle.write_bytes(self.ca.ca_pem)
        self.trusted = folder / "trusted-by-clients.crt"
        self.trust(self.ca)
        self.identity = ClientIdentity(self.trusted, self.certificates.client)

    def trust(self, *authorities: CertificateAuthority) -> None:
        """Replaces the CA file of clients by a rename, so that it is never empty."""
        fresh = self.trusted.with_suffix(".new")
        fresh.write_bytes(b"".join(authority.ca_pem for authority in authorities))
        fresh.rename(self.trusted)

    def arguments(self) -> list[str]:
        return [
            f"--objects-from={ROOT / 'examples' / 'health-metric'}",
            "--address=127.0.0.1",
            "--port=0",
            "--health-port=0",
            f"--cert={self.certificates.server.cert}",
            f"--key={self.certificates.server.key}",
            f"--client-ca={self.bundle}",
            "--client-name=system:kube-scheduler",
            "--client-name=left-behind",
            "--reload-period=100ms",
        ]

    def server_pair(self, ca: CertificateAuthority | None = None, days: float = 30) -> IssuedCertificate:
        return (ca or self.ca).issued("nodewise", *HOSTS, days=days)


@pytest.fixture
def site(tmp_path: Path) -> RotationFiles:
    return RotationFiles(tmp_path)


@pytest.fixture
def nodewise(site: RotationFiles) -> Iterator[ExtenderProcess]:
    with extender_process.started(site.folder, site.arguments(), site.certificates) as running:
        running.process.wait_ready(running.is_ready)
        yield running


def metric(nodewise: ExtenderProcess, name: str, certificate: str) -> float | None:
    """The value of a metric of a certificate; None if it is missing."""
    text = plain_http.get(f"{nodewise.health}/metrics").text
    match = re.search(rf'^nodewise_{name}\{{certificate="{certificate}"\}} (\S+)$', text, re.MULTILINE)
    return float(match[1]) if match else None


def until_failing(nodewise: ExtenderProcess, certificate: str, words: str) -> None:
    """Waits until the log and the metric of nodewise report that a certificate's files cannot be loaded."""

    def is_logged() -> bool | None:
        lines = [line["error"] for line in nodewise.events("tls_reload_failed")]
        failing = metric(nodewise, "tls_reload_failing", certificate)
        return (failing == 1 and words in "".join(lines[-1:])) or None

    wait(f"the log says {words}", is_logged, show=nodewise.process.tail)


# The serving certificate


def renamed(site: RotationFiles, fresh: IssuedCertificate, _half: Callable[[], None]) -> None:
    site.certificates.server.replace(fresh)


def written_over(site: RotationFiles, fresh: IssuedCertificate, half: Callable[[], None]) -> None:
    """Overwrites the certificate, calls `half` while the files do not match, and overwrites the key."""
    pair = site.certificates.server
    pair.cert.write_bytes(fresh.cert)
    half()
    pair.key.write_bytes(fresh.key)


def swapped(site: RotationFiles, fresh: IssuedCertificate, _half: Callable[[], None]) -> None:
    """Replaces both files as a kubelet does, by a new target of the link `..data`."""
    site.certificates.server.swap(fresh)


@pytest.mark.parametrize("way", [renamed, written_over, swapped])
def test_the_servers_certificate_is_replaced(
    site: RotationFiles,
    nodewise: ExtenderProcess,
    way: Callable[[RotationFiles, IssuedCertificate, Callable[[], None]], None],
) -> None:
    def half() -> None:
        until_failing(nodewise, "serving", f"{site.certificates.server.key} does not match")
        load.goes_on()

    with steady_filter_calls.load(nodewise, site.identity) as load:
        if way is swapped:
            site.certificates.server.swap(
                IssuedCertificate(*(path.read_bytes() for path in site.certificates.server))
            )
        for _ in range(3):
            fresh = site.server_pair()
            way(site, fresh, half)
            load.sees(fresh.serial)
        wait("reload works", lambda: metric(nodewise, "tls_reload_failing", "serving") == 0 or None)


BROKEN: dict[str, tuple[Callable[[RotationFiles], IssuedCertificate], str]] = {
    "garbage": (
        lambda site: site.server_pair()._replace(cert=b"\x00garbage"),
        "cert: {cert} holds no certificate that can be read",
    ),
    "an empty key": (
        lambda site: site.server_pair()._replace(key=b""),
        "key: {key} holds no private key that can be read",
    ),
    "expired": (lambda site: site.server_pair(days=-1), "cert: {cert} expired at "),
    "the key of another": (
        lambda site: site.server_pair()._replace(key=site.server_pair().key),
        "key: {key} does not match {cert}",
    ),
}


def test_an_invalid_certificate_is_logged_and_the_old_certificate_stays(
    site: RotationFiles, nodewise: ExtenderProcess
) -> None:
    pair = site.certificates.server
    before = IssuedCertificate(*(path.read_bytes() for path in pair)).serial
    ends_s = metric(nodewise, "tls_certificate_expires_seconds", "serving")
    with steady_filter_calls.load(nodewise, site.identity) as load:
        for make, words in BROKEN.values():
            pair.write(make(site))
            until_failing(nodewise, "serving", words.format(cert=pair.cert, key=pair.key))
            load.sees(before)
        assert metric(nodewise, "tls_certificate_expires_seconds", "serving") == ends_s
        fresh = site.server_pair(days=3)
        pair.write(fresh)
        load.sees(fresh.serial)
    (soon,) = nodewise.wait_events("certificate_expires_soon")
    assert (soon["certificate"], soon["files"]) == ("serving", f"{pair.cert}, {pair.key}")


def test_an_invalid_client_ca_is_logged_and_the_old_ca_stays(
    site: RotationFiles, nodewise: ExtenderProcess
) -> None:
    with steady_filter_calls.load(nodewise, site.identity) as load:
        for broken in (b"", b"\x00garbage", site.ca.issued("late", days=-1).cert):
            site.bundle.write_bytes(broken)
            wait("reload fails", lambda: metric(nodewise, "tls_reload_failing", "client_ca") or None)
            load.goes_on()
            site.bundle.write_bytes(site.ca.ca_pem)
            wait("reload works", lambda: metric(nodewise, "tls_reload_failing", "client_ca") == 0 or None)
    nodewise.wait_events("tls_reload_failed", 3)  # or more, where a file was seen in the middle of a write


# The client certificate


def test_a_clients_certificate_is_replaced(site: RotationFiles, nodewise: ExtenderProcess) -> None:
    """nodewise detects the change: old connections close after a response, and new ones use the new certificate."""
    with steady_filter_calls.load(nodewise, site.identity) as load:
        since_s = time.monotonic()
        site.certificates.client.swap(site.ca.issued("system:kube-scheduler", days=400))
        site.certificates.server.replace(site.server_pair())
        load.opens_anew(since_s)
        wait("all show the new certificate", lambda: clients_end_after(nodewise, 300) or None)
        load.goes_on()


def clients_end_after(nodewise: ExtenderProcess, days: float) -> bool:
    """Whether the client certificates of all connections are valid for at least this number of days."""
    expires = metric(nodewise, "tls_certificate_expires_seconds", "clients")
    return expires is not None and expires > time.time() + days * 86400


# The CA


def test_after_a_change_of_the_ca_clients_of_the_old_ca_are_refused(
    site: RotationFiles, nodewise: ExtenderProcess
) -> None:
    old, new = site.ca, CertificateAuthority(site.folder, "new-ca")
    left = ClientIdentity(site.folder / "both.crt", old.issue("left-behind"))
    left.trusted.write_bytes(old.ca_pem + new.ca_pem)
    with steady_filter_calls.load(nodewise, site.identity) as load, contextlib.ExitStack() as stack:
        resumers = [ResumingClient(nodewise, left, version) for version in steady_filter_calls.VERSIONS]
        # OpenSSL caches TLS 1.2 sessions by their id; the server issues no tickets in either version
        assert [resumer.tries() for resumer in resumers] == [RESUMED, SERVED]
        site.trust(old, new)
        site.bundle.write_bytes(old.ca_pem + new.ca_pem)
        wait("both CAs are trusted", lambda: reloads(nodewise, "client_ca") == 1 or None)
        load.goes_on()

        since_s = time.monotonic()
        site.certificates.client.swap(new.issued("system:kube-scheduler"))
        fresh = site.server_pair(new)
        site.certificates.server.replace(fresh)
        load.sees(fresh.serial)
        load.opens_anew(since_s)
        open_ = [
            stack.enter_context(
                contextlib.closing(steady_filter_calls.connection(nodewise, left.context(version)))
            )
            for version in steady_filter_calls.VERSIONS
        ]
        for connection in open_:
            assert steady_filter_calls.ask(connection)
        assert [resumer.tries() for resumer in resumers] == [SERVED, SERVED]

        site.bundle.write_bytes(new.ca_pem)
        site.trust(new)
        for connection in open_:
            assert connection.sock.recv(1) == b"", "an open connection of the removed CA is closed"
        assert [resumer.tries() for resumer in resumers] == [REFUSED, REFUSED]
        for version in steady_filter_calls.VERSIONS:
            with pytest.raises((OSError, http.client.HTTPException)):
                steady_filter_calls.ask(steady_filter_calls.connection(nodewise, left.context(version)))
        load.goes_on()
    expected = {"client_ca_changed", "unknown_ca"}
    wait(
        "both reasons are logged",
        lambda: {line["reason"] for line in nodewise.events("connection_ended")} == expected or None,
        show=nodewise.process.tail,
    )


def bundle_renamed(site: RotationFiles, content: bytes) -> None:
    fresh = site.bundle.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.rename(site.bundle)


def bundle_written_in_parts(site: RotationFiles, content: bytes) -> None:
    """Overwrites the bundle, and stops twice in the middle of its last certificate, longer than nodewise needs."""
    parts = [content[:-200], content[-200:-3], content[-3:]]
    with site.bundle.open("wb", buffering=0) as file:
        for part in parts:
            file.write(part)
            time.sleep(0.3)


def bundle_swapped(site: RotationFiles, content: bytes) -> None:
    """Replaces the bundle as a kubelet does, by a new target of the link `..data`."""
    folder = site.folder / f"..{time.monotonic_ns()}"
    folder.mkdir()
    folder.joinpath(site.bundle.name).write_bytes(content)
    for path, target in ((site.folder / "..data", folder.name), (site.bundle, f"..data/{site.bundle.name}")):
        if path == site.bundle and path.is_symlink():
            return
        link = path.with_name(f"{path.name}.link")
        link.symlink_to(target)
        link.rename(path)


BUNDLE_WAYS = (
    (renamed, bundle_renamed),
    (written_over, bundle_written_in_parts),
    (swapped, bundle_swapped),
)


@pytest.mark.parametrize(("way", "bundle_way"), BUNDLE_WAYS, ids=["rename", "in-place", "swapped-link"])
def test_connections_stay_while_serving_certificates_and_client_cas_are_added(
    site: RotationFiles,
    nodewise: ExtenderProcess,
    way: Callable[[RotationFiles, IssuedCertificate, Callable[[], None]], None],
    bundle_way: Callable[[RotationFiles, bytes], None],
) -> None:
    """The client's CA is the last one of each bundle. One connection is opened ahead, as Go's client does. Its first
    call comes after all changes.
    """
    with (
        steady_filter_calls.load(nodewise, site.identity) as load,
        contextlib.closing(
            steady_filter_calls.connection(nodewise, site.identity.context(ssl.TLSVersion.TLSv1_3))
        ) as opened_ahead,
    ):
        for number in range(1, 6):
            fresh = site.server_pair()
            way(site, fresh, lambda: None)
            load.sees(fresh.serial)
            added = CertificateAuthority(site.folder, f"added-{number}")
            bundle_way(site, added.ca_pem + site.ca.ca_pem)
            wait("both CAs are trusted", lambda: reloads(nodewise, "client_ca") == number or None)  # noqa: B023
            load.goes_on()
        time.sleep(6)  # longer than --header-timeout
        assert not steady_filter_calls.ask(opened_ahead), "the serving certificate has changed"
    assert nodewise.events("connection_ended") == []


def reloads(nodewise: ExtenderProcess, certificate: str) -> int:
    """The number of successful reloads of a certificate."""
    return len([event for event in nodewise.events("tls_reloaded") if event["certificate"] == certificate])


@pytest.mark.parametrize("version", steady_filter_calls.VERSIONS, ids=lambda version: version.name)
def test_the_client_that_tries_to_resume_can_do_so_where_a_server_lets_it(
    site: RotationFiles, version: ssl.TLSVersion
) -> None:
    """Shows that the client can resume sessions. Otherwise the refusals above would prove nothing."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(site.bundle))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(site.certificates.server.cert, site.certificates.server.key)
    client = site.identity.context(version)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for _ in range(2):
                accepted, _ = listening.accept()
                with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as secured:
                    secured.recv(65536)
                    secured.sendall(b"HTTP/1.1 200")

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        port = listening.getsockname()[1]
        _, reused, session = resumed(client, port)
        assert not reused
        assert resumed(client, port, session)[1]
        answering.join(30)
