"""The flags of `nodewise certs`."""

from typing import Any

import click

from nodewise.cli import cluster
from nodewise.cli.declared import Duration
from nodewise.cli.sections import titled
from nodewise.configure import certificate_secrets as stored
from nodewise.configure import certificates


class _Span(Duration):
    """A duration that may be in days."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        if text.endswith("d") and text[:-1].isascii() and text[:-1].isdecimal() and len(text) < 8:  # noqa: PLR2004
            return int(text[:-1]) * 86400.0
        return super().convert(value, param, ctx)


def parameters() -> list[click.Parameter]:
    """All of them, with what they are about."""
    span = _Span()
    return [
        *_actions(),
        *titled("kube-scheduler's certificate by a signer of the cluster", _signer(span)),
        *titled("What certificates say", _contents(span)),
        *titled("When they are renewed", _renewal(span)),
        *titled("The cluster", cluster.options()),
    ]


def _actions() -> list[click.Parameter]:
    """What is to be done."""
    option = click.Option
    return [
        option(["--apply"], is_flag=True, help="Write the Secrets to the cluster; renew what is due."),
        option(["--host", "host_dir"], metavar="DIR", default="",
               help="Write files of a folder of this host: tls.crt, tls.key, client.crt, client.key, ca.crt."),
        option(["--check"], is_flag=True, help="Say what is due, and change nothing; exit code 3 if it is."),
        option(["--restarted"], is_flag=True,
               help="kube-scheduler was started anew since the new authority was announced: use the new "
               "certificates."),
        option(["--renew"], is_flag=True, help="Begin a renewal although none is due."),
        option(["--replace"], is_flag=True, help="Replace Secrets and files that this command did not write."),
        option(["--systemd"], is_flag=True,
               help="Print a service and a timer that run --host once a day, and end."),
        option(["--cert-manager"], is_flag=True, help="Print objects for cert-manager, and end."),
        option(["-o", "--output"], type=click.Choice(["yaml", "json", "text"]),
               help="Form of what is printed. [default: yaml for objects, text for the rest]"),
    ]  # fmt: skip


def _signer(span: _Span) -> list[click.Parameter]:
    """Who signs kube-scheduler's, if not an authority of nodewise's own."""
    option = click.Option
    return [
        option(["--signer-name"], metavar="SIGNER", default="",
               help="Have kube-scheduler's certificate, and only that, signed by the cluster, as by "
               f"{stored.API_CLIENT}. Somebody has to approve it."),
        option(["--signer-ca"], metavar="FILE", default="",
               help=f"Who stands behind --signer-name; {stored.API_CLIENT} is known."),
        option(["--timeout"], type=span, default="5m", show_default=True,
               help="How long to wait for the signer."),
    ]  # fmt: skip


def _contents(span: _Span) -> list[click.Parameter]:
    """Whose they are, how long they hold, and what the Secrets are called."""
    option = click.Option
    return [
        option(["-n", "--namespace"], metavar="NAMESPACE", default="nodewise", show_default=True,
               help="Where nodewise runs."),
        option(["--service"], metavar="NAME", default=certificates.SERVICE, show_default=True,
               help="Its Service's name."),
        option(["--name", "names"], metavar="NAME", multiple=True,
               help="A further host name or address of nodewise; may be given several times."),
        option(["--client-name"], metavar="NAME", default=certificates.CLIENT, show_default=True,
               help="kube-scheduler's name to nodewise: what `nodewise extender --client-name` lets in."),
        option(["--secret"], metavar="NAME", default="nodewise-tls", show_default=True,
               help="Name of nodewise's Secret."),
        option(["--client-secret"], metavar="NAME", default=certificates.CLIENT, show_default=True,
               help="Name of kube-scheduler's Secret."),
        option(["--lifetime"], type=span, default="365d", show_default=True, help="Of a certificate."),
    ]  # fmt: skip


def _renewal(span: _Span) -> list[click.Parameter]:
    """When a step of a renewal is due."""
    option = click.Option
    return [
        option(["--renew-before"], type=span,
               help="How long before its end a certificate is renewed. [default: a third of its lifetime]"),
        option(["--switch-after"], type=span,
               help="How long after its announcement a new authority's certificates are used without --restarted. "
               "[default: half of --renew-before]"),
        option(["--settle"], type=span, default="3m", show_default=True,
               help="How long an announcement takes to reach all pods; --restarted is refused before."),
    ]  # fmt: skip
