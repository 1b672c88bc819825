"""Connects to an entry's address as kube-scheduler does, and reads the server's certificates."""

import asyncio
import os
import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple

from nodewise.base.errors import short
from nodewise.doctor.facts import ProbedServer
from nodewise.doctor.parsing.certificates import Chain, is_signed_by, is_valid_for, parse_der
from nodewise.doctor.parsing.scheduler_configuration import ExtenderEntry, split_url
from nodewise.server.server_tls_context import peer_certificates

_CONNECT_TIMEOUT_S: Final = 3.0
_RESPONSE_TIMEOUT_S: Final = 5.0
_MAX_ADDRESSES: Final = 4
IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"
"""The variable that every container of a cluster has."""
_REQUEST: Final = "GET /nodewise-doctor HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"

Address = tuple[str, int]


class Probe(NamedTuple):
    """A server to connect to, and the client certificate to present: files of this host, or empty."""

    entry: ExtenderEntry
    addresses: Sequence[Address] = ()
    """Addresses to try after that of the URL."""
    cert_file: str = ""
    key_file: str = ""
    authorities: Chain = ()
    """The CA of the entry."""

    @property
    def host(self) -> str:
        return split_url(self.entry.url)[1]

    @property
    def server_name(self) -> str:
        return self.entry.server_name or self.host


async def connect(probe: Probe) -> ProbedServer:
    """The first address that responds: its certificates, and whether it accepts the client certificate."""
    _, host, _, port = split_url(probe.entry.url)
    if not host:
        return ProbedServer()
    attempts: list[str] = []
    refusals = 0
    addresses = list(dict.fromkeys([(host, port), *probe.addresses]))[:_MAX_ADDRESSES]
    for address in addresses:
        name = f"{address[0]}:{address[1]}"
        try:
            server = await _probe_address(probe, address)
            if _is_same_server_everywhere(host, address) or _is_server_of_entry(probe, server):
                return server._replace(rejection=await _probe_client_certificate(probe, address))
            attempts.append(f"{name}: another server responds")
        except ConnectionRefusedError:
            refusals += 1
            attempts.append(f"{name}: connection refused")
        except TimeoutError:
            attempts.append(f"{name}: no response within {_CONNECT_TIMEOUT_S:g} s")
        except (OSError, ssl.SSLError, ValueError) as error:
            attempts.append(f"{name}: {_tls_error_text(error)}")
    return ProbedServer(attempts=tuple(attempts), is_refused=refusals == len(addresses))


def _is_same_server_everywhere(host: str, address: Address) -> bool:
    """Whether an address means the same server from everywhere. The name of a Service does so in the cluster only."""
    return address[0] == host and ".svc" not in f"{host}."


def _is_server_of_entry(probe: Probe, server: ProbedServer) -> bool:
    """Whether it is the server of the entry: outside of the cluster another one may have its addresses."""
    if IN_CLUSTER in os.environ:
        return True
    if not server.certificates:
        return False
    leaf, *intermediates = server.certificates
    return is_valid_for(leaf, probe.server_name) or is_signed_by(
        leaf, tuple(intermediates), probe.authorities
    )


async def _probe_address(probe: Probe, address: Address) -> ProbedServer:
    name = f"{address[0]}:{address[1]}"
    is_tls = split_url(probe.entry.url)[0] != "http"
    options = {"ssl": _unverified_tls_context(), "server_hostname": probe.server_name} if is_tls else {}
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        _, writer = await asyncio.open_connection(*address, **options)  # type: ignore[arg-type]
    if not is_tls:
        writer.close()
        return ProbedServer(name, source="a connection")
    try:
        chain = parse_der(peer_certificates(writer.get_extra_info("ssl_object")))
    finally:
        writer.transport.abort()
    return ProbedServer(name, certificates=chain, source=f"a handshake at {name}")


def _unverified_tls_context() -> ssl.SSLContext:
    """Accepts every server: checks verify its certificates, and no request contains anything secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _probe_client_certificate(probe: Probe, address: Address) -> str | None:
    """How the server rejects the client certificate; empty if it does not, None if no request can be made."""
    if not (probe.cert_file and probe.key_file) or split_url(probe.entry.url)[0] == "http":
        return None
    context = _unverified_tls_context()
    try:
        context.load_cert_chain(probe.cert_file, probe.key_file, password="")
    except (OSError, ssl.SSLError, ValueError):
        return None
    try:
        async with asyncio.timeout(_RESPONSE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                *address, ssl=context, server_hostname=probe.server_name
            )
            try:
                writer.write(_REQUEST.format(host=probe.host).encode("ascii", "replace"))
                line = await reader.readline()
            finally:
                writer.transport.abort()
    except TimeoutError:
        return None
    except (OSError, ssl.SSLError) as error:
        return _tls_error_text(error)
    return "" if line.startswith(b"HTTP/") else "it closes the connection"


def _tls_error_text(error: Exception) -> str:
    return short(getattr(error, "strerror", None) or str(error) or type(error).__name__)
