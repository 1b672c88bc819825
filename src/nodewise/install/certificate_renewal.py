"""Issues and renews the certificates of nodewise and of kube-scheduler as its client. Computes only.

A renewal has two steps, because kube-scheduler reads its `caFile` once. The first step announces a new authority: both
peers trust it in addition to the old one, and the certificates that it signed are stored for later. Then kube-scheduler
is restarted. The second step switches both peers to the stored certificates. A run may end after any step: the stored
certificates determine the next one. The key of an authority exists only during a run, so an incomplete set of
certificates is issued again.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from cryptography import x509

from nodewise.base.errors import BadSettings, Problem, Unavailable
from nodewise.server.options import ISSUED_CLIENT
from nodewise.tls.x509_certificates import (
    SKEW,
    CertificateIssuer,
    SignedCertificate,
    certificate_names,
    common_name,
    encode_pem,
    format_rfc3339_time,
    is_host,
    is_ip_address,
    is_issued_by,
    load_certificate_with_key,
    load_certificates,
    normalize_host_name,
)

SERVICE: Final = "nodewise"
CLIENT: Final = ISSUED_CLIENT
_AUTHORITY_PREFIX: Final = "nodewise-ca-"
_MIN_LIFETIME: Final = timedelta(minutes=1)
_MAX_LIFETIME: Final = timedelta(days=10 * 365)
_MAX_NAME_LENGTH: Final = 64  # of a common name, RFC 5280

Step = Literal["make", "announce", "wait", "switch", "sign", "clock", "nothing"]
"""`sign`: the signer of the cluster has to renew the client certificate. `clock`: the clock of this machine is behind
the start of an existing certificate."""


class PeerCertificates(NamedTuple):
    """The certificate and trusted authorities of nodewise or of kube-scheduler, in PEM; empty if missing."""

    cert: bytes = b""
    key: bytes = b""
    trusted: bytes = b""
    """The authorities that may have signed the certificate of the other peer."""
    next_cert: bytes = b""
    next_key: bytes = b""
    signer: str = ""
    """The signer of a certificate that the cluster signed. Such a certificate is not renewed here."""


class ConnectionCertificates(NamedTuple):
    """The certificates of both peers of a connection: nodewise (server) and kube-scheduler (client)."""

    server: PeerCertificates = PeerCertificates()
    client: PeerCertificates = PeerCertificates()


class CertificateSpec(NamedTuple):
    """The required certificates, and when they are renewed."""

    names: Sequence[str]
    """Host names and addresses of nodewise."""
    client_name: str = CLIENT
    lifetime: timedelta = timedelta(days=365)
    renew_before: timedelta | None = None
    """Time before the end of a certificate; None: a third of its lifetime."""
    switch_after: timedelta | None = None
    """Time after the announcement of a new authority; None: half of `renew_before`."""
    settle: timedelta = timedelta(minutes=3)
    """Time after which both peers have read an announcement."""
    is_forced: bool = False
    """Whether a renewal begins although none is due."""


class CertificateSummary(NamedTuple):
    """A certificate as reports show it."""

    names: Sequence[str]
    not_after: datetime
    signer: str


class RenewalPlan(NamedTuple):
    """The next step, its reasons and its time; `at` is in the past for a step that is due."""

    step: Step
    reasons: Sequence[str]
    at: datetime
    announced_at: datetime | None = None
    server: CertificateSummary | None = None
    client: CertificateSummary | None = None

    @property
    def is_due(self) -> bool:
        """Whether an action is due now. In the step `wait` this is the restart of kube-scheduler."""
        return self.step != "nothing"


class _PeerStatus(NamedTuple):
    """The certificate of one peer: whether it is usable, and the certificate that replaces it."""

    leaf: x509.Certificate | None
    is_usable: bool
    reasons: Sequence[str]
    due_at: datetime
    next_leaf: x509.Certificate | None
    switch_at: datetime


def service_dns_names(namespace: str, service: str = SERVICE) -> tuple[str, ...]:
    """Host names of nodewise's Service."""
    inside = f"{service}.{namespace}"
    return service, inside, f"{inside}.svc", f"{inside}.svc.cluster.local"


def check_certificate_spec(spec: CertificateSpec) -> None:  # complexity: one condition for each field
    """Raise BadSettings with every invalid field of a spec."""
    problems = [
        Problem("--name", repr(name), "a host name or an IP address")
        for name in spec.names
        if not (is_ip_address(name) or is_host(name.removeprefix("*.")))
    ]
    if not 0 < len(spec.client_name) <= _MAX_NAME_LENGTH or not spec.client_name.isprintable():
        expected = f"1 to {_MAX_NAME_LENGTH} characters"
        problems.append(Problem("--client-name", repr(spec.client_name), expected))
    if not _MIN_LIFETIME <= spec.lifetime <= _MAX_LIFETIME:
        problems.append(Problem("--lifetime", f"{spec.lifetime}", f"{_MIN_LIFETIME} to {_MAX_LIFETIME}"))
    elif not timedelta() < (spec.renew_before or spec.lifetime / 3) < spec.lifetime:
        problems.append(Problem("--renew-before", f"{spec.renew_before}", f"less than {spec.lifetime}"))
    for name, value in (("--switch-after", spec.switch_after), ("--settle", spec.settle)):
        if value is not None and value < timedelta():
            problems.append(Problem(name, f"{value}", "no time before now"))
    if problems:
        raise BadSettings("settings", problems)


def plan_renewal(before: ConnectionCertificates, spec: CertificateSpec, now: datetime) -> RenewalPlan:
    """The next step for these certificates."""
    server, client = _assess_certificates(before, spec, now)
    peers = (server, client) if not before.client.signer else (server,)
    starts = [peer.leaf.not_valid_before_utc for peer in (server, client) if peer.leaf is not None]
    if starts and max(starts) > now and not spec.is_forced:
        reason = (
            f"this machine's clock is at {format_rfc3339_time(now)}, and existing certificates are valid from"
            f" {format_rfc3339_time(max(starts))}: correct the clock; or, if it was wrong when they were issued, use"
            " --renew"
        )
        next_step = RenewalPlan("clock", [reason], max(starts))
    elif due_step := _plan_issue_step(peers, now) or _plan_switch_step(peers, now):
        next_step = due_step
    elif spec.is_forced:
        next_step = RenewalPlan("announce", ["requested by --renew"], now)
    elif client.due_at <= now:
        next_step = RenewalPlan("sign", client.reasons, client.due_at)
    else:
        next_step = RenewalPlan("nothing", [], min(server.due_at, client.due_at))
    return next_step._replace(
        server=_summarize_peer_status(server, before.server),
        client=_summarize_peer_status(client, before.client),
    )


def _plan_issue_step(peers: Sequence[_PeerStatus], now: datetime) -> RenewalPlan | None:
    due = [peer for peer in peers if peer.due_at <= now and peer.next_leaf is None]
    if not due:
        return None
    step: Step = "announce" if any(peer.is_usable for peer in peers) else "make"
    return RenewalPlan(
        step, [reason for peer in due for reason in peer.reasons], min(peer.due_at for peer in due)
    )


def _plan_switch_step(peers: Sequence[_PeerStatus], now: datetime) -> RenewalPlan | None:
    issued = [(peer.next_leaf, peer.switch_at) for peer in peers if peer.next_leaf is not None]
    if not issued:
        return None
    at = min(switch_at for _, switch_at in issued)
    return RenewalPlan(
        "switch" if at <= now else "wait",
        ["a new authority was announced; restart kube-scheduler before it is used"],
        at,
        max(leaf.not_valid_before_utc + SKEW for leaf, _ in issued),
    )


def plan_after_scheduler_restart(plan: RenewalPlan, spec: CertificateSpec, now: datetime) -> RenewalPlan:
    """The plan after a restart of kube-scheduler. Unavailable if the announcement is too recent for that restart."""
    if plan.step != "wait" or plan.announced_at is None:
        return plan
    settled = plan.announced_at + spec.settle
    if now < settled:
        announced_at = format_rfc3339_time(plan.announced_at)
        actual = f"the new authority was announced at {announced_at}, and has to reach both sides first"
        expected = f"a restart of kube-scheduler, and --restarted, after {format_rfc3339_time(settled)}"
        raise Unavailable("--restarted", [Problem("", actual, expected)])
    return plan._replace(step="switch")


def apply_renewal_step(
    before: ConnectionCertificates, step: Step, spec: CertificateSpec, now: datetime
) -> ConnectionCertificates:
    """The certificates after a step. An authority that the step creates signs them; its key is then discarded."""
    if step == "switch":
        return ConnectionCertificates(*map(_switch_to_stored_certificate, before))
    if step not in {"make", "announce"}:
        return before
    issuer = CertificateIssuer(f"{_AUTHORITY_PREFIX}{x509.random_serial_number():x}"[:24], now, spec.lifetime)
    server_status, client_status = _assess_certificates(before, spec, now)
    common = next((name for name in spec.names if not is_ip_address(name)), SERVICE)
    server = _add_issued_certificate(before.server, server_status, issuer.server(spec.names, common))
    client, foreign = before.client, b""
    if client.signer:  # any of these authorities, or one that they signed, may have issued its certificate
        foreign = encode_pem(
            authority
            for authority in load_certificates(before.server.trusted)
            if not common_name(authority).startswith(_AUTHORITY_PREFIX)
            and authority.not_valid_after_utc > now
        )
    else:
        client = _add_issued_certificate(client, client_status, issuer.client(spec.client_name))
    known = load_certificates(before.server.trusted + before.client.trusted)

    def trusted_bundle(other: _PeerStatus, kept: bytes = b"") -> bytes:
        """The new authority, the known authority that signed the other peer's certificate, and those to keep."""
        leaf = other.leaf if other.is_usable else None
        signers = [authority for authority in known if leaf is not None and is_issued_by(leaf, authority)]
        return encode_pem(
            dict.fromkeys([*load_certificates(issuer.cert), *signers, *load_certificates(kept)])
        )

    return ConnectionCertificates(
        server._replace(trusted=trusted_bundle(client_status, foreign)),
        client._replace(trusted=trusted_bundle(server_status)),
    )


def _assess_certificates(
    before: ConnectionCertificates, spec: CertificateSpec, now: datetime
) -> tuple[_PeerStatus, _PeerStatus]:
    server = _assess_peer_certificate(before.server, before.client, spec, now, is_server=True)
    return server, _assess_peer_certificate(before.client, before.server, spec, now, is_server=False)


def _assess_peer_certificate(
    peer: PeerCertificates, other: PeerCertificates, spec: CertificateSpec, now: datetime, *, is_server: bool
) -> _PeerStatus:
    who = "nodewise's certificate" if is_server else "kube-scheduler's client certificate"
    leaf, problem = load_certificate_with_key(peer.cert, peer.key)
    if leaf is not None and not problem:
        problem = _validity_problem(leaf, other.trusted + peer.trusted, now)

    def find_problem(candidate: x509.Certificate) -> str:
        return _validity_problem(candidate, other.trusted, now) or _missing_names(
            candidate, spec, is_server=is_server
        )

    next_leaf, _ = load_certificate_with_key(peer.next_cert, peer.next_key)
    if next_leaf is not None and find_problem(next_leaf):
        next_leaf = None
    if leaf is None or problem:
        return _PeerStatus(leaf, False, [f"{who} {problem}"], now, next_leaf, now)
    due_at = leaf.not_valid_after_utc - _renewal_margin(leaf, spec)
    reasons = [f"{who} ends at {format_rfc3339_time(leaf.not_valid_after_utc)}"] if due_at <= now else []
    if problem := find_problem(leaf):
        due_at, reasons = now, [*reasons, f"{who} {problem}"]
    switch_at = now
    if next_leaf is not None:  # without a restart: at half of the old certificate's remaining time, or sooner
        announced = next_leaf.not_valid_before_utc + SKEW
        wait = spec.switch_after if spec.switch_after is not None else _renewal_margin(leaf, spec) / 2
        switch_at = announced + min(wait, (leaf.not_valid_after_utc - announced) / 2)
    return _PeerStatus(leaf, True, reasons, due_at, next_leaf, switch_at)


def _renewal_margin(leaf: x509.Certificate, spec: CertificateSpec) -> timedelta:
    whole = leaf.not_valid_after_utc - leaf.not_valid_before_utc - SKEW
    return min(spec.renew_before, whole / 2) if spec.renew_before is not None else whole / 3


def _validity_problem(leaf: x509.Certificate, trusted: bytes, now: datetime) -> str:
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        start, end = (
            format_rfc3339_time(leaf.not_valid_before_utc),
            format_rfc3339_time(leaf.not_valid_after_utc),
        )
        return f"is valid from {start} to {end} only"
    by = [authority for authority in load_certificates(trusted) if is_issued_by(leaf, authority)]
    if not any(authority.not_valid_after_utc > now for authority in by):
        return "is of an authority that the other side's ca.crt does not hold"
    return ""


def _missing_names(leaf: x509.Certificate, spec: CertificateSpec, *, is_server: bool) -> str:
    """A phrase that names the host names or the client name missing in a certificate; empty if complete."""
    if not is_server:
        name = common_name(leaf)
        return "" if name == spec.client_name else f"names {name!r}, not {spec.client_name!r}"
    missing = sorted(
        {normalize_host_name(name) for name in spec.names}
        - {normalize_host_name(name) for name in certificate_names(leaf)}
    )
    return f"does not name {', '.join(missing)}" if missing else ""


def _summarize_peer_status(status: _PeerStatus, peer: PeerCertificates) -> CertificateSummary | None:
    leaf = status.leaf
    if leaf is None:
        return None
    return CertificateSummary(
        certificate_names(leaf) or [common_name(leaf)], leaf.not_valid_after_utc, peer.signer
    )


def _add_issued_certificate(
    peer: PeerCertificates, status: _PeerStatus, made: SignedCertificate
) -> PeerCertificates:
    """The certificates with a newly issued one: stored for the switch, or in use at once if the old one is unusable."""
    if status.is_usable:
        return peer._replace(next_cert=made.cert, next_key=made.key)
    return peer._replace(cert=made.cert, key=made.key, next_cert=b"", next_key=b"")


def _switch_to_stored_certificate(peer: PeerCertificates) -> PeerCertificates:
    if not peer.next_cert:
        return peer
    return peer._replace(cert=peer.next_cert, key=peer.next_key, next_cert=b"", next_key=b"")
