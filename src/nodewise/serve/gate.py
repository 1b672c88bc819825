"""May this certificate call? What is asked of a client after OpenSSL has found its certificate genuine."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from cryptography import x509
from cryptography.x509.oid import NameOID

from nodewise.errors import Problem, shown
from nodewise.observe import logs
from nodewise.observe.meters import Meters
from nodewise.serve import answers
from nodewise.serve.answers import Response
from nodewise.serve.endings import Endings
from nodewise.serve.options import ServeOptions
from nodewise.serve.tls import Tls


class Client(NamedTuple):
    """What a certificate says: its common names and subject alternative names, and whether it is a CA's."""

    names: tuple[str, ...]
    is_ca: bool


@lru_cache(maxsize=64)
def client_of(der: bytes) -> Client:
    """Read a certificate. What cannot be read has no names, so that it matches no pin."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        extensions = {extension.oid: extension.value for extension in certificate.extensions}
    except ValueError:
        return Client((), is_ca=False)
    alternatives = extensions.get(x509.SubjectAlternativeName.oid)
    if isinstance(alternatives, x509.SubjectAlternativeName):
        kinds = (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier, x509.IPAddress)
        names.extend(str(name.value) for name in alternatives if isinstance(name, kinds))
    constraints = extensions.get(x509.BasicConstraints.oid)
    return Client(tuple(names), isinstance(constraints, x509.BasicConstraints) and constraints.ca)


class Gate:
    """Looks at each new connection once.

    Who is refused gets 403 and the reason for whatever it asks, and is closed after it: kube-scheduler logs
    the status of an answer, and curl shows its text, where a closed connection would show neither.
    """

    def __init__(self, options: ServeOptions, tls: Tls, endings: Endings, meters: Meters) -> None:
        self._options = options
        self._tls = tls
        self._endings = endings
        self._meters = meters
        self._warned: set[Client] = set()  # as many as there are authorities

    def examine(self, transport: asyncio.BaseTransport, chain: Sequence[bytes], peer: str) -> Response | None:
        """None to let the client in, else what to answer it. `chain`, DER, begins with its own certificate."""
        client = client_of(chain[0] if chain else b"")
        allowed = self._options.client_name
        secured = transport.get_extra_info("ssl_object")
        # of a TLS 1.2 session that is resumed by its id nothing was verified but that it is the same client
        verified_by = None if secured.session_reused else transport.get_extra_info("sslcontext")
        if not self._tls.admits(chain, verified_by):
            # the CA was swapped while the handshake was under way, or the certificate is over
            wanted = "a certificate of the present client CA"
            return self._refused("client_ca_changed", peer, client, wanted)
        if allowed and not set(allowed).intersection(client.names):
            return self._refused("client_name", peer, client, "a certificate with a name of client_name")
        if client.is_ca:
            return self._examine_ca(peer, client)
        return None

    def _examine_ca(self, peer: str, client: Client) -> Response | None:
        if self._options.refuse_ca_client:
            return self._refused(
                "ca_certificate", peer, client, "a client certificate of its own, not a CA's"
            )
        self._meters.count("ca_clients_total")
        if client not in self._warned:
            self._warned.add(client)
            logs.emit("ca_client", peer=peer, names=client.names)
        return None

    def _refused(self, reason: str, peer: str, client: Client, wanted: str) -> Response:
        seen = ", ".join(map(shown, client.names)) or "no names"
        self._endings.note(reason, peer, f"certificate of {seen}")
        return answers.refusal(403, Problem("client certificate", seen, wanted))
