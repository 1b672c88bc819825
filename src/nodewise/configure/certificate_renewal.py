"""Certificates of nodewise's own: what is there, what is due, and what takes its place. Computes only.

A renewal has two steps, because kube-scheduler reads its `caFile` once. First the new authority is announced: both
sides trust it beside the old one, and the certificates that it signed lie ready. kube-scheduler is started anew. Then
both sides are switched to those. Whatever step a run ends in, what it left says how to go on: an authority's key is
gone when the run is over, so what is not whole is made once more.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodewise.errors import BadSettings, Problem, Unavailable
from nodewise.serve.certificate_issuer import SKEW, Issuer, Leaf, is_address, is_by, is_host
from nodewise.serve.options import ISSUED_CLIENT

SERVICE: Final = "nodewise"
CLIENT: Final = ISSUED_CLIENT
_AUTHORITY: Final = "nodewise-ca-"
_PEM: Final = serialization.Encoding.PEM
_SHORTEST: Final = timedelta(minutes=1)
_LONGEST: Final = timedelta(days=10 * 365)
_LONGEST_NAME: Final = 64  # of a common name, RFC 5280

Step = Literal["make", "announce", "wait", "switch", "sign", "clock", "nothing"]
"""`sign`: the cluster's signer is to be asked again, and not we. `clock`: this machine's is behind what is there."""


class Side(NamedTuple):
    """What nodewise, or kube-scheduler, shows and trusts; all PEM, empty where it is not there."""

    cert: bytes = b""
    key: bytes = b""
    trusted: bytes = b""
    """Who may have signed the other side's certificate."""
    next_cert: bytes = b""
    next_key: bytes = b""
    signer: str = ""
    """Of a certificate that the cluster signed: it is not renewed here."""


class Both(NamedTuple):
    """Both sides of a connection: nodewise and kube-scheduler."""

    server: Side = Side()
    client: Side = Side()


class Wish(NamedTuple):
    """What certificates there are to be."""

    names: Sequence[str]
    """Host names and addresses of nodewise."""
    client_name: str = CLIENT
    valid: timedelta = timedelta(days=365)
    renew_before: timedelta | None = None
    """Before the end; None: a third of the time for which a certificate is valid."""
    switch_after: timedelta | None = None
    """After a new authority was announced; None: half of `renew_before`."""
    settle: timedelta = timedelta(minutes=3)
    """Until an announcement has surely reached both sides."""
    is_forced: bool = False
    """To begin a renewal although none is due."""


class Shown(NamedTuple):
    """A certificate as people are told of it."""

    names: Sequence[str]
    ends: datetime
    signer: str


class Outlook(NamedTuple):
    """What is to be done next, why, and when; `at` is in the past for what is due."""

    step: Step
    reasons: Sequence[str]
    at: datetime
    announced: datetime | None = None
    server: Shown | None = None
    client: Shown | None = None

    @property
    def is_due(self) -> bool:
        """Whether somebody has to do something now; while it waits that is kube-scheduler's restart."""
        return self.step != "nothing"


class _Judged(NamedTuple):
    """The certificate of one side: whether it may go on, and what lies ready in its place."""

    leaf: x509.Certificate | None
    works: bool
    reasons: Sequence[str]
    due: datetime
    ready: x509.Certificate | None
    switch: datetime


def service_names(namespace: str, service: str = SERVICE) -> tuple[str, ...]:
    """Host names of nodewise's Service."""
    inside = f"{service}.{namespace}"
    return service, inside, f"{inside}.svc", f"{inside}.svc.cluster.local"


def check(wish: Wish) -> None:
    """BadSettings names whatever of a wish cannot be."""
    problems = [*_wrong_names(wish), *_wrong_periods(wish)]
    if problems:
        raise BadSettings("settings", problems)


def _wrong_names(wish: Wish) -> Iterator[Problem]:
    for name in wish.names:
        if not (is_address(name) or is_host(name.removeprefix("*."))):
            yield Problem("--name", repr(name), "a host name or an IP address")
    if not 0 < len(wish.client_name) <= _LONGEST_NAME or not wish.client_name.isprintable():
        yield Problem("--client-name", repr(wish.client_name), f"1 to {_LONGEST_NAME} characters")


def _wrong_periods(wish: Wish) -> Iterator[Problem]:
    if not _SHORTEST <= wish.valid <= _LONGEST:
        yield Problem("--lifetime", f"{wish.valid}", f"{_SHORTEST} to {_LONGEST}")
    elif not timedelta() < (wish.renew_before or wish.valid / 3) < wish.valid:
        yield Problem("--renew-before", f"{wish.renew_before}", f"less than {wish.valid}")
    for name, value in (("--switch-after", wish.switch_after), ("--settle", wish.settle)):
        if value is not None and value < timedelta():
            yield Problem(name, f"{value}", "no time before now")


def outlook(before: Both, wish: Wish, now: datetime) -> Outlook:
    """What is to be done about these certificates."""
    server = _judged(before.server, before.client, wish, now, is_server=True)
    client = _judged(before.client, before.server, wish, now, is_server=False)
    sides = (server, client) if not before.client.signer else (server,)
    if (begins := _begins(server, client)) > now and not wish.is_forced:
        next_step = Outlook("clock", [_behind(begins, now)], begins)
    elif due := _issue(sides, now) or _switch_to_ready(sides, now):
        next_step = due
    elif wish.is_forced:
        next_step = Outlook("announce", ["asked for"], now)
    elif client.due <= now:
        next_step = Outlook("sign", client.reasons, client.due)
    else:
        next_step = Outlook("nothing", [], min(server.due, client.due))
    return next_step._replace(server=_told(server, before.server), client=_told(client, before.client))


def _issue(sides: Sequence[_Judged], now: datetime) -> Outlook | None:
    """New certificates, where one is due and nothing lies ready in its place."""
    due = [side for side in sides if side.due <= now and side.ready is None]
    if not due:
        return None
    step: Step = "announce" if any(side.works for side in sides) else "make"
    return Outlook(step, [reason for side in due for reason in side.reasons], min(side.due for side in due))


def _switch_to_ready(sides: Sequence[_Judged], now: datetime) -> Outlook | None:
    """The use of certificates that lie ready, at once or later."""
    ready = [(side.ready, side.switch) for side in sides if side.ready is not None]
    if not ready:
        return None
    at = min(switch for _, switch in ready)
    return Outlook(
        "switch" if at <= now else "wait",
        ["a new authority was announced; kube-scheduler has to be started anew before it is used"],
        at,
        max(leaf.not_valid_before_utc + SKEW for leaf, _ in ready),
    )


def _begins(*sides: _Judged) -> datetime:
    """From when on all are valid; long ago where there is none."""
    leaves = [side.leaf for side in sides if side.leaf is not None]
    return max((leaf.not_valid_before_utc for leaf in leaves), default=datetime.min.replace(tzinfo=UTC))


def _behind(begins: datetime, now: datetime) -> str:
    return (
        f"this machine's clock says {stamp(now)}, and certificates that are there begin at {stamp(begins)}: mend "
        "the clock; or, if it was wrong when they were made, --renew"
    )


def restarted(plan: Outlook, wish: Wish, now: datetime) -> Outlook:
    """The same when kube-scheduler was started anew. Unavailable where that cannot have been late enough."""
    if plan.step != "wait" or plan.announced is None:
        return plan
    settled = plan.announced + wish.settle
    if now < settled:
        seen = (
            f"the new authority was announced at {stamp(plan.announced)}, and has to reach both sides first"
        )
        wanted = f"kube-scheduler started anew, and --restarted, after {stamp(settled)}"
        raise Unavailable("--restarted", [Problem("", seen, wanted)])
    return plan._replace(step="switch")


def taken(before: Both, step: Step, wish: Wish, now: datetime) -> Both:
    """What there is after a step. An authority that is made in it signs, and is gone."""
    if step == "switch":
        return Both(_switched(before.server), _switched(before.client))
    if step not in {"make", "announce"}:
        return before
    issuer = Issuer(f"{_AUTHORITY}{x509.random_serial_number():x}"[:24], now, wish.valid)
    judged_server = _judged(before.server, before.client, wish, now, is_server=True)
    judged_client = _judged(before.client, before.server, wish, now, is_server=False)
    common = next((name for name in wish.names if not is_address(name)), SERVICE)
    server = _announced(before.server, judged_server, issuer.server(wish.names, common))
    client, foreign = before.client, b""
    if client.signer:  # its certificate may come of any of them, or of one that these have signed
        held = _certificates(before.server.trusted)
        foreign = _pem(
            authority for authority in held if not _is_ours(authority) and authority.not_valid_after_utc > now
        )
    else:
        client = _announced(client, judged_client, issuer.client(wish.client_name))
    known = (before.server.trusted, before.client.trusted)
    return Both(
        server._replace(trusted=_bundle(issuer.cert, known, judged_client, foreign)),
        client._replace(trusted=_bundle(issuer.cert, known, judged_server)),
    )


def trusting(trusted: bytes, more: bytes) -> bytes:
    """A bundle with further authorities in it, each once."""
    held = _certificates(trusted)
    return _pem([*held, *(authority for authority in _certificates(more) if authority not in held)])


def trouble_of_issued(cert: bytes, key: bytes) -> str:
    """What is wrong with a client's certificate that somebody else signed, if anything."""
    leaf, trouble = _leaf(cert, key)
    if leaf is None:
        return trouble
    try:
        uses = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return "is for any use"
    return "" if ExtendedKeyUsageOID.CLIENT_AUTH in uses else "is not for clients"


def is_authority(cert: bytes) -> bool:
    """Whether there is one certificate at least, and each may sign others."""
    certificates = _certificates(cert)
    return bool(certificates) and all(map(_is_ca, certificates))


def stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def _judged(side: Side, other: Side, wish: Wish, now: datetime, *, is_server: bool) -> _Judged:
    who = "nodewise's certificate" if is_server else "kube-scheduler's client certificate"
    leaf, trouble = _leaf(side.cert, side.key)
    if leaf is not None and not trouble:
        trouble = _trouble_now(leaf, other.trusted + side.trusted, now)

    def lacks(candidate: x509.Certificate) -> str:
        return _trouble_now(candidate, other.trusted, now) or _lacks(candidate, wish, is_server=is_server)

    ready, _ = _leaf(side.next_cert, side.next_key)
    if ready is not None and lacks(ready):
        ready = None
    if leaf is None or trouble:
        return _Judged(leaf, False, [f"{who} {trouble}"], now, ready, now)
    due = leaf.not_valid_after_utc - _renew_before(leaf, wish)
    reasons = [f"{who} ends at {stamp(leaf.not_valid_after_utc)}"] if due <= now else []
    if lacking := lacks(leaf):
        due, reasons = now, [*reasons, f"{who} {lacking}"]
    return _Judged(leaf, True, reasons, due, ready, _switch(leaf, ready, wish) if ready is not None else now)


def _switch(leaf: x509.Certificate, ready: x509.Certificate, wish: Wish) -> datetime:
    """When what lies ready is used by itself: in the middle of what is left of the old one, or sooner."""
    announced = ready.not_valid_before_utc + SKEW
    wait = wish.switch_after if wish.switch_after is not None else _renew_before(leaf, wish) / 2
    return announced + min(wait, (leaf.not_valid_after_utc - announced) / 2)


def _renew_before(leaf: x509.Certificate, wish: Wish) -> timedelta:
    whole = leaf.not_valid_after_utc - leaf.not_valid_before_utc - SKEW
    return min(wish.renew_before, whole / 2) if wish.renew_before is not None else whole / 3


def _leaf(cert: bytes, key: bytes) -> tuple[x509.Certificate | None, str]:
    """A certificate with its key, or what is wrong with the two."""
    if not cert or not key:
        return None, "is not there"
    try:
        leaf = x509.load_pem_x509_certificate(cert)
        own = serialization.load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None, "cannot be read"
    if public_der(own) != public_der(leaf.public_key()):
        return None, "does not match its key"
    return (None, "is an authority's") if _is_ca(leaf) else (leaf, "")


def _is_ca(cert: x509.Certificate) -> bool:
    """Only what says so: whoever is to be trusted needs it, while `is_ca` fails closed."""
    try:
        return cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, x509.ExtensionNotFound):
        return False


def _trouble_now(leaf: x509.Certificate, trusted: bytes, now: datetime) -> str:
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        return f"is valid from {stamp(leaf.not_valid_before_utc)} to {stamp(leaf.not_valid_after_utc)} only"
    by = [authority for authority in _certificates(trusted) if is_by(leaf, authority)]
    if not any(authority.not_valid_after_utc > now for authority in by):
        return "is of an authority that the other side's ca.crt does not hold"
    return ""


def _lacks(leaf: x509.Certificate, wish: Wish, *, is_server: bool) -> str:
    """What a certificate does not say that it should, in words."""
    if not is_server:
        name = _common_name(leaf)
        return "" if name == wish.client_name else f"names {name!r}, not {wish.client_name!r}"
    lacking = sorted({_normal(name) for name in wish.names} - {_normal(name) for name in _names(leaf)})
    return f"does not name {', '.join(lacking)}" if lacking else ""


def _normal(name: str) -> str:
    return str(ipaddress.ip_address(name)) if is_address(name) else name.lower()


def _names(leaf: x509.Certificate) -> list[str]:
    try:
        alternative_names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(address) for address in alternative_names.get_values_for_type(x509.IPAddress)]
    return [*alternative_names.get_values_for_type(x509.DNSName), *addresses]


def _common_name(leaf: x509.Certificate) -> str:
    return next(
        (str(attribute.value) for attribute in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)), ""
    )


def _told(judged: _Judged, side: Side) -> Shown | None:
    leaf = judged.leaf
    if leaf is None:
        return None
    return Shown(_names(leaf) or [_common_name(leaf)], leaf.not_valid_after_utc, side.signer)


def _announced(side: Side, judged: _Judged, made: Leaf) -> Side:
    """What works is used on until the switch; else there is nothing to wait for."""
    if judged.works:
        return side._replace(next_cert=made.cert, next_key=made.key)
    return side._replace(cert=made.cert, key=made.key, next_cert=b"", next_key=b"")


def _switched(side: Side) -> Side:
    if not side.next_cert:
        return side
    return side._replace(cert=side.next_cert, key=side.next_key, next_cert=b"", next_key=b"")


def _bundle(fresh: bytes, known: Iterable[bytes], other: _Judged, kept: bytes = b"") -> bytes:
    """The new authority, of those that are known the one that signed what the other side shows now, and `kept`."""
    signers = [
        authority
        for authority in _certificates(b"".join(known))
        if other.works and other.leaf is not None and is_by(other.leaf, authority)
    ]
    return _pem(dict.fromkeys([*_certificates(fresh), *signers, *_certificates(kept)]))


def _is_ours(authority: x509.Certificate) -> bool:
    return _common_name(authority).startswith(_AUTHORITY)


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(_PEM) for certificate in certificates)


def is_ca(certificate: x509.Certificate) -> bool:
    """Whether it is a CA's certificate. One whose extension cannot be read is taken for one: this fails closed."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return certificate.issuer == certificate.subject
    except ValueError:
        return True


def public_der(key: PublicKeyTypes) -> bytes:
    """A public key as DER: equal for a certificate and the key that belongs to it."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
