"""Connections from a kubeconfig: trust, authentication, and all kinds of errors."""

import asyncio
import base64
import datetime as dt
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from nodewise.base.errors import BadSettings, Refused
from nodewise.kube import credentials
from nodewise.kube.api_client_creation import SMALL_RECEIVE_BUFFER, connect
from nodewise.kube.credentials import BearerTokenFile, ExecPlugin
from nodewise.kube.kubeconfig import KubeconfigContext, KubeOptions
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.manual_clock import ManualClock


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def pair(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("us.example.com", common_name="us")


def chosen(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> KubeconfigContext:
    return KubeconfigContext(
        "F", "x", {"cluster": "c"}, {"server": "https://host:6443", **(cluster or {})}, user or {}
    )


def data(pem: trustme.Blob) -> str:
    return base64.b64encode(pem.bytes()).decode()


def identity(pair: trustme.LeafCert, key: trustme.LeafCert | None = None) -> dict[str, str]:
    return {
        "client-certificate-data": data(pair.cert_chain_pems[0]),
        "client-key-data": data((key or pair).private_key_pem),
    }


# trust


def test_the_clusters_own_authority_is_trusted_and_no_other(authority: trustme.CA) -> None:
    context = credentials.context(chosen({"certificate-authority-data": data(authority.cert_pem)}))
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname


def test_an_authority_may_come_as_a_file_and_inline_wins(authority: trustme.CA, tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    authority.cert_pem.write_to_path(str(path))
    assert len(credentials.context(chosen({"certificate-authority": str(path)})).get_ca_certs()) == 1
    both = {"certificate-authority": "/nowhere", "certificate-authority-data": data(authority.cert_pem)}
    assert len(credentials.context(chosen(both)).get_ca_certs()) == 1


def test_without_an_authority_those_of_the_system_are_trusted_for_https_only(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "system.crt"
    authority.cert_pem.write_to_path(str(path))
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    assert credentials.context(chosen()).get_ca_certs()
    assert not credentials.context(chosen({"server": "http://host:8001"})).get_ca_certs()


def test_without_verification_only_where_it_is_asked_for() -> None:
    context = credentials.context(chosen({"insecure-skip-tls-verify": True}))
    assert context.verify_mode == ssl.CERT_NONE


def test_authorities_without_a_key_identifier_are_accepted_as_every_other_client_does() -> None:
    assert not credentials.context(chosen()).verify_flags & ssl.VERIFY_X509_STRICT


WRONG_TRUST = [
    pytest.param({"certificate-authority": "/nowhere/ca.crt"}, "No such file", id="no file"),
    pytest.param({"certificate-authority-data": "%%%"}, "certificate-authority: ", id="no base64"),
    pytest.param({"certificate-authority-data": base64.b64encode(b"text").decode()}, "in PEM", id="no PEM"),
    pytest.param({"certificate-authority-data": base64.b64encode(b"\xff").decode()}, "in PEM", id="binary"),
    pytest.param({"certificate-authority-data": 7}, "certificate-authority: ", id="no text"),
]


@pytest.mark.parametrize(("cluster", "words"), WRONG_TRUST)
def test_an_authority_that_is_none(cluster: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSettings, match="kubeconfig F, context x") as raised:
        credentials.context(chosen(cluster))
    assert words in str(raised.value)


# authentication by certificate


def test_a_certificate_with_its_key_is_shown(pair: trustme.LeafCert) -> None:
    credentials.context(chosen(user=identity(pair)))


def test_a_certificate_that_does_not_match_its_key(authority: trustme.CA, pair: trustme.LeafCert) -> None:
    other = authority.issue_cert("other.example.com")
    with pytest.raises(BadSettings) as raised:
        credentials.context(chosen(user=identity(pair, key=other)))
    assert str(raised.value) == (
        "kubeconfig F, context x: client-certificate, client-key: KEY_VALUES_MISMATCH; expected an unencrypted pair "
        "in PEM (is the key the one of this certificate?)"
    )


@pytest.mark.parametrize(
    ("field", "missing"),
    [("client-certificate-data", "client-key"), ("client-key-data", "client-certificate")],
)
def test_half_a_pair(pair: trustme.LeafCert, field: str, missing: str) -> None:
    with pytest.raises(BadSettings, match=f"{missing}: not set; expected certificate and key, or neither"):
        credentials.context(chosen(user={field: identity(pair)[field]}))


def test_an_encrypted_key_is_an_error_and_no_question_on_the_terminal(pair: trustme.LeafCert) -> None:
    key = serialization.load_pem_private_key(pair.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"secret"),
    )
    user = identity(pair) | {"client-key-data": base64.b64encode(locked).decode()}
    with pytest.raises(BadSettings, match="unencrypted pair"):
        credentials.context(chosen(user=user))


def test_expired_certificate_is_reported_with_its_end(authority: trustme.CA, pair: trustme.LeafCert) -> None:
    begin, end = (dt.datetime(2020, 1, day, tzinfo=dt.UTC) for day in (1, 2))
    late = authority.issue_cert("late.example.com", not_before=begin, not_after=end)
    now_s = dt.datetime.now(dt.UTC).timestamp()
    assert credentials.client_certificate_expiry_hint(chosen(user=identity(late)), now_s) == (
        "the client certificate of F expired at 2020-01-02T00:00:00Z: renew the credentials in the kubeconfig"
    )
    assert credentials.client_certificate_expiry_hint(chosen(user=identity(late)), end.timestamp() - 1) == ""
    assert credentials.client_certificate_expiry_hint(chosen(user=identity(pair)), now_s) == ""
    assert credentials.client_certificate_expiry_hint(chosen(user={"token": "t"}), now_s) == ""
    assert (
        credentials.client_certificate_expiry_hint(chosen(user={"client-certificate-data": "%%%"}), now_s)
        == ""
    )


# files that change


class FileCredentials:
    """The files of a kubeconfig's user and cluster."""

    def __init__(self, folder: Path, authority: trustme.CA) -> None:
        self.folder = folder
        self.ca = authority
        self.clock = ManualClock(dt.datetime.now(dt.UTC).timestamp())
        self.metrics_registry = MetricsRegistry()
        self.write(authority.issue_cert("us.example.com"))
        self.trust(authority)
        user = {"client-certificate": str(folder / "crt"), "client-key": str(folder / "key")}
        kubeconfig_context = chosen({"certificate-authority": str(folder / "ca")}, user)
        self.tls_credentials = credentials.TlsCredentials(
            kubeconfig_context, self.metrics_registry, self.clock
        )

    def write(self, leaf: trustme.LeafCert) -> None:
        (self.folder / "crt").write_bytes(leaf.cert_chain_pems[0].bytes())
        (self.folder / "key").write_bytes(leaf.private_key_pem.bytes())

    def trust(self, *authorities: trustme.CA) -> None:
        (self.folder / "ca").write_bytes(b"".join(authority.cert_pem.bytes() for authority in authorities))

    def has_changed(self) -> bool:
        """Whether the files have changed. It checks twice, because a change counts once it is stable."""
        results = []
        for _ in range(2):
            self.clock.advance(1.0)
            results.append(self.tls_credentials.has_changed())
        return any(results)


@pytest.fixture
def file_credentials(tmp_path: Path, authority: trustme.CA) -> FileCredentials:
    return FileCredentials(tmp_path, authority)


def test_a_certificate_in_files_is_read_again(file_credentials: FileCredentials) -> None:
    assert not file_credentials.has_changed()
    file_credentials.write(file_credentials.ca.issue_cert("us.example.com"))
    assert file_credentials.has_changed()
    assert not file_credentials.has_changed()
    file_credentials.tls_credentials.context()


def test_files_are_looked_at_once_a_second(file_credentials: FileCredentials) -> None:
    assert not file_credentials.has_changed()
    file_credentials.write(file_credentials.ca.issue_cert("us.example.com"))
    assert not any(file_credentials.tls_credentials.has_changed() for _ in range(5))
    assert file_credentials.has_changed()


def test_an_authority_that_was_taken_out_of_its_file_is_not_trusted_any_longer(
    file_credentials: FileCredentials,
) -> None:
    fresh = trustme.CA()
    file_credentials.trust(file_credentials.ca, fresh)
    assert file_credentials.has_changed()
    assert len(file_credentials.tls_credentials.context().get_ca_certs()) == 2
    file_credentials.trust(fresh)
    assert file_credentials.has_changed()
    assert len(file_credentials.tls_credentials.context().get_ca_certs()) == 1


def test_a_pair_caught_half_written_waits_until_it_is_whole(file_credentials: FileCredentials) -> None:
    leaf = file_credentials.ca.issue_cert("us.example.com")
    (file_credentials.folder / "crt").write_bytes(leaf.cert_chain_pems[0].bytes())
    with capture_logs() as lines:
        assert not file_credentials.has_changed()
        assert not file_credentials.has_changed()
        file_credentials.tls_credentials.context()
        file_credentials.write(leaf)
        assert file_credentials.has_changed()
    expected = [("tls_reload_failed", "kube_client"), ("tls_reloaded", "kube_client")]
    assert [(line["event"], line["certificate"]) for line in lines] == expected
    assert (
        f"{file_credentials.folder / 'key'} does not match {file_credentials.folder / 'crt'}"
        in lines[0]["error"]
    )


def test_inline_data_win_over_a_file_that_changes(authority: trustme.CA, tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_text("rubbish")
    both = {"certificate-authority": str(path), "certificate-authority-data": data(authority.cert_pem)}
    tls_credentials = credentials.TlsCredentials(chosen(both), MetricsRegistry(), ManualClock())
    path.write_text("other rubbish")
    assert not tls_credentials.has_changed()
    assert len(tls_credentials.context().get_ca_certs()) == 1


def test_a_certificate_of_a_plugin_outlives_a_change_of_the_authority(
    file_credentials: FileCredentials,
) -> None:
    leaf = file_credentials.ca.issue_cert("us.example.com")
    pair = leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes()
    assert file_credentials.tls_credentials.set_client_certificate(*pair, "plugin")
    assert not file_credentials.tls_credentials.set_client_certificate(*pair, "plugin")
    with pytest.raises(BadSettings, match="plugin: client-certificate"):
        file_credentials.tls_credentials.set_client_certificate(pair[0], b"no key", "plugin")
    file_credentials.trust(trustme.CA())
    assert file_credentials.has_changed()
    assert not file_credentials.tls_credentials.set_client_certificate(*pair, "plugin")


# authentication by token


async def authorization_headers(auth: httpx2.Auth | None, *codes: int) -> list[str]:
    """The Authorization headers of the requests of one call. The server responds with these status codes."""
    answers = iter([*codes, 200, 200])
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers.get("authorization", ""))
        return httpx2.Response(next(answers))

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), auth=auth) as http:
        await http.get("https://host/")
    return seen


def auth_of(user: dict[str, Any], clock: ManualClock | None = None) -> httpx2.Auth | None:
    return credentials.auth(chosen(user=user), show, clock or ManualClock())


async def test_a_token_is_sent_along() -> None:
    assert await authorization_headers(auth_of({"token": "t"})) == ["Bearer t"]


async def test_name_and_password_are_sent_along() -> None:
    assert await authorization_headers(auth_of({"username": "u", "password": "p"})) == ["Basic dTpw"]


def test_client_certificate_needs_no_token() -> None:
    assert auth_of({}) is None


def test_an_auth_provider_is_refused_with_a_remedy() -> None:
    with pytest.raises(BadSettings, match="expected exec"):
        auth_of({"auth-provider": {"name": "gcp"}})


async def test_a_token_file_wins_and_is_read_every_minute(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", ManualClock()
    path.write_text("old\n")
    auth = auth_of({"tokenFile": str(path), "token": "t"}, clock)
    assert isinstance(auth, BearerTokenFile)
    assert await authorization_headers(auth) == ["Bearer old"]
    path.write_text("new")
    assert await authorization_headers(auth) == ["Bearer old"]
    clock.advance(60.0)
    assert await authorization_headers(auth) == ["Bearer new"]


async def test_a_refused_token_is_read_again_at_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    auth = auth_of({"tokenFile": str(path)})
    assert await authorization_headers(auth) == ["Bearer old"]
    path.write_text("new")
    assert await authorization_headers(auth, 401) == ["Bearer old", "Bearer new"]
    assert await authorization_headers(auth, 401) == ["Bearer new"], (
        "the same token again would be refused again"
    )


async def test_a_token_file_that_is_gone_for_a_moment_costs_nothing(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", ManualClock()
    path.write_text("t")
    auth = auth_of({"tokenFile": str(path)}, clock)
    await authorization_headers(auth)
    path.unlink()
    clock.advance(60.0)
    assert await authorization_headers(auth) == ["Bearer t"]
    with pytest.raises(Refused, match="a file with a bearer token"):
        await authorization_headers(auth_of({"tokenFile": str(path)}))


# authentication by plugin


class ShownCertificates(list[bytes]):
    """The certificates that a plugin returned."""

    def __call__(self, certificate: bytes, _key: bytes, _what: str) -> None:
        self.append(certificate)


show = ShownCertificates()


def plugin_of(folder: Path, answer: str, clock: ManualClock, **settings: Any) -> ExecPlugin:
    """A plugin that counts its runs in a file and prints `answer`, where RUN stands for the count."""
    script = folder / "plugin"
    script.write_text(
        '#!/bin/sh\necho run >> "$COUNT"\nprintf %s "$KUBERNETES_EXEC_INFO" > "$COUNT.info"\n'
        f"printf '%s' '{answer}' | sed \"s/RUN/$(wc -l < \"$COUNT\" | tr -d ' ')/\"\n"
    )
    script.chmod(0o755)
    env = [{"name": "COUNT", "value": str(folder / "count")}]
    exec_ = {"command": str(script), "apiVersion": "client.authentication.k8s.io/v1", "env": env, **settings}
    kubeconfig_context = chosen(
        {"certificate-authority-data": base64.b64encode(b"CA").decode()}, {"exec": exec_}
    )
    show.clear()
    return ExecPlugin(kubeconfig_context, show, clock)


async def test_a_plugins_token_is_kept_until_it_is_refused(tmp_path: Path) -> None:
    auth = plugin_of(tmp_path, '{"status": {"token": "t-RUN"}}', ManualClock())
    assert await authorization_headers(auth) == ["Bearer t-1"]
    assert await authorization_headers(auth) == ["Bearer t-1"]
    assert await authorization_headers(auth, 401) == ["Bearer t-1", "Bearer t-2"]


async def test_a_plugins_token_is_renewed_before_it_ends(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.0)
    answer = '{"status": {"token": "t-RUN", "expirationTimestamp": "2023-11-14T23:13:20Z"}}'
    auth = plugin_of(tmp_path, answer, clock)
    assert await authorization_headers(auth) == ["Bearer t-1"]
    clock.advance(3589.0)
    assert await authorization_headers(auth) == ["Bearer t-1"]
    clock.advance(1.0)
    assert await authorization_headers(auth) == ["Bearer t-2"]


@pytest.mark.parametrize(
    ("provides", "cluster_fields"), [(True, ["server", "certificate-authority-data"]), (False, None)]
)
async def test_plugin_gets_the_cluster_if_configured(
    tmp_path: Path, provides: bool, cluster_fields: list[str] | None
) -> None:
    await authorization_headers(
        plugin_of(tmp_path, '{"status": {"token": "t"}}', ManualClock(), provideClusterInfo=provides)
    )
    info = yaml.load((tmp_path / "count.info").read_text(), yaml.CSafeLoader)
    assert info["apiVersion"] == "client.authentication.k8s.io/v1"
    assert info["spec"]["interactive"] is False
    assert (
        list(info["spec"]["cluster"]) if cluster_fields else info["spec"].get("cluster")
    ) == cluster_fields


async def test_a_plugin_may_give_a_certificate(tmp_path: Path, pair: trustme.LeafCert) -> None:
    certificate, key = (
        blob.bytes().decode().replace("\n", "\\n") for blob in (pair.cert_chain_pems[0], pair.private_key_pem)
    )
    answer = f'{{"status": {{"clientCertificateData": "{certificate}", "clientKeyData": "{key}"}}}}'
    (tmp_path / "answer").write_text(answer)
    auth = plugin_of(tmp_path, "", ManualClock())
    (tmp_path / "plugin").write_text(f'#!/bin/sh\ncat "{tmp_path}/answer"\n')
    assert await authorization_headers(auth) == [""]
    assert show == [pair.cert_chain_pems[0].bytes()]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param("echo no network >&2; exit 3", "exit status 3: no network", id="fails"),
        pytest.param("echo text", "an ExecCredential with a status", id="prints no JSON"),
        pytest.param("echo '{}'", "neither token nor certificate", id="gives nothing"),
        pytest.param(
            """echo '{"status": {"token": "t", "expirationTimestamp": "soon"}}'""",
            "an ExecCredential",
            id="bad time",
        ),
    ],
)
async def test_a_plugin_that_fails_says_why(tmp_path: Path, script: str, words: str) -> None:
    auth = plugin_of(tmp_path, "", ManualClock())
    (tmp_path / "plugin").write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(Exception, match=r"credential plugin .*/plugin") as raised:
        await authorization_headers(auth)
    assert words in str(raised.value)


async def test_a_plugin_that_is_not_installed_tells_how_to_install_it() -> None:
    auth = auth_of({"exec": {"command": "no-such-program-here", "installHint": "apt install it"}})
    with pytest.raises(BadSettings, match="apt install it"):
        await authorization_headers(auth)


def test_a_plugin_without_a_command() -> None:
    with pytest.raises(BadSettings, match="missing required field `command`"):
        auth_of({"exec": {}})


# connect


def written(folder: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None) -> KubeOptions:
    path = folder / "config"
    content = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return KubeOptions(kubeconfig=str(path))


def test_an_api_knows_its_server_and_our_namespace(tmp_path: Path) -> None:
    options = written(tmp_path, {"server": "https://host:6443"})
    api = connect(options, MetricsRegistry())
    assert (api.server, api.namespace) == ("https://host:6443", "ns")
    ours = KubeOptions(kubeconfig=options.kubeconfig, namespace="ours")
    assert connect(ours, MetricsRegistry()).namespace == "ours"


@pytest.mark.parametrize("small", [False, True])
async def test_a_program_of_many_metrics_receives_little_of_a_response_before_its_turn(
    tmp_path: Path, *, small: bool
) -> None:
    async def respond(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    api = connect(
        written(tmp_path, {"server": f"http://127.0.0.1:{port}"}),
        MetricsRegistry(),
        small_receive_buffer=small,
    )
    transport = api._http._transport
    async with server:
        response = await transport.handle_async_request(httpx2.Request("GET", api.server))
        connection = response.extensions["network_stream"].get_extra_info("socket")
        _, option, size = SMALL_RECEIVE_BUFFER
        # Linux doubles the size, for its own bookkeeping
        assert (connection.getsockopt(socket.SOL_SOCKET, option) == 2 * size) is small
        await response.aclose()
        await api.close()


WRONG_SERVER = [
    pytest.param({"server": "host:6443"}, {}, id="no scheme"),
    pytest.param({"server": "ftp://host"}, {}, id="another scheme"),
    pytest.param({"server": "https://"}, {}, id="no host"),
    pytest.param({"server": "https://host:port"}, {}, id="no port"),
    pytest.param({"server": "https://host", "proxy-url": "gopher://x"}, {}, id="no proxy"),
    pytest.param(
        {"server": "https://host", "proxy-url": "socks5://x"}, {}, id="a proxy that needs another package"
    ),
    pytest.param({"server": "https://host"}, {"as-groups": ["g"]}, id="impersonation of a group"),
]


@pytest.mark.parametrize(("cluster", "user"), WRONG_SERVER)
def test_invalid_server_is_bad_settings(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    with pytest.raises(BadSettings, match="context x"):
        connect(written(tmp_path, cluster, user), MetricsRegistry())
