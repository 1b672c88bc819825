"""Checks of the certificates between kube-scheduler and nodewise: names, usages, validity and issuers."""

import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from nodewise.base.errors import short
from nodewise.doctor.checks.extender_entries import create_entry_finding
from nodewise.doctor.facts import (
    Extenders,
    NodewiseWorkload,
    Pods,
    ProbedServer,
    Registration,
    Registrations,
    ReplicaMetrics,
    Service,
    UnavailableFact,
    readable,
)
from nodewise.doctor.findings import Finding, NotChecked, Result, change_setting, check, finding, kubectl
from nodewise.doctor.parsing import objects
from nodewise.doctor.parsing.certificates import Chain, ParsedCertificate, is_signed_by, is_valid_for
from nodewise.doctor.parsing.scheduler_configuration import split_url
from nodewise.server.options import ISSUED_CLIENT, SCHEDULER, is_loopback

EXPIRES_SOON: Final = timedelta(days=14)
OLDER_FLAGS: Final = frozenset(
    {"cacert", "kubeConfig", "syncPeriod", "enableAllowlist", "enableDenylist", "balancedResource"}
    | {"qps", "burst"}
)
"""Flags that only TAS or GAS has; they imply --any-client. A test compares them with those of
`cli.older_program_flags`."""
_CLIENT_REASONS: Final = ("client_name", "ca_client")
"""Reasons of refused connections that are due to the client certificate."""


@check("no-ca-file")
def check_server_verification(
    registrations: Registrations, extenders: Extenders = ()
) -> Iterator[Finding]:  # complexity: a branch for each finding
    for registration in registrations:
        entry = registration.entry
        scheme, host, _, _ = split_url(entry.url)
        if scheme == "http" and host and not is_loopback(host):
            actual, expected = f".urlPrefix {entry.url} is plain HTTP", "https://, or a loopback address"
            remedy = "set enableHTTPS: true, https:// in urlPrefix, and tlsConfig.caFile"
        elif entry.enable_https and entry.insecure:
            actual, expected = ".tlsConfig.insecure is true", "caFile, and no insecure"
            remedy = ""
        elif entry.enable_https and not (entry.ca_file or entry.ca_data):
            actual, expected = ".tlsConfig has no caFile", "caFile"
            remedy = ""
        else:
            continue
        yield create_entry_finding(
            "no-ca-file", registration, actual, expected, remedy, _print_ca_command(extenders)
        )


def _print_ca_command(extenders: Extenders) -> str:
    """A command that writes the CA of the replicas' certificate to ca.crt; empty if no Secret has it."""
    for extender in extenders:
        path = extender.settings.get("cert", "") if readable(extender.serving) else ""
        for mount in (objects.find_mount(container, path) for container in extender.workload.containers):
            if mount and mount[0].kind == "secret":
                words = ["kubectl", f"-n={extender.workload.namespace}", "get", "secret", mount[0].name]
                words.append(r"--output=jsonpath={.data.ca\.crt}")
                return f"{shlex.join(words)} | base64 --decode >ca.crt"
    return ""


@check(
    "ca-key-as-client-key",
    "client-certificate-wrong",
    "certificate-expires-soon",
    "server-certificate-wrong",
    "unknown-ca",
)
def check_certificates(
    registrations: Registrations, now: datetime, extenders: Extenders = (), cluster_ca: Chain = ()
) -> Iterator[Result]:
    for registration in registrations:
        if registration.entry.enable_https or split_url(registration.entry.url)[0] == "https":
            problems = [
                *_check_client_certificate(registration, now, extenders),
                *_check_client_key(registration, cluster_ca),
            ]
            yield from problems or _check_client_is_accepted(registration, extenders)
            yield from _check_server_certificate(registration, now, extenders)


def _check_client_certificate(
    registration: Registration, now: datetime, extenders: Extenders
) -> Iterator[Result]:
    id_, name = "client-certificate-wrong", _client_certificate_file(registration)
    client = registration.certificates.client
    if not name:
        if not (extenders and all(extender.is_set("unsafe") for extender in extenders)):
            actual = ".tlsConfig has no certFile"
            yield create_entry_finding(id_, registration, actual, "a client certificate")
    elif isinstance(client, UnavailableFact):
        for unchecked in (id_, "certificate-expires-soon", "ca-key-as-client-key"):
            yield NotChecked(unchecked, client)
    elif not client:
        actual = f": {name} contains no certificate in PEM"
        yield create_entry_finding(id_, registration, actual, "a client certificate")
    elif client[0].is_ca:
        actual = f": {name} is a CA's certificate ({_format_names(client[0])})"
        yield create_entry_finding("ca-key-as-client-key", registration, actual, "a certificate of its own")
    else:
        yield from _check_validity(id_, registration, client[0], name, now)
        if not client[0].for_client:
            actual = f": {name} is not for client use"
            yield create_entry_finding(id_, registration, actual, "extended key usage clientAuth")
        yield from _check_client_name(registration, client[0], extenders)


def _client_certificate_file(registration: Registration) -> str:
    """The client certificate's file; empty if the entry has no client certificate."""
    return registration.entry.cert_file or ("certData" if registration.entry.cert_data else "")


def _check_client_name(
    registration: Registration, leaf: ParsedCertificate, extenders: Extenders
) -> Iterator[Finding]:
    """Whether the certificate has a name of --client-name, if nodewise requires one."""
    is_required = registration.entry.bind_verb or not all(map(_extender_accepts_any_client, extenders))
    names = {
        name
        for extender in extenders
        for name in extender.values("client_name") or [SCHEDULER, ISSUED_CLIENT]
    }
    if extenders and is_required and names.isdisjoint(leaf.names):
        actual = (
            f": {_client_certificate_file(registration)} is for {_format_names(leaf)}, and nodewise accepts"
            f" --client-name {', '.join(sorted(names))}"
        )
        remedy = "make another: nodewise certs"
        if leaf.names:
            remedy = f"start nodewise with --client-name {shlex.quote(leaf.names[0])}, or {remedy}"
        yield create_entry_finding(
            "client-certificate-wrong", registration, actual, "one of these names", remedy
        )


def _extender_accepts_any_client(extender: NodewiseWorkload) -> bool:
    """Whether it is started with --any-client, or with flags of TAS or GAS, which imply it."""
    is_implied = not OLDER_FLAGS.isdisjoint(extender.settings) and "client_name" not in extender.settings
    return extender.is_set("any_client") or is_implied


def _check_validity(
    id_: str, registration: Registration, certificate: ParsedCertificate, name: str, now: datetime
) -> Iterator[Finding]:
    ends = f"{certificate.not_after:%Y-%m-%d %H:%M}"
    lifetime = certificate.not_after - certificate.not_before
    if now > certificate.not_after:
        yield create_entry_finding(id_, registration, f": {name} expired on {ends}", "a valid certificate")
    elif now < certificate.not_before:
        actual = f": {name} is not valid before {certificate.not_before:%Y-%m-%d %H:%M}"
        yield create_entry_finding(id_, registration, actual, "a valid certificate")
    elif certificate.not_after - now < min(EXPIRES_SOON, lifetime / 4):
        actual = f"{registration.entry.field}: {name} expires on {ends}"
        yield finding("certificate-expires-soon", registration.where, actual, "a renewed certificate")


def _check_client_key(
    registration: Registration, cluster_ca: Chain
) -> Iterator[Result]:  # complexity: a branch for each finding
    """The private key of the client certificate. With a CA's certificate as the client's, that is the finding."""
    cert_name, key = _client_certificate_file(registration), registration.certificates.key
    id_, expected = "client-certificate-wrong", "the client certificate's key"
    name = registration.entry.key_file or ("keyData" if registration.entry.key_data else "")
    if not cert_name:
        return
    if isinstance(key, UnavailableFact):
        yield NotChecked(id_, key)
        return
    if not key:
        actual = f": {name} contains no key in PEM" if name else ".tlsConfig has no keyFile"
        yield create_entry_finding(id_, registration, actual, expected)
        return
    client = readable(registration.certificates.client)
    if client and client[0].public_key != key:
        yield create_entry_finding(id_, registration, f": {name} is not the key of {cert_name}", expected)
    authorities = (*cluster_ca, *readable(registration.certificates.ca))
    owner = next((ca for ca in authorities if ca.is_ca and ca.public_key == key), None)
    if owner is not None and not (client and client[0].is_ca):
        actual = f": {name} is the key of the CA {_format_names(owner)}"
        yield create_entry_finding("ca-key-as-client-key", registration, actual, "a key of its own")


def _check_client_is_accepted(registration: Registration, extenders: Extenders) -> Iterator[Finding]:
    """The answer of nodewise to the certificate and, if there is none, whether its --client-ca signed it."""
    name, chain = _client_certificate_file(registration), readable(registration.certificates.client)
    if registration.server.refusal:
        actual = f": nodewise answers requests with {name} with 403: {registration.server.refusal}"
        expected = "a certificate with a name of nodewise's --client-name"
        yield create_entry_finding("client-certificate-wrong", registration, actual, expected)
        return
    accepted = [authorities for extender in extenders if (authorities := readable(extender.client_ca))]
    rejection = registration.server.rejection
    if rejection:
        actual = f": nodewise rejects {name}: {rejection}"
    else:
        is_signed = any(is_signed_by(chain[0], chain[1:], ca) for ca in accepted if chain)
        if rejection is not None or not chain or not accepted or is_signed:
            return
        actual = f": {name} is not signed by nodewise's --client-ca, {_format_names(accepted[0][0])}"
    remedy = "put the CA that signed it into nodewise's --client-ca, or make another: nodewise certs"
    yield create_entry_finding("unknown-ca", registration, actual, "a certificate of the --client-ca", remedy)


def _check_server_certificate(  # complexity: a branch for each finding
    registration: Registration, now: datetime, extenders: Extenders
) -> Iterator[Result]:
    """nodewise's serving certificate, as kube-scheduler verifies it."""
    server, entry, service = registration.server, registration.entry, registration.service
    if not server.certificates:
        if isinstance(service, Service):
            is_absent = service.ports is None or service.ready_endpoints == 0
        else:
            is_absent = service is None and server.is_refused
        if is_absent:  # extender-not-reached reports it
            return
        server = _serving_certificate_in_secret(registration, extenders) or server
    if not server.certificates:
        reason = f"no handshake from here: {short('; '.join(server.attempts) or 'not tried')}"
        remedy = "call doctor where nodewise can be reached, as on a host of the control plane"
        unavailable = UnavailableFact(f"certificate of {entry.url}", reason, remedy=remedy)
        for unchecked in ("unknown-ca", "certificate-expires-soon", "server-certificate-wrong"):
            yield NotChecked(unchecked, unavailable)
        return
    id_, leaf, host = (
        "server-certificate-wrong",
        server.certificates[0],
        entry.server_name or split_url(entry.url)[1],
    )
    if not is_valid_for(leaf, host):
        actual = f": nodewise's certificate is for {_format_names(leaf)}, and kube-scheduler verifies {host}"
        name = shlex.quote(host)
        remedy = (
            f"issue another: nodewise certs --apply --name {name}, or nodewise certs --host DIR --name {name};"
            " or correct the host in urlPrefix or tlsConfig.serverName"
        )
        yield create_entry_finding(id_, registration, actual, f"a certificate for {host}", remedy)
    name = f"nodewise's certificate, from {server.source},"
    yield from _check_validity(id_, registration, leaf, name, now)
    if not entry.insecure and (entry.ca_file or entry.ca_data):
        yield from _check_server_ca(registration, server, _print_ca_command(extenders))


def _check_server_ca(registration: Registration, server: ProbedServer, command: str) -> Iterator[Result]:
    name, authorities = registration.entry.ca_file or "caData", registration.certificates.ca
    if isinstance(authorities, UnavailableFact):
        yield NotChecked("unknown-ca", authorities)
    elif not authorities:
        actual = f": {name} contains no certificate in PEM"
        expected = "the CA of nodewise's certificate"
        yield create_entry_finding("unknown-ca", registration, actual, expected, command=command)
    elif not is_signed_by(server.certificates[0], server.certificates[1:], authorities):
        authority = _format_names(authorities[0])
        actual = f": {name} is {authority}, which did not sign nodewise's certificate, from {server.source}"
        yield create_entry_finding("unknown-ca", registration, actual, "the CA that did", command=command)


def _serving_certificate_in_secret(registration: Registration, extenders: Extenders) -> ProbedServer | None:
    """The certificate in the Secret of the replicas; None if it is unknown whether the entry leads to them."""
    namespace = split_url(registration.entry.url)[1].split(".")[1:2]
    for extender in extenders:
        chain = readable(extender.serving)
        if chain and (len(extenders) == 1 or [extender.workload.namespace] == namespace):
            return ProbedServer(certificates=chain, source=f"the Secret of {extender.workload.where}")
    return None


def _format_names(certificate: ParsedCertificate) -> str:
    names = short(", ".join(certificate.names))
    return names or ("a CA without a name" if certificate.is_ca else "no name")


@check("any-client")
def check_any_client(extenders: Extenders) -> Iterator[Finding]:
    for extender in filter(_extender_accepts_any_client, extenders):
        if not extender.is_set("unsafe"):
            expected = "--client-name with the name in kube-scheduler's certificate, without --any-client"
            actual, where = "--any-client, or a flag of TAS or GAS", extender.workload.where
            command = (
                change_setting(extender.workload, "any_client")
                if extender.is_set("any_client")
                else kubectl("edit", where)
            )
            yield finding("any-client", where, actual, expected, command=command)


@check("ca-key-as-client-key", "client-certificate-wrong")
def check_refused_clients(replica_metrics: tuple[ReplicaMetrics, ...] = ()) -> Iterator[Finding]:
    for metrics in replica_metrics:
        if metrics.ca_clients:
            actual = f"{metrics.ca_clients} connections of a client that presents a CA's certificate"
            yield finding("ca-key-as-client-key", metrics.pod, actual, "a client certificate of its own")
        refused = [
            f"{count} refused for {reason}"
            for reason, count in sorted(metrics.refused.items())
            if reason in _CLIENT_REASONS and count
        ]
        if refused:
            id_, expected = "client-certificate-wrong", "clients that nodewise accepts"
            yield finding(id_, metrics.pod, ", ".join(refused), expected, severity="warning")


@check("unknown-ca", "server-certificate-wrong")
def check_reported_tls_errors(pods: Pods = ()) -> Iterator[Finding]:
    """A TLS error that kube-scheduler reports on a pod that waits; the first one is enough."""
    for pod in pods:
        message = pod.message.lower()
        if not pod.node and "x509" in message:
            id_ = "unknown-ca" if "unknown authority" in message else "server-certificate-wrong"
            actual = f"kube-scheduler reports: {short(pod.message)}"
            yield finding(id_, pod.where, actual, "a successful handshake")
            return
