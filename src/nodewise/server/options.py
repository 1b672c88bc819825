"""Settings of a server. They apply to every port that nodewise opens."""

import ipaddress
from typing import Annotated, Final

import msgspec

from nodewise.base.option import Option

SCHEDULER: Final = "system:kube-scheduler"
"""kube-scheduler's user name, the common name of its certificate in every kubeadm cluster."""
ISSUED_CLIENT: Final = "nodewise-scheduler-client"
"""The common name in client certificates that `nodewise certs` issues by default."""
_PositiveSeconds = Annotated[float, msgspec.Meta(gt=0)]


def is_loopback(address: str) -> bool:
    """Whether only this machine can connect to the address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Port, TLS and limits of requests."""

    address: Annotated[str, Option(metavar="ADDRESS")] = ""
    """Address or host name to listen on. Empty, the default: every address with TLS, loopback (127.0.0.1) without.
    0.0.0.0 and `::` are every address of IPv4 and IPv6, as in programs of Kubernetes."""

    port: int = 9001
    """TCP port; 0 picks a free one. 9001 is what Telemetry Aware Scheduling's deployments name."""

    cert: Annotated[str, Option(metavar="FILE")] = ""
    """Path of the serving certificate in PEM, followed by its chain. Reread within --reload-period of a change."""

    key: Annotated[str, Option(metavar="FILE")] = ""
    """Path of the certificate's private key in PEM, without a passphrase. Reread with the certificate."""

    client_ca: Annotated[str, Option(metavar="FILE")] = ""
    """Path of the PEM bundle that client certificates are verified against. Each certificate in it is trusted,
    self-signed or not, as in Go programs. Reread when the file changes; open connections whose certificate the new
    bundle does not verify are closed."""

    client_name: Annotated[tuple[str, ...], Option(metavar="NAME")] = (SCHEDULER, ISSUED_CLIENT)
    """Names of the clients that may call; repeat the flag for several. A client certificate matches if its common
    name or one of its subject alternative names equals one of them and it has the extended key usage clientAuth.
    Given names replace the default."""

    any_client: bool = False
    """Answer filter, prioritize and preempt to any certificate of the client CA. Bind, /decisions, /evaluation,
    /metric-values and /state still require a name of `--client-name`. For a migration only: with the cluster CA,
    every kubelet can call."""

    refuse_ca_client: bool = False
    """Refuse a client whose certificate is a CA's, as the guide of Telemetry Aware Scheduling gave kube-scheduler.
    Without it, such a client is served with a warning."""

    unsafe: bool = False
    """Serve plain HTTP: every client that reaches the port may call filter, prioritize, preempt and bind.
    `/decisions`, `/evaluation`, `/metric-values` and `/state` are not on this port."""

    unsafe_address: Annotated[str, Option(metavar="ADDRESS")] = ""
    """Address for plain HTTP that is not loopback. Must be equal to --address. Empty: only loopback."""

    max_body_bytes: int = 256 * 2**20
    """Limit of a request body in bytes. 256 MiB is five times a filter call with 5,000 whole nodes."""

    handshake_timeout_s: _PositiveSeconds = 5.0
    """Timeout of the TLS handshake, from the accepted connection."""

    header_timeout_s: _PositiveSeconds = 5.0
    """Timeout of a request header, from its first byte. Without an accepted client certificate, the first request of
    a connection must also begin within this time."""

    header_bytes: int = 8192
    """Limit of request line and header in bytes. kube-scheduler sends less than 300."""

    body_idle_timeout_s: _PositiveSeconds = 10.0
    """Timeout between two parts of a request body."""

    body_timeout_s: _PositiveSeconds = 60.0
    """Timeout of a whole request body. kube-scheduler's own timeout for a call is 5 s by default."""

    answer_timeout_s: _PositiveSeconds = 30.0
    """Timeout of sending a response, while the client does not read and the buffer is full."""

    keep_alive_s: _PositiveSeconds = 120.0
    """Timeout of an idle connection, also before its first request. The default is above the 90 s of Go's client."""

    connection_age_s: _PositiveSeconds = 300.0
    """Maximum age of a connection: it is closed with the next response, also after each change of the serving
    certificate. An expired client certificate is accepted no longer than this."""

    max_connections: int = 512
    """Limit of open connections; further ones are closed. Together with --max-handshakes it should stay below the limit
    of open files, usually 1024."""

    max_handshakes: int = 256
    """Limit of connections in the TLS handshake; the oldest one is closed for a newer one. Separate from
    --max-connections, so that clients without a certificate cannot block others."""

    max_pipelined: int = 16
    """Limit of pipelined requests on a connection. Go's client does not pipeline."""

    reload_period_s: _PositiveSeconds = 1.0
    """Period of the checks whether certificate files have changed."""

    @property
    def host(self) -> str:
        """The address to bind."""
        return self.address or ("127.0.0.1" if self.unsafe else "0.0.0.0")  # noqa: S104 - the default is to serve


class AdminOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Port for health, readiness and metrics, plain HTTP."""

    health_address: Annotated[str, Option(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on. Probes of a kubelet need the pod's address, or 0.0.0.0 for every address of IPv4 and
    IPv6."""

    health_port: int = 9002
    """TCP port; 0 picks a free one and logs it."""
