"""Options of `nodewise certs`, and which of them exclude each other."""

from typing import Annotated, Any, Final, Literal

import click

from nodewise.cli.parameter_types import Duration
from nodewise.cli.settings import CommandOptions
from nodewise.configure import certificate_renewal, certificate_secrets
from nodewise.errors import BadSettings, Problem
from nodewise.kube.options import KubeOptions
from nodewise.option import Option

_SIGNER: Final = "kube-scheduler's certificate by a signer of the cluster"
_CONTENTS: Final = "What certificates say"
_RENEWAL: Final = "When they are renewed"
_CLUSTER: Final = "The cluster"


class _LongDuration(Duration):
    """A duration, which may also be in days."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        if text.endswith("d") and text[:-1].isascii() and text[:-1].isdecimal() and len(text) < 8:  # noqa: PLR2004
            return int(text[:-1]) * 86400.0
        return super().convert(value, param, ctx)


class CertsOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise certs`."""

    apply: bool = False
    """Write the Secrets to the cluster; renew what is due."""

    host_dir: Annotated[str, Option("--host", metavar="DIR")] = ""
    """Write files of a folder of this host: tls.crt, tls.key, client.crt, client.key, ca.crt."""

    check: bool = False
    """Say what is due, and change nothing; exit code 3 if it is."""

    restarted: bool = False
    """kube-scheduler was started anew since the new authority was announced: use the new certificates."""

    renew: bool = False
    """Begin a renewal although none is due."""

    replace: bool = False
    """Replace Secrets and files that this command did not write."""

    systemd: bool = False
    """Print a service and a timer that run --host once a day, and end."""

    cert_manager: bool = False
    """Print objects for cert-manager, and end."""

    output: Annotated[Literal["yaml", "json", "text"] | None, Option("-o --output")] = None
    """Form of what is printed. [default: yaml for objects, text for the rest]"""

    signer_name: Annotated[
        str,
        Option(
            metavar="SIGNER",
            section=_SIGNER,
            help="Have kube-scheduler's certificate, and only that, signed by the cluster, as by "
            f"{certificate_secrets.API_CLIENT}. Somebody has to approve it.",
        ),
    ] = ""

    signer_ca: Annotated[
        str,
        Option(
            metavar="FILE",
            section=_SIGNER,
            help=f"Who stands behind --signer-name; {certificate_secrets.API_CLIENT} is known.",
        ),
    ] = ""

    timeout_s: Annotated[float, Option(section=_SIGNER, type=_LongDuration())] = 300.0
    """How long to wait for the signer."""

    namespace: Annotated[str, Option("-n --namespace", metavar="NAMESPACE", section=_CONTENTS)] = "nodewise"
    """Where nodewise runs."""

    service: Annotated[str, Option(metavar="NAME", section=_CONTENTS)] = certificate_renewal.SERVICE
    """Its Service's name."""

    names: Annotated[tuple[str, ...], Option("--name", metavar="NAME", section=_CONTENTS)] = ()
    """A further host name or address of nodewise; may be given several times."""

    client_name: Annotated[str, Option(metavar="NAME", section=_CONTENTS)] = certificate_renewal.CLIENT
    """kube-scheduler's name to nodewise: what `nodewise extender --client-name` lets in."""

    secret: Annotated[str, Option(metavar="NAME", section=_CONTENTS)] = "nodewise-tls"  # noqa: S105 - a name
    """Name of nodewise's Secret."""

    client_secret: Annotated[str, Option(metavar="NAME", section=_CONTENTS)] = certificate_renewal.CLIENT
    """Name of kube-scheduler's Secret."""

    lifetime_s: Annotated[float, Option(section=_CONTENTS, type=_LongDuration(), default_text="365d")] = (
        365 * 86400.0
    )
    """Of a certificate."""

    renew_before_s: Annotated[float | None, Option(section=_RENEWAL, type=_LongDuration())] = None
    """How long before its end a certificate is renewed. [default: a third of its lifetime]"""

    switch_after_s: Annotated[float | None, Option(section=_RENEWAL, type=_LongDuration())] = None
    """How long after its announcement a new authority's certificates are used without --restarted. [default: half of
    --renew-before]"""

    settle_s: Annotated[float, Option(section=_RENEWAL, type=_LongDuration())] = 180.0
    """How long an announcement takes to reach all pods; --restarted is refused before."""

    kubeconfig: Annotated[
        str, Option(metavar="FILE", section=_CLUSTER, environment="NODEWISE_KUBECONFIG")
    ] = ""
    """A kubeconfig file; default: as kubectl takes it."""

    context: Annotated[str, Option(metavar="NAME", section=_CLUSTER, environment="NODEWISE_CONTEXT")] = ""
    """A context of the kubeconfig."""

    @property
    def kube(self) -> KubeOptions:
        return KubeOptions(kubeconfig=self.kubeconfig, context=self.context)


def check(options: CertsOptions) -> None:
    """`BadSettings` for options that contradict each other, and for options without effect."""
    problems = [*_exclusive(options), *_without_target(options)]
    if options.signer_name and (options.host_dir or options.cert_manager or options.check):
        wanted = "alone, or with --apply"
        problems.append(Problem("--signer-name", "with --host, --cert-manager or --check", wanted))
    if options.client_secret == options.secret:
        problems.append(Problem("--client-secret", "the same as --secret", "another name"))
    if problems:
        raise BadSettings("settings", problems)


def _exclusive(options: CertsOptions) -> list[Problem]:
    targets = {
        "--apply": options.apply,
        "--host": bool(options.host_dir),
        "--cert-manager": options.cert_manager,
    }
    flags = [flag for flag, is_set in targets.items() if is_set]
    return [Problem(" ".join(flags), "given together", "one of them")] if len(flags) > 1 else []


def _without_target(options: CertsOptions) -> list[Problem]:
    """Problems of options that have an effect only if something is written."""
    problems = []
    if options.systemd and not options.host_dir:
        problems.append(Problem("--systemd", "without --host", "the folder that is to be renewed"))
    if options.apply or options.host_dir:
        return problems
    flags = {
        "--replace": options.replace and not options.signer_name,
        "--restarted": options.restarted,
        "--renew": options.renew,
    }
    wanted = "together with --apply or --host"
    return problems + [Problem(flag, "given", wanted) for flag, is_set in flags.items() if is_set]
