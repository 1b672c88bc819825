"""Certificates in files that change, with a clock that the test advances."""

import datetime as dt
import ssl

import pytest
import trustme
from structlog.testing import capture_logs

from nodewise.base.errors import BadSettings
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.tls import certificate_files
from nodewise.tls.certificate_files import ReloadableFiles
from tests.unit.server.raw_http_client import metric_value

NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
NOW_S = NOW.timestamp()
DAY = dt.timedelta(days=1)
DAY_S = 86400.0


class RotatedFiles:
    """The files of a certificate and its key, and the `ReloadableFiles` that reads them."""

    def __init__(self, folder):
        self.ca = trustme.CA()
        self.metrics_registry = MetricsRegistry()
        self.cert, self.key = folder / "tls.crt", folder / "tls.key"
        self.write(self.issue(-1, 90))
        paths = {"cert": str(self.cert), "key": str(self.key)}
        self.kept = ReloadableFiles(
            "serving", paths, certificate_files.read_certificate_and_key, self.metrics_registry, NOW_S
        )

    def poll(self, now_s):
        """Poll twice, because a change counts once it is stable."""
        return any([self.kept.poll(now_s), self.kept.poll(now_s)])

    def issue(self, begins_days, ends_days):
        return self.ca.issue_cert(
            "host.example", not_before=NOW + begins_days * DAY, not_after=NOW + ends_days * DAY
        )

    def write(self, leaf):
        self.cert.write_bytes(leaf.cert_chain_pems[0].bytes())
        self.key.write_bytes(leaf.private_key_pem.bytes())

    def counts(self, *names):
        return [metric_value(self.metrics_registry, f"tls_{name}", certificate="serving") for name in names]


@pytest.fixture
def files(tmp_path):
    return RotatedFiles(tmp_path)


def test_a_renewed_pair_is_taken_once(files):
    assert not files.poll(NOW_S)
    leaf = files.issue(-1, 120)
    files.write(leaf)
    with capture_logs() as lines:
        assert files.poll(NOW_S)
        assert not files.poll(NOW_S + 1)
    assert files.kept.value.certificate == leaf.cert_chain_pems[0].bytes()
    assert files.counts("certificate_expires_seconds") == [NOW_S + 120 * DAY_S]
    (line,) = lines
    expected = ("tls_reloaded", "serving", "2027-03-21T00:00:00Z")
    assert (line["event"], line["certificate"], line["expires"]) == expected


def test_content_of_a_moment_is_not_used(files):
    """An incomplete rotation is not logged."""
    leaf = files.issue(-1, 120)
    with capture_logs() as lines:
        files.cert.write_bytes(leaf.cert_chain_pems[0].bytes())
        assert not files.kept.poll(NOW_S)
        files.key.write_bytes(leaf.private_key_pem.bytes())
        assert not files.kept.poll(NOW_S + 1)
        assert files.kept.poll(NOW_S + 2)
        files.key.write_bytes(b"")
        assert not files.kept.poll(NOW_S + 3)
        files.key.write_bytes(leaf.private_key_pem.bytes())
        assert not files.kept.poll(NOW_S + 4)
        assert not files.kept.poll(NOW_S + 5)
    assert [line["event"] for line in lines] == ["tls_reloaded"]


def garbage(files):
    files.cert.write_bytes(b"\x00garbage")
    return f"cert: {files.cert} holds no certificate that can be read"


def empty(files):
    files.key.write_bytes(b"")
    return f"key: {files.key} holds no private key that can be read"


def gone(files):
    files.key.unlink()
    return f"key: {files.key}: No such file or directory"


def of_another(files):
    files.key.write_bytes(files.issue(-1, 90).private_key_pem.bytes())
    return f"key: {files.key} does not match {files.cert}"


def expired(files):
    files.write(files.issue(-9, -1))
    return f"cert: {files.cert} expired at 2026-11-20T00:00:00Z"


@pytest.mark.parametrize("broken", [garbage, empty, gone, of_another, expired])
def test_unusable_content_is_logged_once_and_the_old_one_stays(files, broken):
    before = files.kept.value
    error = broken(files)
    with capture_logs() as lines:
        for later_s in (0, 1, 61, 122):
            assert not files.poll(NOW_S + later_s)
    assert files.kept.value is before
    (line,) = lines
    assert line["event"] == "tls_reload_failed"
    assert error in line["error"]
    assert files.counts("reload_failing", "certificate_expires_seconds") == [1, NOW_S + 90 * DAY_S]
    assert (
        metric_value(files.metrics_registry, "tls_reloads_total", certificate="serving", outcome="failed")
        == 1
    )
    files.write(files.issue(-1, 120))
    assert files.poll(NOW_S + 123)
    assert files.counts("reload_failing") == [0]


def test_restored_content_ends_the_failure_without_a_change(files):
    was = files.key.read_bytes()
    files.key.write_bytes(b"")
    assert not files.poll(NOW_S)
    files.key.write_bytes(was)
    assert not files.poll(NOW_S + 1)
    assert files.counts("reload_failing") == [0]


def test_a_certificate_whose_time_has_not_come_is_taken_when_it_has(files):
    """If the clock is behind that of the authority, the old certificate remains in use."""
    files.write(files.issue(0.01, 120))
    assert not files.poll(NOW_S)
    assert files.counts("reload_failing") == [1]
    assert not files.poll(NOW_S + 30)
    assert files.poll(NOW_S + 0.01 * DAY_S + 1)
    assert files.counts("reload_failing") == [0]


def test_expired_certificate_is_served_at_start_and_logged_daily(files):
    files.write(files.issue(-9, -1))
    paths = {"cert": str(files.cert), "key": str(files.key)}
    kept = ReloadableFiles(
        "serving", paths, certificate_files.read_certificate_and_key, files.metrics_registry, NOW_S
    )
    with capture_logs() as lines:
        for later_s in (0, 1, DAY_S - 1, DAY_S):
            kept.poll(NOW_S + later_s)
    assert [line["event"] for line in lines] == ["certificate_expired"] * 2


def test_expiry_within_a_week_is_logged_daily_until_renewal(files):
    with capture_logs() as lines:
        for day in range(84):
            files.poll(NOW_S + day * DAY_S - 1)
        assert lines == []
        for hour in range(36):
            files.poll(NOW_S + 84 * DAY_S + hour * 3600)
        assert [line["event"] for line in lines] == ["certificate_expires_soon"] * 2
        assert lines[0]["expires"] == "2027-02-19T00:00:00Z"
        files.write(files.issue(-1, 120))
        assert files.poll(NOW_S + 85.9 * DAY_S)
        files.poll(NOW_S + 87 * DAY_S)
    assert [line["event"] for line in lines[2:]] == ["tls_reloaded"]


def test_a_bundle_is_as_good_as_its_last_authority_and_warns_of_the_next(tmp_path):
    file = tmp_path / "ca.crt"
    metrics_registry = MetricsRegistry()
    late, soon, good = (authority(days) for days in (-1, 3, 300))
    file.write_bytes(good)
    kept = ReloadableFiles(
        "client_ca",
        {"client_ca": str(file)},
        certificate_files.read_trusted_certificates,
        metrics_registry,
        NOW_S,
    )
    file.write_bytes(late + soon + good)
    kept.poll(NOW_S)
    assert kept.poll(NOW_S)
    actual = metric_value(metrics_registry, "tls_certificate_expires_seconds", certificate="client_ca")
    assert actual == NOW_S + 3 * DAY_S
    file.write_bytes(late)
    kept.poll(NOW_S + 1)
    assert not kept.poll(NOW_S + 1)
    assert metric_value(metrics_registry, "tls_reload_failing", certificate="client_ca") == 1
    assert len(kept.value.periods) == 3


def authority(ends_days):
    """A PEM certificate with any issuer."""
    leaf = trustme.CA().issue_cert("ca.example", not_before=NOW - 9 * DAY, not_after=NOW + ends_days * DAY)
    return leaf.cert_chain_pems[0].bytes()


def with_der(pem: bytes, before: str, after: str) -> bytes:
    """The certificate with another part of its DER."""
    der = ssl.PEM_cert_to_DER_cert(pem.decode())
    return ssl.DER_cert_to_PEM_cert(der.replace(bytes.fromhex(before), bytes.fromhex(after))).encode()


READERS = [certificate_files.read_trusted_certificates, certificate_files.read_authorities]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_a_bundle_that_ends_in_the_middle_of_a_certificate_is_not_used(tmp_path, order, read):
    """A file that is written in place is incomplete for a moment. Without its last authority it would be valid."""
    authorities = [trustme.CA().cert_pem.bytes() for _ in range(2)][order]
    bundle, complete = tmp_path / "ca.crt", b"".join(authorities)
    begin, end = len(authorities[0]), len(complete.rstrip())
    paths = {"client_ca": str(bundle)}
    for length in range(begin + 1, end):
        bundle.write_bytes(complete[:length])
        with pytest.raises(BadSettings, match="begins 2 certificates, of which 1 are complete"):
            read(paths, certificate_files.read_contents(paths))
    for content in (complete, complete.rstrip(), b"# --- clients ---\n" + complete + b"# end\n"):
        bundle.write_bytes(content)
        contents = certificate_files.read_contents(paths)
        assert len(read(paths, contents).periods) == 2


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda first, second, _: first + second, id="two authorities"),
        pytest.param(lambda first, *_: first + first, id="an authority twice"),
        pytest.param(lambda first, *_: first + "# Zürich\n".encode() + first, id="another alphabet"),
        pytest.param(lambda first, *_: first.replace(b"\n", b"\r\n"), id="lines of Windows"),
        pytest.param(lambda first, _, leaf: first + leaf, id="certificate of a server"),
        pytest.param(lambda first, *_: first + b"-----BEGIN X509 CRL-----\n", id="another block"),
        pytest.param(
            lambda first, second, _: first + second.replace(b" CERT", b" TRUSTED CERT"), id="OpenSSL's form"
        ),
        pytest.param(lambda *_: b"", id="empty"),
        pytest.param(lambda *_: b"\xff\x00", id="binary"),
        pytest.param(lambda first, *_: first.replace(b"M", b"N", 9), id="not DER"),
        pytest.param(
            lambda first, second, _: first + with_der(second, "551d130101ff040830", "551d130101ff040831"),
            id="invalid extension",
        ),
    ],
)
def test_both_readers_of_authorities_agree(tmp_path, write):
    first, second = (trustme.CA().cert_pem.bytes() for _ in range(2))
    bundle = tmp_path / "ca.crt"
    bundle.write_bytes(write(first, second, authority(30)))
    paths = {"client_ca": str(bundle)}
    contents = certificate_files.read_contents(paths)
    results = []
    for read in READERS:
        try:
            results.append(tuple(map(sorted, read(paths, contents))))
        except BadSettings as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_certificate_of_an_unknown_version_cannot_be_read(tmp_path):
    bundle = tmp_path / "ca.crt"
    bundle.write_bytes(with_der(trustme.CA().cert_pem.bytes(), "a003020102", "a003020163"))
    paths = {"client_ca": str(bundle)}
    with pytest.raises(BadSettings, match="holds no certificate that can be read"):
        certificate_files.read_trusted_certificates(paths, certificate_files.read_contents(paths))


def test_all_that_is_wrong_at_the_start_is_said_together(tmp_path):
    cert = tmp_path / "tls.crt"
    cert.write_text("text")
    paths = {"cert": str(cert), "key": ""}
    with pytest.raises(BadSettings) as raised:
        ReloadableFiles(
            "serving", paths, certificate_files.read_certificate_and_key, MetricsRegistry(), NOW_S
        )
    assert [problem.field for problem in raised.value.problems] == ["cert", "key"]
