"""At each moment of a renewal, whoever showed or trusted something in the step before is let in by the other side."""

import base64
import itertools
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import DNSName
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from nodewise.configure import certificate_objects as objects
from nodewise.configure import certificate_renewal
from nodewise.configure.certificate_renewal import Both, Side, Wish
from nodewise.errors import BadSettings, Unavailable
from nodewise.serve.certificate_issuer import Issuer

NOW = datetime(2026, 7, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = certificate_renewal.service_names("nodewise")
WISH = Wish(NAMES, valid=90 * DAY)
RENEWED = NOW + 61 * DAY


def made(wish: Wish = WISH, now: datetime = NOW) -> Both:
    return certificate_renewal.taken(Both(), "make", wish, now)


def announced(before: Both | None = None, now: datetime = RENEWED) -> Both:
    return certificate_renewal.taken(before or made(), "announce", WISH, now)


def step(both: Both, now: datetime, wish: Wish = WISH) -> str:
    return certificate_renewal.outlook(both, wish, now).step


def lets_in(shown: Side, trusts: Side, at: datetime, *, server: bool) -> bool:
    """Whether the holder of `trusts` lets in who shows the certificate of `shown`, to cryptography's verifier."""
    store = Store(x509.load_pem_x509_certificates(trusts.trusted))
    policy = PolicyBuilder().store(store).time(at)
    leaf = x509.load_pem_x509_certificate(shown.cert)
    verifier = policy.build_server_verifier(DNSName(NAMES[2])) if server else policy.build_client_verifier()
    try:
        verifier.verify(leaf, [])
    except VerificationError:
        return False
    return True


def works(server: Side, client: Side, at: datetime) -> bool:
    return lets_in(server, client, at, server=True) and lets_in(client, server, at, server=False)


def test_what_is_made_works_and_is_kept_until_a_third_of_its_time_is_left() -> None:
    both = made()
    assert works(*both, NOW)
    assert step(both, NOW) == step(both, NOW + 59 * DAY) == "nothing"
    assert certificate_renewal.outlook(both, WISH, NOW).at == NOW + 60 * DAY
    assert step(both, NOW + 61 * DAY) == "announce"
    assert step(both, NOW + 61 * DAY, WISH._replace(renew_before=10 * DAY)) == "nothing"
    assert step(both, NOW + 81 * DAY, WISH._replace(renew_before=10 * DAY)) == "announce"
    assert step(Both(), NOW) == "make"


def test_nobody_is_refused_whichever_side_is_a_step_behind() -> None:
    first = made()
    second = announced(first)
    third = certificate_renewal.taken(second, "switch", WISH, RENEWED + DAY)
    fourth = announced(third, RENEWED + 61 * DAY)
    for older, newer in itertools.pairwise((first, second, third)):
        for server, client in itertools.product((older.server, newer.server), (older.client, newer.client)):
            assert works(server, client, RENEWED + 2 * DAY)
    for server, client in itertools.product((third.server, fourth.server), (third.client, fourth.client)):
        assert works(server, client, RENEWED + 62 * DAY)
    assert second.server.cert == first.server.cert
    assert third.server.cert == second.server.next_cert != first.server.cert
    assert third.server.next_cert == third.client.next_key == b""
    assert [
        len(x509.load_pem_x509_certificates(state.server.trusted)) for state in (first, third, fourth)
    ] == [
        1,
        2,
        2,
    ]


def test_a_scheduler_that_read_its_ca_file_before_the_announcement_would_refuse_the_new_certificate() -> None:
    """Which is why it waits, and says so."""
    first = made()
    second = announced(first)
    third = certificate_renewal.taken(second, "switch", WISH, RENEWED + DAY)
    assert not lets_in(third.server, first.client, RENEWED + DAY, server=True)


def test_it_waits_for_the_restart_and_goes_on_by_itself_in_time() -> None:
    both = announced()
    plan = certificate_renewal.outlook(both, WISH, RENEWED)
    assert (plan.step, plan.is_due, plan.announced) == ("wait", True, RENEWED)
    assert RENEWED < plan.at < NOW + 90 * DAY
    assert step(both, plan.at) == "switch"
    assert step(both, RENEWED + 3 * DAY, WISH._replace(switch_after=2 * DAY)) == "switch"
    with pytest.raises(Unavailable, match="has to reach both sides first"):
        certificate_renewal.restarted(plan, WISH, RENEWED + timedelta(minutes=2))
    assert certificate_renewal.restarted(plan, WISH, RENEWED + timedelta(minutes=3)).step == "switch"
    assert step(certificate_renewal.taken(both, "switch", WISH, plan.at), plan.at) == "nothing"


def test_a_step_that_was_ended_between_the_two_sides_is_gone_on_with() -> None:
    first = made()
    second = announced(first)
    torn = Both(second.server, first.client)
    assert works(*torn, RENEWED)
    assert step(torn, RENEWED) == "announce", "the authority's key is gone, so there is a new one"
    again = certificate_renewal.taken(torn, "announce", WISH, RENEWED)
    assert works(*again, RENEWED)
    assert step(again, RENEWED) == "wait"
    third = certificate_renewal.taken(again, "switch", WISH, RENEWED + DAY)
    half = Both(third.server, again.client)
    assert works(*half, RENEWED + DAY)
    assert step(half, RENEWED + 29 * DAY) == "switch"
    assert works(*certificate_renewal.taken(half, "switch", WISH, RENEWED + DAY), RENEWED + DAY)


BROKEN = {
    "no key": lambda side: side._replace(key=b""),
    "not PEM": lambda side: side._replace(cert=b"x"),
    "another's key": lambda side: side._replace(key=made().server.key),
    "an authority": lambda side: side._replace(cert=side.trusted),
    "nothing": lambda side: Side(),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("field", Both._fields)
def test_a_side_that_is_broken_gets_a_new_certificate_at_once_and_the_other_one_keeps_its_own(
    what: str, field: str
) -> None:
    both = made()
    broken = both._replace(**{field: BROKEN[what](getattr(both, field))})
    plan = certificate_renewal.outlook(broken, WISH, NOW)
    assert plan.step == "announce"
    after = certificate_renewal.taken(broken, plan.step, WISH, NOW)
    assert works(*after, NOW)
    other = "client" if field == "server" else "server"
    assert getattr(after, other).cert == getattr(both, other).cert


def test_what_is_over_is_replaced_without_waiting() -> None:
    both = made()
    plan = certificate_renewal.outlook(both, WISH, NOW + 91 * DAY)
    assert plan.step == "make"
    assert works(*certificate_renewal.taken(both, "make", WISH, NOW + 91 * DAY), NOW + 91 * DAY)
    assert step(announced(), NOW + 91 * DAY) == "switch"


def test_no_bundle_grows_over_many_renewals() -> None:
    both, now = made(), NOW
    for _ in range(12):
        now += 61 * DAY
        both = announced(both, now)
        assert works(both.server, both.client, now)
        for side in both:
            assert len(x509.load_pem_x509_certificates(side.trusted)) == 2
        both = certificate_renewal.taken(both, "switch", WISH, now + DAY)
        assert works(both.server, both.client, now + DAY)


def test_an_authority_of_others_that_is_over_is_dropped() -> None:
    signer, later = Issuer("cluster-ca", NOW, 100 * DAY), Issuer("cluster-ca", NOW + 61 * DAY, 900 * DAY)
    leaf = later.client(WISH.client_name)
    first = made()
    trusted = certificate_renewal.trusting(first.server.trusted, signer.cert + later.cert)
    signed = Side(leaf.cert, leaf.key, first.client.trusted, signer="a/b")
    both = announced(Both(first.server._replace(trusted=trusted), signed), NOW + 120 * DAY)
    assert signer.cert not in both.server.trusted
    assert later.cert in both.server.trusted


def test_a_clock_that_is_behind_makes_nothing_anew() -> None:
    """After a start without a clock's battery every certificate would be one of 1970, and no call would succeed."""
    both = made()
    plan = certificate_renewal.outlook(both, WISH, datetime(1970, 1, 1, tzinfo=UTC))
    assert (plan.step, plan.is_due) == ("clock", True)
    assert "mend the clock" in plan.reasons[0]
    assert step(both, NOW - DAY, WISH._replace(is_forced=True)) == "make"
    assert step(announced(both), NOW - DAY) == "clock"
    assert step(both, NOW - timedelta(seconds=30)) == "nothing", "clocks differ a little"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"names": (*NAMES, "10.0.0.7")}, "nodewise's certificate does not name 10.0.0.7"),
        ({"client_name": "other"}, "names 'nodewise-scheduler-client', not 'other'"),
    ],
)
def test_other_names_are_a_reason_for_a_renewal(changed: dict, words: str) -> None:
    wish = WISH._replace(**changed)
    both = made()
    plan = certificate_renewal.outlook(both, wish, NOW)
    assert plan.step == "announce"
    assert words in "".join(plan.reasons)
    after = certificate_renewal.taken(both, "announce", wish, NOW)
    assert step(after, NOW, wish) == "wait"
    assert step(certificate_renewal.taken(after, "switch", wish, NOW), NOW, wish) == "nothing"


def test_an_address_is_the_same_in_every_spelling() -> None:
    both = made(WISH._replace(names=(*NAMES, "::1")))
    assert step(both, NOW, WISH._replace(names=(*NAMES, "0:0:0:0:0:0:0:1", NAMES[0].upper()))) == "nothing"


def test_a_clients_certificate_of_the_clusters_signer_is_left_alone_and_trusted_on() -> None:
    signer = Issuer("kubernetes", NOW, 3650 * DAY)
    leaf = signer.client(WISH.client_name)
    both = made()
    both = Both(
        both.server._replace(trusted=certificate_renewal.trusting(both.server.trusted, signer.cert)),
        Side(leaf.cert, leaf.key, both.client.trusted, signer="example.com/clients"),
    )
    assert works(*both, NOW)
    assert step(both, NOW) == "nothing"
    after = announced(both)
    assert works(*after, RENEWED)
    switched = certificate_renewal.taken(after, "switch", WISH, RENEWED + DAY)
    assert works(*switched, RENEWED + DAY)
    assert switched.client.cert == leaf.cert
    assert signer.cert not in switched.client.trusted, "it signs no server of ours"


def test_a_certificate_of_the_clusters_signer_that_ends_is_told_and_the_signer_is_to_be_asked() -> None:
    signer = Issuer("kubernetes", NOW, 30 * DAY)
    leaf = signer.client(WISH.client_name)
    server, client = made()
    both = Both(
        server._replace(trusted=certificate_renewal.trusting(server.trusted, signer.cert)),
        client._replace(cert=leaf.cert, key=leaf.key, signer="example.com/clients"),
    )
    assert certificate_renewal.outlook(both, WISH, NOW).at == NOW + 20 * DAY
    plan = certificate_renewal.outlook(both, WISH, NOW + 21 * DAY)
    assert (plan.step, plan.is_due) == ("sign", True)
    assert plan.reasons == ["kube-scheduler's client certificate ends at 2026-07-31T00:00:00Z"]
    assert certificate_renewal.taken(both, "sign", WISH, NOW) == both


def test_no_authoritys_key_is_in_anything() -> None:
    second = announced()
    for both in (made(), second, certificate_renewal.taken(second, "switch", WISH, RENEWED)):
        trusted = x509.load_pem_x509_certificates(both.server.trusted + both.client.trusted)
        public = [authority.public_key() for authority in trusted]
        for side in both:
            for key in filter(None, (side.key, side.next_key)):
                assert serialization.load_pem_private_key(key, None).public_key() not in public
            assert b"PRIVATE" not in side.trusted + side.cert + side.next_cert


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"names": ("a_b",)}, "--name: 'a_b'; wanted a host name or an IP address"),
        ({"client_name": ""}, "--client-name"),
        ({"client_name": "a" * 65}, "--client-name"),
        ({"valid": timedelta(seconds=1)}, "--lifetime"),
        ({"renew_before": 90 * DAY}, "--renew-before"),
        ({"renew_before": timedelta()}, ""),
        ({"switch_after": -DAY}, "--switch-after"),
    ],
)
def test_a_wish_that_cannot_be_is_told(changed: dict, words: str) -> None:
    if not words:
        certificate_renewal.check(WISH._replace(**changed))
        return
    with pytest.raises(BadSettings, match=words):
        certificate_renewal.check(WISH._replace(**changed))


# objects


def test_secrets_hold_both_sides_and_are_read_back() -> None:
    for both in (made(), announced()):
        made_ = objects.secrets(both, "web", ("nodewise-tls", "client"))
        assert Both(*map(objects.side, made_)) == both
        assert all(map(objects.is_ours, made_))
        assert [secret["type"] for secret in made_] == ["kubernetes.io/tls"] * 2
        assert set(made_[0]["data"]) >= {"tls.crt", "tls.key", "ca.crt"}


@pytest.mark.parametrize("data", [None, {}, {"tls.crt": "!", "tls.key": 5}])
def test_a_secret_that_cannot_be_read_holds_nothing(data: dict | None) -> None:
    assert objects.side({"metadata": {}, "data": data}) == Side()


def test_the_request_is_for_a_client_only() -> None:
    spec = objects.signing_request("x", "example.com/clients", b"request", DAY)["spec"]
    assert spec == {
        "request": base64.b64encode(b"request").decode(),
        "signerName": "example.com/clients",
        "usages": ["digital signature", "client auth"],
        "expirationSeconds": 86400,
    }


def test_cert_manager_is_told_the_same_names_and_uses() -> None:
    manifests = objects.cert_manager(
        WISH._replace(names=(*NAMES, "10.0.0.1")), "web", ("nodewise-tls", "client")
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
    assert yaml.safe_load(yaml.safe_dump(manifests)) == manifests


def test_words_of_a_unit_are_quoted() -> None:
    text = objects.systemd(["/usr/bin/nodewise", "certs", "--name", "a b", "--host", "/x/%n$"], "/x/%n$")
    assert 'ExecStart=/usr/bin/nodewise certs --name "a b" --host /x/%%n$$\n' in text
    assert "ReadWritePaths=/x/%%n$\n" in text
