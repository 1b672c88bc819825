"""At each moment of a renewal, each peer accepts the certificate of the other one, even one step behind."""

import base64
import itertools
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import DNSName
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from nodewise.base.errors import BadSettings, Unavailable
from nodewise.install.certificate_renewal import (
    CertificateSpec,
    ConnectionCertificates,
    PeerCertificates,
    apply_renewal_step,
    check_certificate_spec,
    plan_after_scheduler_restart,
    plan_renewal,
    service_dns_names,
)
from nodewise.install.certificate_secrets import (
    build_cert_manager_objects,
    build_secrets,
    build_signing_request,
    is_written_by_nodewise,
    parse_secret,
    render_systemd_units,
)
from nodewise.tls import x509_certificates
from nodewise.tls.x509_certificates import CertificateIssuer

NOW = datetime(2026, 7, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = service_dns_names("nodewise")
SPEC = CertificateSpec(NAMES, lifetime=90 * DAY)
RENEWED = NOW + 61 * DAY


def issue_certificates(spec: CertificateSpec = SPEC, now: datetime = NOW) -> ConnectionCertificates:
    return apply_renewal_step(ConnectionCertificates(), "make", spec, now)


def announce_authority(
    before: ConnectionCertificates | None = None, now: datetime = RENEWED
) -> ConnectionCertificates:
    return apply_renewal_step(before or issue_certificates(), "announce", SPEC, now)


def next_step(certificates: ConnectionCertificates, now: datetime, spec: CertificateSpec = SPEC) -> str:
    return plan_renewal(certificates, spec, now).step


def accepts_peer(peer: PeerCertificates, trusts: PeerCertificates, at: datetime, *, server: bool) -> bool:
    """Whether the authorities of `trusts` verify the certificate of `peer`, by cryptography's verifier."""
    store = Store(x509.load_pem_x509_certificates(trusts.trusted))
    policy = PolicyBuilder().store(store).time(at)
    leaf = x509.load_pem_x509_certificate(peer.cert)
    verifier = policy.build_server_verifier(DNSName(NAMES[2])) if server else policy.build_client_verifier()
    try:
        verifier.verify(leaf, [])
    except VerificationError:
        return False
    return True


def accept_each_other(server: PeerCertificates, client: PeerCertificates, at: datetime) -> bool:
    return accepts_peer(server, client, at, server=True) and accepts_peer(client, server, at, server=False)


def test_new_certificates_are_kept_until_a_third_of_their_time_is_left() -> None:
    certificates = issue_certificates()
    assert accept_each_other(*certificates, NOW)
    assert next_step(certificates, NOW) == next_step(certificates, NOW + 59 * DAY) == "nothing"
    assert plan_renewal(certificates, SPEC, NOW).at == NOW + 60 * DAY
    assert next_step(certificates, NOW + 61 * DAY) == "announce"
    assert next_step(certificates, NOW + 61 * DAY, SPEC._replace(renew_before=10 * DAY)) == "nothing"
    assert next_step(certificates, NOW + 81 * DAY, SPEC._replace(renew_before=10 * DAY)) == "announce"
    assert next_step(ConnectionCertificates(), NOW) == "make"


def test_connections_succeed_with_either_side_one_step_behind() -> None:
    first = issue_certificates()
    second = announce_authority(first)
    third = apply_renewal_step(second, "switch", SPEC, RENEWED + DAY)
    fourth = announce_authority(third, RENEWED + 61 * DAY)
    for older, newer in itertools.pairwise((first, second, third)):
        for server, client in itertools.product((older.server, newer.server), (older.client, newer.client)):
            assert accept_each_other(server, client, RENEWED + 2 * DAY)
    for server, client in itertools.product((third.server, fourth.server), (third.client, fourth.client)):
        assert accept_each_other(server, client, RENEWED + 62 * DAY)
    assert second.server.cert == first.server.cert
    assert third.server.cert == second.server.next_cert != first.server.cert
    assert third.server.next_cert == third.client.next_key == b""
    assert [
        len(x509.load_pem_x509_certificates(state.server.trusted)) for state in (first, third, fourth)
    ] == [1, 2, 2]


def test_a_scheduler_that_read_its_ca_file_before_the_announcement_would_refuse_the_new_certificate() -> None:
    """The reason for the step `wait`."""
    first = issue_certificates()
    second = announce_authority(first)
    third = apply_renewal_step(second, "switch", SPEC, RENEWED + DAY)
    assert not accepts_peer(third.server, first.client, RENEWED + DAY, server=True)


def test_it_waits_for_the_restart_and_goes_on_by_itself_in_time() -> None:
    certificates = announce_authority()
    plan = plan_renewal(certificates, SPEC, RENEWED)
    assert (plan.step, plan.is_due, plan.announced_at) == ("wait", True, RENEWED)
    assert RENEWED < plan.at < NOW + 90 * DAY
    assert next_step(certificates, plan.at) == "switch"
    assert next_step(certificates, RENEWED + 3 * DAY, SPEC._replace(switch_after=2 * DAY)) == "switch"
    with pytest.raises(Unavailable, match="has to reach both sides first"):
        plan_after_scheduler_restart(plan, SPEC, RENEWED + timedelta(minutes=2))
    assert plan_after_scheduler_restart(plan, SPEC, RENEWED + timedelta(minutes=3)).step == "switch"
    assert next_step(apply_renewal_step(certificates, "switch", SPEC, plan.at), plan.at) == "nothing"


def test_a_step_that_was_ended_between_the_two_sides_is_gone_on_with() -> None:
    first = issue_certificates()
    second = announce_authority(first)
    torn = ConnectionCertificates(second.server, first.client)
    assert accept_each_other(*torn, RENEWED)
    assert next_step(torn, RENEWED) == "announce", "the authority's key is gone, so there is a new one"
    again = apply_renewal_step(torn, "announce", SPEC, RENEWED)
    assert accept_each_other(*again, RENEWED)
    assert next_step(again, RENEWED) == "wait"
    third = apply_renewal_step(again, "switch", SPEC, RENEWED + DAY)
    half = ConnectionCertificates(third.server, again.client)
    assert accept_each_other(*half, RENEWED + DAY)
    assert next_step(half, RENEWED + 29 * DAY) == "switch"
    assert accept_each_other(*apply_renewal_step(half, "switch", SPEC, RENEWED + DAY), RENEWED + DAY)


BROKEN = {
    "no key": lambda side: side._replace(key=b""),
    "not PEM": lambda side: side._replace(cert=b"x"),
    "another's key": lambda side: side._replace(key=issue_certificates().server.key),
    "an authority": lambda side: side._replace(cert=side.trusted),
    "nothing": lambda side: PeerCertificates(),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("field", ConnectionCertificates._fields)
def test_a_side_that_is_broken_gets_a_new_certificate_at_once_and_the_other_one_keeps_its_own(
    what: str, field: str
) -> None:
    certificates = issue_certificates()
    broken = certificates._replace(**{field: BROKEN[what](getattr(certificates, field))})
    plan = plan_renewal(broken, SPEC, NOW)
    assert plan.step == "announce"
    after = apply_renewal_step(broken, plan.step, SPEC, NOW)
    assert accept_each_other(*after, NOW)
    other = "client" if field == "server" else "server"
    assert getattr(after, other).cert == getattr(certificates, other).cert


def test_expired_certificates_are_replaced_without_waiting() -> None:
    certificates = issue_certificates()
    plan = plan_renewal(certificates, SPEC, NOW + 91 * DAY)
    assert plan.step == "make"
    assert accept_each_other(*apply_renewal_step(certificates, "make", SPEC, NOW + 91 * DAY), NOW + 91 * DAY)
    assert next_step(announce_authority(), NOW + 91 * DAY) == "switch"


def test_no_bundle_grows_over_many_renewals() -> None:
    certificates, now = issue_certificates(), NOW
    for _ in range(12):
        now += 61 * DAY
        certificates = announce_authority(certificates, now)
        assert accept_each_other(certificates.server, certificates.client, now)
        for side in certificates:
            assert len(x509.load_pem_x509_certificates(side.trusted)) == 2
        certificates = apply_renewal_step(certificates, "switch", SPEC, now + DAY)
        assert accept_each_other(certificates.server, certificates.client, now + DAY)


def test_an_authority_of_others_that_is_over_is_dropped() -> None:
    signer, later = (
        CertificateIssuer("cluster-ca", NOW, 100 * DAY),
        CertificateIssuer("cluster-ca", NOW + 61 * DAY, 900 * DAY),
    )
    leaf = later.client(SPEC.client_name)
    first = issue_certificates()
    trusted = x509_certificates.merge_authorities(first.server.trusted, signer.cert + later.cert)
    signed = PeerCertificates(leaf.cert, leaf.key, first.client.trusted, signer="a/b")
    certificates = announce_authority(
        ConnectionCertificates(first.server._replace(trusted=trusted), signed), NOW + 120 * DAY
    )
    assert signer.cert not in certificates.server.trusted
    assert later.cert in certificates.server.trusted


def test_a_clock_that_is_behind_makes_nothing_anew() -> None:
    """After a start without a clock battery, all certificates would be of 1970, and no call would succeed."""
    certificates = issue_certificates()
    plan = plan_renewal(certificates, SPEC, datetime(1970, 1, 1, tzinfo=UTC))
    assert (plan.step, plan.is_due) == ("clock", True)
    assert "correct the clock" in plan.reasons[0]
    assert next_step(certificates, NOW - DAY, SPEC._replace(is_forced=True)) == "make"
    assert next_step(announce_authority(certificates), NOW - DAY) == "clock"
    assert next_step(certificates, NOW - timedelta(seconds=30)) == "nothing", "clocks differ a little"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"names": (*NAMES, "10.0.0.7")}, "nodewise's certificate does not name 10.0.0.7"),
        ({"client_name": "other"}, "names 'nodewise-scheduler-client', not 'other'"),
    ],
)
def test_other_names_are_a_reason_for_a_renewal(changed: dict, words: str) -> None:
    spec = SPEC._replace(**changed)
    certificates = issue_certificates()
    plan = plan_renewal(certificates, spec, NOW)
    assert plan.step == "announce"
    assert words in "".join(plan.reasons)
    after = apply_renewal_step(certificates, "announce", spec, NOW)
    assert next_step(after, NOW, spec) == "wait"
    assert next_step(apply_renewal_step(after, "switch", spec, NOW), NOW, spec) == "nothing"


def test_an_address_is_the_same_in_every_spelling() -> None:
    certificates = issue_certificates(SPEC._replace(names=(*NAMES, "::1")))
    actual = next_step(certificates, NOW, SPEC._replace(names=(*NAMES, "0:0:0:0:0:0:0:1", NAMES[0].upper())))
    assert actual == "nothing"


def test_a_clients_certificate_of_the_clusters_signer_is_left_alone_and_trusted_on() -> None:
    signer = CertificateIssuer("kubernetes", NOW, 3650 * DAY)
    leaf = signer.client(SPEC.client_name)
    certificates = issue_certificates()
    certificates = ConnectionCertificates(
        certificates.server._replace(
            trusted=x509_certificates.merge_authorities(certificates.server.trusted, signer.cert)
        ),
        PeerCertificates(leaf.cert, leaf.key, certificates.client.trusted, signer="example.com/clients"),
    )
    assert accept_each_other(*certificates, NOW)
    assert next_step(certificates, NOW) == "nothing"
    after = announce_authority(certificates)
    assert accept_each_other(*after, RENEWED)
    switched = apply_renewal_step(after, "switch", SPEC, RENEWED + DAY)
    assert accept_each_other(*switched, RENEWED + DAY)
    assert switched.client.cert == leaf.cert
    assert signer.cert not in switched.client.trusted, "it signs no server of ours"


def test_an_ending_certificate_of_the_clusters_signer_requires_the_step_sign() -> None:
    signer = CertificateIssuer("kubernetes", NOW, 30 * DAY)
    leaf = signer.client(SPEC.client_name)
    server, client = issue_certificates()
    certificates = ConnectionCertificates(
        server._replace(trusted=x509_certificates.merge_authorities(server.trusted, signer.cert)),
        client._replace(cert=leaf.cert, key=leaf.key, signer="example.com/clients"),
    )
    assert plan_renewal(certificates, SPEC, NOW).at == NOW + 20 * DAY
    plan = plan_renewal(certificates, SPEC, NOW + 21 * DAY)
    assert (plan.step, plan.is_due) == ("sign", True)
    assert plan.reasons == ["kube-scheduler's client certificate ends at 2026-07-31T00:00:00Z"]
    assert apply_renewal_step(certificates, "sign", SPEC, NOW) == certificates


def test_no_authoritys_key_is_in_anything() -> None:
    second = announce_authority()
    for certificates in (issue_certificates(), second, apply_renewal_step(second, "switch", SPEC, RENEWED)):
        trusted = x509.load_pem_x509_certificates(certificates.server.trusted + certificates.client.trusted)
        public = [authority.public_key() for authority in trusted]
        for side in certificates:
            for key in filter(None, (side.key, side.next_key)):
                assert serialization.load_pem_private_key(key, None).public_key() not in public
            assert b"PRIVATE" not in side.trusted + side.cert + side.next_cert


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"names": ("a_b",)}, "--name: 'a_b'; expected a host name or an IP address"),
        ({"client_name": ""}, "--client-name"),
        ({"client_name": "a" * 65}, "--client-name"),
        ({"lifetime": timedelta(seconds=1)}, "--lifetime"),
        ({"renew_before": 90 * DAY}, "--renew-before"),
        ({"renew_before": timedelta()}, ""),
        ({"switch_after": -DAY}, "--switch-after"),
    ],
)
def test_an_impossible_spec_is_refused(changed: dict, words: str) -> None:
    if not words:
        check_certificate_spec(SPEC._replace(**changed))
        return
    with pytest.raises(BadSettings, match=words):
        check_certificate_spec(SPEC._replace(**changed))


# objects


def test_secrets_hold_both_sides_and_are_read_back() -> None:
    for certificates in (issue_certificates(), announce_authority()):
        manifests = build_secrets(certificates, "web", ("nodewise-tls", "client"))
        assert ConnectionCertificates(*map(parse_secret, manifests)) == certificates
        assert all(map(is_written_by_nodewise, manifests))
        assert [secret["type"] for secret in manifests] == ["kubernetes.io/tls"] * 2
        assert set(manifests[0]["data"]) >= {"tls.crt", "tls.key", "ca.crt"}


@pytest.mark.parametrize("data", [None, {}, {"tls.crt": "!", "tls.key": 5}])
def test_a_secret_that_cannot_be_read_holds_nothing(data: dict | None) -> None:
    assert parse_secret({"metadata": {}, "data": data}) == PeerCertificates()


def test_the_request_is_for_a_client_only() -> None:
    spec = build_signing_request("x", "example.com/clients", b"request", DAY)["spec"]
    assert spec == {
        "request": base64.b64encode(b"request").decode(),
        "signerName": "example.com/clients",
        "usages": ["digital signature", "client auth"],
        "expirationSeconds": 86400,
    }


def test_cert_manager_objects_have_the_same_names_and_usages() -> None:
    manifests = build_cert_manager_objects(
        SPEC._replace(names=(*NAMES, "10.0.0.1")), "web", ("nodewise-tls", "client")
    )
    specs = {
        manifest["metadata"]["name"]: manifest["spec"]
        for manifest in manifests
        if manifest["kind"] == "Certificate"
    }
    assert specs["nodewise-tls"]["dnsNames"] == list(NAMES)
    assert specs["nodewise-tls"]["ipAddresses"] == ["10.0.0.1"]
    assert specs["nodewise-tls"]["usages"] == ["digital signature", "server auth"]
    assert specs["client"]["commonName"] == "nodewise-scheduler-client"
    assert specs["client"]["usages"] == ["digital signature", "client auth"]
    assert (specs["client"]["duration"], specs["client"]["renewBefore"]) == ("2160h", "720h")
    assert yaml.load(yaml.safe_dump(manifests), yaml.CSafeLoader) == manifests


def test_words_of_a_unit_are_quoted() -> None:
    text = render_systemd_units(["/usr/bin/nodewise", "certs", "--name", "a b", "--host", "/x/%n$"], "/x/%n$")
    assert 'ExecStart=/usr/bin/nodewise certs --name "a b" --host /x/%%n$$\n' in text
    assert "ReadWritePaths=/x/%%n$\n" in text
