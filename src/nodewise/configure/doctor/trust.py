"""Certificates between kube-scheduler and nodewise: who takes whom for what, and for how long."""

import ipaddress
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from nodewise.configure.doctor import papers
from nodewise.configure.doctor.configurations import parts
from nodewise.configure.doctor.entries import ours, place, unread
from nodewise.configure.doctor.facts import (
    Certificate,
    Chain,
    Entry,
    Extender,
    Facts,
    Papers,
    Scheduler,
    Server,
    Service,
    Unread,
)
from nodewise.configure.doctor.findings import Answer, Finding, found, unlooked
from nodewise.configure.doctor.reaching import is_loopback, numbers
from nodewise.configure.doctor.settings import options
from nodewise.serve.options import ISSUED_CLIENT, SCHEDULER
from nodewise.visible import short

SOON: Final = timedelta(days=14)
_IDS: Final = (
    "no-ca-file",
    "ca-key-as-client-key",
    "client-certificate-wrong",
    "server-certificate-wrong",
    "unknown-ca",
    "any-client",
)
OLDER_FLAGS: Final = frozenset(
    {"cacert", "kubeConfig", "syncPeriod", "enableAllowlist", "enableDenylist", "balancedResource"}
    | {"qps", "burst"}
)
"""Flags that only TAS or GAS has; they imply --any-client. A test compares them with those of `cli.legacy`."""
_NOT_LET_IN: Final = ("client_name", "ca_client")
"""Reasons of nodewise's for refusing a connection that are the client certificate's fault."""


def check(facts: Facts) -> Iterator[Answer]:
    for each in _IDS:
        yield from unread(facts, each)
    for scheduler, entry in ours(facts):
        yield from _verified(scheduler, entry)
        if not entry.https and parts(entry.url)[0] != "https":
            continue
        own = scheduler.papers.get(entry.number, Papers())
        wrong = [*_client(facts, scheduler, entry, own)]
        yield from wrong
        if not wrong:
            yield from _let_in(facts, scheduler, entry, own)
        yield from _server(facts, scheduler, entry, own)
    yield from _open_to_all(facts)
    yield from _counted(facts)
    yield from _said(facts)


def _found(id_: str, scheduler: Scheduler, entry: Entry, seen: str, wanted: str) -> Finding:
    return found(id_, place(scheduler, entry), f"{entry.field}{seen}", wanted)


def _verified(scheduler: Scheduler, entry: Entry) -> Iterator[Finding]:
    scheme, host, _, _ = parts(entry.url)
    if scheme == "http" and host and not is_loopback(host):
        seen = f".urlPrefix {entry.url} is plain HTTP"
        yield _found("no-ca-file", scheduler, entry, seen, "https://, or a loopback address")
    elif entry.https and entry.insecure:
        yield _found("no-ca-file", scheduler, entry, ".tlsConfig.insecure is true", "caFile, and no insecure")
    elif entry.https and not (entry.ca_file or entry.ca_data):
        yield _found("no-ca-file", scheduler, entry, ".tlsConfig has no caFile", "caFile")


def _client(facts: Facts, scheduler: Scheduler, entry: Entry, own: Papers) -> Iterator[Answer]:
    """The client's certificate and key."""
    id_ = "client-certificate-wrong"
    if not (entry.cert_file or entry.cert_data):
        if not _takes_anybody(facts):
            yield _found(id_, scheduler, entry, ".tlsConfig has no certFile", "a client certificate")
        return
    if isinstance(own.client, Unread):
        yield from unlooked(own.client, id_, "ca-key-as-client-key")
    elif not own.client:
        seen = f": {entry.cert_file or 'certData'} holds no certificate in PEM"
        yield _found(id_, scheduler, entry, seen, "a client certificate")
    else:
        yield from _leaf(facts, scheduler, entry, own.client)
    yield from _key(facts, scheduler, entry, own)


def _let_in(facts: Facts, scheduler: Scheduler, entry: Entry, own: Papers) -> Iterator[Answer]:
    """Whether nodewise takes a certificate that is right by itself."""
    name, chain = entry.cert_file or "certData", read(own.client)
    remedy = "put the CA that signed it into nodewise's --client-ca, or make another: nodewise certs"
    wanted = "a certificate of the --client-ca"
    extenders = () if isinstance(facts.extenders, Unread) else facts.extenders
    trusted = [chain_ for one in extenders if (chain_ := read(one.client_ca))]
    answer = scheduler.servers.get(entry.number, Server()).answer
    if answer and answer != "answered":
        seen = f"{entry.field}: nodewise turns {name} away: {answer}"
        yield found("unknown-ca", place(scheduler, entry), seen, wanted, remedy=remedy)
    elif not answer and chain and trusted and not any(_comes_from(chain, one) for one in trusted):
        seen = f"{entry.field}: {name} is signed by none of nodewise's --client-ca, {_called(trusted[0][0])}"
        yield found("unknown-ca", place(scheduler, entry), seen, wanted, remedy=remedy)


def _comes_from(chain: Chain, trusted: Chain) -> bool:
    return papers.is_signed_by(chain[0], chain[1:], trusted)


def _takes_anybody(facts: Facts) -> bool:
    extenders = () if isinstance(facts.extenders, Unread) else facts.extenders
    return bool(extenders) and all(one.says("unsafe") for one in extenders)


def _leaf(facts: Facts, scheduler: Scheduler, entry: Entry, chain: Chain) -> Iterator[Answer]:
    leaf, id_ = chain[0], "client-certificate-wrong"
    if leaf.is_ca:
        seen = f": {entry.cert_file or 'certData'} is a CA's certificate ({_called(leaf)})"
        yield _found("ca-key-as-client-key", scheduler, entry, seen, "a certificate of its own")
        return
    name = entry.cert_file or "certData"
    yield from _dates(id_, scheduler, entry, leaf, name, facts.now)
    if not leaf.for_client:
        yield _found(
            id_, scheduler, entry, f": {name} is not for client use", "extended key usage clientAuth"
        )
    yield from _pin(facts, scheduler, entry, leaf)


def _pin(facts: Facts, scheduler: Scheduler, entry: Entry, leaf: Certificate) -> Iterator[Finding]:
    """Whether nodewise's --client-name has one of the certificate's names, wherever it needs one."""
    extenders = () if isinstance(facts.extenders, Unread) else facts.extenders
    if not extenders or (all(map(_any_client, extenders)) and not entry.bind):
        return
    pinned = {name for extender in extenders for name in _pinned_names(extender)}
    if pinned.isdisjoint(leaf.names):
        name, names = entry.cert_file or "certData", ", ".join(sorted(pinned))
        seen = f"{entry.field}: {name} is for {_called(leaf)}, and nodewise lets in --client-name {names}"
        remedy = "make another: nodewise certs"
        if leaf.names:
            remedy = f"start nodewise with --client-name {leaf.names[0]}, or {remedy}"
        id_, wanted = "client-certificate-wrong", "one of these names"
        yield found(id_, place(scheduler, entry), seen, wanted, remedy=remedy)


def _pinned_names(extender: Extender) -> list[str]:
    return options(extender.settings, "client_name") or [SCHEDULER, ISSUED_CLIENT]


def _any_client(extender: Extender) -> bool:
    """Whether it is started with --any-client, or with flags of TAS or GAS, which imply it."""
    implied = not OLDER_FLAGS.isdisjoint(extender.settings) and "client_name" not in extender.settings
    return extender.says("any_client") or implied


def _open_to_all(facts: Facts) -> Iterator[Answer]:
    extenders = () if isinstance(facts.extenders, Unread) else facts.extenders
    for extender in filter(_any_client, extenders):
        if not extender.says("unsafe"):
            expected = "--client-name with the name in kube-scheduler's certificate, without --any-client"
            yield found("any-client", extender.pod.where, "--any-client, or a flag of TAS or GAS", expected)


def _dates(
    id_: str, scheduler: Scheduler, entry: Entry, leaf: Certificate, name: str, now: datetime
) -> Iterator[Finding]:
    if now > leaf.ends:
        yield _found(
            id_, scheduler, entry, f": {name} is over since {leaf.ends:%Y-%m-%d %H:%M}", "a valid one"
        )
    elif now < leaf.begins:
        seen = f": {name} is valid from {leaf.begins:%Y-%m-%d %H:%M} on"
        yield _found(id_, scheduler, entry, seen, "a valid one")
    elif leaf.ends - now < min(SOON, (leaf.ends - leaf.begins) / 4):
        seen = f"{entry.field}: {name} is over on {leaf.ends:%Y-%m-%d %H:%M}"
        yield found(id_, place(scheduler, entry), seen, "one that is renewed by now", severity="warning")


def _key(facts: Facts, scheduler: Scheduler, entry: Entry, own: Papers) -> Iterator[Answer]:
    name = entry.key_file or ("keyData" if entry.key_data else "")
    if isinstance(own.key, Unread):
        yield from unlooked(own.key, "client-certificate-wrong")
        return
    if not own.key:
        seen = f": {name} holds no key in PEM" if name else ".tlsConfig has no keyFile"
        yield _found("client-certificate-wrong", scheduler, entry, seen, "the client certificate's key")
        return
    client = read(own.client)
    if client and client[0].key != own.key:
        seen = f": {name} is not the key of {entry.cert_file or 'certData'}"
        yield _found("client-certificate-wrong", scheduler, entry, seen, "the client certificate's key")
    owner = next((one for one in _authorities(facts, own) if one.key == own.key), None)
    if owner is not None and not (client and client[0].is_ca):
        seen = f": {name} is the key of the CA {_called(owner)}"
        yield _found("ca-key-as-client-key", scheduler, entry, seen, "a key of its own")


def read(chain: Chain | Unread | None) -> Chain:
    """The certificates, as far as there are any that could be read."""
    return () if chain is None or isinstance(chain, Unread) else chain


def _authorities(facts: Facts, own: Papers) -> Chain:
    return tuple(one for one in (*read(facts.authority), *read(own.ca)) if one.is_ca)


def _server(facts: Facts, scheduler: Scheduler, entry: Entry, own: Papers) -> Iterator[Answer]:
    """nodewise's own certificate, as kube-scheduler would see it."""
    server = scheduler.servers.get(entry.number, Server())
    if not server.shown:
        if _is_gone(scheduler, entry, server):
            return  # nobody is there, which is found elsewhere
        server = _mounted(facts, entry) or server
    if not server.shown:
        tried = "; ".join(server.tried) or "not tried"
        remedy = "call doctor where nodewise can be reached, as on a host of the control plane"
        why = Unread(f"certificate of {entry.url}", f"no handshake from here: {short(tried)}", remedy=remedy)
        yield from unlooked(why, "unknown-ca", "server-certificate-wrong")
        return
    leaf = server.shown[0]
    host = entry.server_name or parts(entry.url)[1]
    if not is_for(leaf, host):
        seen = f": nodewise's certificate is for {_called(leaf)}, and kube-scheduler asks for {host}"
        yield _found("server-certificate-wrong", scheduler, entry, seen, f"a certificate for {host}")
    name = f"nodewise's certificate, by {server.source},"
    yield from _dates("server-certificate-wrong", scheduler, entry, leaf, name, facts.now)
    if not entry.insecure and (entry.ca_file or entry.ca_data):
        yield from _server_trusted(scheduler, entry, server, own)


def _server_trusted(scheduler: Scheduler, entry: Entry, server: Server, own: Papers) -> Iterator[Answer]:
    """Whether it was signed by whom kube-scheduler trusts."""
    if isinstance(own.ca, Unread):
        yield from unlooked(own.ca, "unknown-ca")
    elif not own.ca:
        seen = f": {entry.ca_file or 'caData'} holds no certificate in PEM"
        yield _found("unknown-ca", scheduler, entry, seen, "the CA of nodewise's certificate")
    elif not papers.is_signed_by(server.shown[0], server.shown[1:], own.ca):
        seen = f": {entry.ca_file or 'caData'} is {_called(own.ca[0])}, which did not sign nodewise's certificate"
        yield _found("unknown-ca", scheduler, entry, f"{seen}, by {server.source}", "the CA that did")


def _called(certificate: Certificate) -> str:
    return short(", ".join(certificate.names)) or ("a CA without a name" if certificate.is_ca else "nobody")


def _is_gone(scheduler: Scheduler, entry: Entry, server: Server) -> bool:
    """Whether there is no server at all, wherever it is asked from."""
    service = scheduler.services.get(entry.number)
    if isinstance(service, Service):
        return service.ports is None or service.ready == 0
    return service is None and server.is_refused


def _mounted(facts: Facts, entry: Entry) -> Server | None:
    """The certificate that the replicas serve, by their Secret; None where nobody knows whose they are."""
    extenders = () if isinstance(facts.extenders, Unread) else facts.extenders
    host = parts(entry.url)[1].split(".")
    here = [one for one in extenders if len(extenders) == 1 or one.pod.namespace in host[1:2]]
    chains = [(one.pod.where, chain) for one in here if (chain := read(one.serving))]
    return Server(shown=chains[0][1], source=f"the Secret of {chains[0][0]}") if chains else None


def is_for(leaf: Certificate, host: str) -> bool:
    """Whether a certificate is for a host."""
    return any(_names(name, host) for name in leaf.names)


def _names(name: str, host: str) -> bool:
    """Whether a certificate's name is that of a host; a wildcard stands for one label."""
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        low, wanted = name.lower().rstrip("."), host.lower().rstrip(".")
    if low.startswith("*."):
        return wanted.partition(".")[2] == low[2:] and bool(low[2:])
    return low == wanted


def _counted(facts: Facts) -> Iterator[Finding]:
    """What replicas say of those who call them."""
    for one in numbers(facts):
        if one.ca_clients:
            seen = f"{one.ca_clients} connections of a client that presents a CA's certificate"
            yield found("ca-key-as-client-key", one.pod, seen, "a client certificate of its own")
        refused = {reason: count for reason, count in one.refused.items() if reason in _NOT_LET_IN and count}
        if refused:
            told = ", ".join(f"{count} refused for {reason}" for reason, count in sorted(refused.items()))
            yield found(
                "client-certificate-wrong", one.pod, told, "clients that it lets in", severity="warning"
            )


def _said(facts: Facts) -> Iterator[Finding]:
    """kube-scheduler's own words about pods that wait."""
    if isinstance(facts.pods, Unread):
        return
    for one in facts.pods:
        low = one.message.lower()
        if one.node or "x509" not in low:
            continue
        id_ = "unknown-ca" if "unknown authority" in low else "server-certificate-wrong"
        where = f"Pod/{one.namespace}/{one.name}"
        yield found(id_, where, f"kube-scheduler says: {short(one.message)}", "a handshake that holds")
        return
