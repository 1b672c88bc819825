"""The settings of a server. They hold for every port that we open."""

import ipaddress
from typing import Annotated, Final

import msgspec

from nodewise.option import Option

SCHEDULER: Final = "system:kube-scheduler"
"""kube-scheduler's user name, the common name of its certificate in every kubeadm cluster."""
ISSUED_CLIENT: Final = "nodewise-scheduler-client"
"""The common name in client certificates that `nodewise certs` issues by default."""


def is_loopback(address: str) -> bool:
    """Is only this machine able to reach the address?"""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how requests are served."""

    address: Annotated[str, Option(metavar="ADDRESS")] = ""
    """Address or host name to listen on. Empty, the default: every IPv4 address (0.0.0.0) with TLS, loopback
    (127.0.0.1) without, so that leaving TLS off never opens a port to the network by itself. `::` listens on
    every address of both families."""

    port: int = 9001
    """TCP port; 0 picks a free one. 9001 is what Telemetry Aware Scheduling's deployments name."""

    cert: Annotated[str, Option(metavar="FILE")] = ""
    """Path of the serving certificate, PEM, the chain after it. Read again within `reload_period_s` of a change."""

    key: Annotated[str, Option(metavar="FILE")] = ""
    """Path of the certificate's private key, PEM, without a pass phrase. Read again with the certificate."""

    client_ca: Annotated[str, Option(metavar="FILE")] = ""
    """Path of the PEM bundle that client certificates must come from. A certificate in it is trusted as it
    is, self-signed or not, as the Go programs do. Read again on a change; open connections whose
    certificate does not come from the new bundle are closed."""

    client_name: Annotated[tuple[str, ...], Option(metavar="NAME")] = (SCHEDULER, ISSUED_CLIENT)
    """Names of the clients that may call; repeat the flag for several. A client certificate matches if its common
    name or one of its subject alternative names equals one of them and it has the extended key usage clientAuth.
    Given names replace the default."""

    any_client: bool = False
    """Answer filter, prioritize and preempt to any certificate of the client CA. Bind, /decisions and /state still
    require a name of `--client-name`. For a migration only: with the cluster CA, every kubelet can call."""

    refuse_ca_client: bool = False
    """Refuse a client whose certificate is a CA's. Off by default, because Telemetry Aware Scheduling's guide
    had kube-scheduler present the cluster CA itself; then such a client is served with a warning."""

    unsafe: bool = False
    """Serve plain HTTP: there are no client certificates, so every client that reaches the port may call filter,
    prioritize, preempt and bind. `/decisions` and `/state` are not on this port. Off by default."""

    unsafe_address: Annotated[str, Option(metavar="ADDRESS")] = ""
    """The address that plain HTTP may be served on beyond loopback; must name `address` exactly. Empty:
    none."""

    max_body_bytes: int = 256 * 2**20
    """Longest request body, bytes. 256 MiB is five times a filter call with 5,000 whole nodes."""

    handshake_timeout_s: float = 5.0
    """From the accepted connection to the end of the TLS handshake, seconds; also for a client that sends
    nothing. 5 s as Telemetry Aware Scheduling had it."""

    header_timeout_s: float = 5.0
    """From the open connection, or from the first byte of a following request, to the end of the header,
    seconds."""

    header_bytes: int = 8192
    """Longest request line and header together, bytes. kube-scheduler sends less than 300."""

    body_idle_timeout_s: float = 10.0
    """Longest silence in the middle of a body, seconds. A sender that is alive sends something within it even
    after a lost packet or two."""

    body_timeout_s: float = 60.0
    """Longest time for a body in all, seconds. It bounds those who drip a byte now and then, and nobody
    waits for the answer that long: kube-scheduler's own limit for a call is 5 s unless somebody raised
    it."""

    answer_timeout_s: float = 30.0
    """Longest time for a client to take what we have written, seconds, while the buffer is full: an answer
    that nobody reads is not kept in memory."""

    keep_alive_s: float = 120.0
    """How long an idle connection stays open, seconds. Above the 90 s after which Go's client closes it, so
    that the client is the one who closes and no request meets a connection that is going away."""

    connection_age_s: float = 300.0
    """After how long a connection is closed with the next answer on it, seconds; also after each change of the
    certificate files. A client certificate is judged when a connection opens, and a busy scheduler would stay on
    one for ever: so a renewed one is seen, and one that is over is not served for longer than this."""

    max_connections: int = 512
    """Most connections served at once; a newer one is closed. With `max_handshakes` it stays below 1024,
    the usual limit of open files."""

    max_handshakes: int = 256
    """Most connections between accept and the end of the handshake; the oldest gives way to a newer one, for
    who means it is through in milliseconds. Counted apart, so that who has no certificate cannot take the
    place of those who have."""

    max_pipelined: int = 16
    """Most requests sent ahead on a connection before the one under way is answered. Go's client sends
    none."""

    reload_period_s: float = 1.0
    """How often the certificate files are looked at, seconds. Mounted Secrets change by a swapped symbolic
    link, which file watches of the kernel miss."""

    @property
    def host(self) -> str:
        """The address to bind."""
        return self.address or ("127.0.0.1" if self.unsafe else "0.0.0.0")  # noqa: S104 - the default is to serve


class AdminOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where health, readiness and metrics are served, in plain HTTP."""

    health_address: Annotated[str, Option(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on. Loopback by default; a kubelet that probes the pod needs the pod's address or
    0.0.0.0."""

    health_port: int = 9002
    """TCP port; 0 picks a free one and logs it."""
