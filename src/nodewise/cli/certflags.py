"""The flags of `nodewise certs`."""

from typing import Any, Final

import click

from nodewise.cli import cluster, hostflags
from nodewise.cli.declared import Duration
from nodewise.configure import certificate_secrets as stored
from nodewise.configure import certificates


class _Span(Duration):
    """A duration that may be in days."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        if text.endswith("d") and text[:-1].isascii() and text[:-1].isdecimal() and len(text) < 8:  # noqa: PLR2004
            return int(text[:-1]) * 86400.0
        return super().convert(value, param, ctx)


def _options() -> list[click.Parameter]:
    span = _Span()
    return [
        click.Option(["--apply"], is_flag=True, help="Write the Secrets to the cluster; renew what is due."),
        click.Option(
            ["--host", "host_dir"], default="", metavar="DIR",
            help="Write files of a folder of this host: tls.crt, tls.key, client.crt, client.key, ca.crt.",
        ),
        click.Option(["--check"], is_flag=True, help="Say what is due, and change nothing; exit code 3 if it is."),
        click.Option(
            ["--restarted"], is_flag=True,
            help="kube-scheduler was started anew since the new authority was announced: use the new certificates.",
        ),
        click.Option(["--renew"], is_flag=True, help="Begin a renewal although none is due."),
        click.Option(
            ["--replace"], is_flag=True, help="Replace Secrets and files that this command did not write."
        ),
        click.Option(
            ["--systemd"], is_flag=True, help="Print a service and a timer that run --host once a day, and end."
        ),
        click.Option(["--cert-manager"], is_flag=True, help="Print objects for cert-manager, and end."),
        click.Option(
            ["--signer-name"], default="", metavar="SIGNER",
            help="Have kube-scheduler's certificate, and only that, signed by the cluster, as by "
            f"{stored.API_CLIENT}. Somebody has to approve it.",
        ),
        click.Option(
            ["--signer-ca"], default="", metavar="FILE",
            help=f"Who stands behind --signer-name; {stored.API_CLIENT} is known.",
        ),
        click.Option(
            ["--timeout"], type=span, default="5m", show_default=True, help="How long to wait for the signer."
        ),
        click.Option(
            ["-n", "--namespace"], default="nodewise", show_default=True, metavar="NAMESPACE",
            help="Where nodewise runs."
        ),
        click.Option(
            ["--service"], default=certificates.SERVICE, show_default=True,
            metavar="NAME", help="Its Service's name."
        ),
        click.Option(
            ["--name", "names"], multiple=True, metavar="NAME",
            help="A further host name or address of nodewise; may be given several times.",
        ),
        click.Option(
            ["--client-name"], default=certificates.CLIENT, show_default=True,
            metavar="NAME",
            help="kube-scheduler's name to nodewise: what `nodewise extender --client-name` lets in.",
        ),
        click.Option(
            ["--secret"], default="nodewise-tls", show_default=True,
            metavar="NAME", help="Name of nodewise's Secret."
        ),
        click.Option(
            ["--client-secret"], default=certificates.CLIENT, show_default=True,
            metavar="NAME",
            help="Name of kube-scheduler's Secret.",
        ),
        click.Option(["--lifetime"], type=span, default="365d", show_default=True, help="Of a certificate."),
        click.Option(
            ["--renew-before"], type=span,
            help="How long before its end a certificate is renewed. [default: a third of its lifetime]",
        ),
        click.Option(
            ["--switch-after"], type=span,
            help="How long after its announcement a new authority's certificates are used without --restarted."
            " [default: half of --renew-before]",
        ),
        click.Option(
            ["--settle"], type=span, default="3m", show_default=True,
            help="How long an announcement takes to reach all pods; --restarted is refused before.",
        ),
        click.Option(
            ["-o", "--output"], type=click.Choice(["yaml", "json", "text"]),
            help="Form of what is printed. [default: yaml for objects, text for the rest]",
        ),
        *cluster.options(),
    ]  # fmt: skip


_ABOUT: Final = {
    "What certificates say": (
        "namespace",
        "service",
        "names",
        "client_name",
        "secret",
        "client_secret",
        "lifetime",
    ),
    "When they are renewed": ("renew_before", "switch_after", "settle"),
    "kube-scheduler's certificate by a signer of the cluster": ("signer_name", "signer_ca", "timeout"),
    "The cluster": tuple(str(one.name) for one in cluster.options()),
}


def parameters() -> list[click.Parameter]:
    """All of them, with what they are about."""
    options = _options()
    for title, names in _ABOUT.items():
        list(hostflags.titled(title, (one for one in options if one.name in names)))
    return options
