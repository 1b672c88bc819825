"""A handshake with whoever answers at an entry's address, as kube-scheduler would have it."""

import asyncio
import os
import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple

from nodewise.configure.doctor import papers
from nodewise.configure.doctor.configurations import parts
from nodewise.configure.doctor.facts import Chain, Entry, Server
from nodewise.configure.doctor.trust import is_for
from nodewise.serve.hello import chain_of
from nodewise.visible import short

_CONNECT_S: Final = 3.0
_ANSWER_S: Final = 5.0
_MOST_ADDRESSES: Final = 4
IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"
"""The variable that every container of a cluster has."""
_REQUEST: Final = "GET /nodewise-doctor HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"


class Call(NamedTuple):
    """Whom to call, and with whose certificate: files of this host, or empty."""

    entry: Entry
    addresses: Sequence[tuple[str, int]] = ()
    """Where else than at the URL's host the server may be reached."""
    cert: str = ""
    key: str = ""
    trusted: Chain = ()
    """The CA in the entry."""


async def call(asked: Call) -> Server:
    """The first address that answers; what it shows, and whether it takes the client's certificate."""
    scheme, host, _, port = parts(asked.entry.url)
    if not host:
        return Server()
    tried: list[str] = []
    refusals = 0
    places = list(dict.fromkeys([(host, port), *asked.addresses]))[:_MOST_ADDRESSES]
    for place in places:
        try:
            server = await _at(asked, place, is_plain=scheme == "http")
            if _is_sure(host, place) or _is_nodewise(asked, server):
                return server._replace(answer=await _answered(asked, place))
            tried.append(f"{server.reached}: somebody else answers there")
        except ConnectionRefusedError:
            refusals += 1
            tried.append(f"{place[0]}:{place[1]}: connection refused")
        except TimeoutError:
            tried.append(f"{place[0]}:{place[1]}: no answer within {_CONNECT_S:g} s")
        except (OSError, ssl.SSLError, ValueError) as error:
            tried.append(f"{place[0]}:{place[1]}: {short(_said(error))}")
    return Server(tried=tuple(tried), is_refused=refusals == len(places))


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _is_sure(host: str, place: tuple[str, int]) -> bool:
    """Whether a place is the URL's own wherever it is asked from; a Service's name means something else outside."""
    return place[0] == host and ".svc" not in f"{host}."


def _is_nodewise(asked: Call, server: Server) -> bool:
    """Whether it is the server that is meant: outside of the cluster its addresses may be somebody else's."""
    if IN_CLUSTER in os.environ:
        return True
    if not server.shown:
        return False
    leaf = server.shown[0]
    return is_for(leaf, _name(asked)) or papers.is_signed_by(leaf, server.shown[1:], asked.trusted)


async def _at(asked: Call, place: tuple[str, int], *, is_plain: bool) -> Server:
    reached = f"{place[0]}:{place[1]}"
    if is_plain:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(*place)
        writer.close()
        return Server(reached, source="a connection")
    shown = papers.of_der(await _shown(asked, place))
    return Server(reached, shown=shown, source=f"a handshake at {reached}")


def _context() -> ssl.SSLContext:
    """Takes any server: it is looked at, and told nothing."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


async def _shown(asked: Call, place: tuple[str, int]) -> tuple[bytes, ...]:
    """The certificates that a server shows, DER, its own first."""
    async with asyncio.timeout(_CONNECT_S):
        _, writer = await asyncio.open_connection(*place, ssl=_context(), server_hostname=_name(asked))
    try:
        return chain_of(writer.get_extra_info("ssl_object"))
    finally:
        writer.transport.abort()


def _name(asked: Call) -> str:
    return asked.entry.server_name or parts(asked.entry.url)[1]


async def _answered(asked: Call, place: tuple[str, int]) -> str:
    """`answered`, or how a client with this certificate is turned away; empty where it cannot be shown."""
    if not (asked.cert and asked.key) or parts(asked.entry.url)[0] == "http":
        return ""
    context = _context()
    try:
        context.load_cert_chain(asked.cert, asked.key, password="")
    except (OSError, ssl.SSLError, ValueError):
        return ""
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(*place, ssl=context, server_hostname=_name(asked))
            try:
                writer.write(_REQUEST.format(host=parts(asked.entry.url)[1]).encode("ascii", "replace"))
                line = await reader.readline()
            finally:
                writer.transport.abort()
    except TimeoutError:
        return ""
    except (OSError, ssl.SSLError) as error:
        return short(_said(error))
    return "answered" if line.startswith(b"HTTP/") else "it closes the connection"
