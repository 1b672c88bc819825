"""Options of `nodewise certs`, and which of them exclude each other."""

from typing import Annotated, Final, Literal

import msgspec

from nodewise.base.errors import BadSettings, Problem
from nodewise.base.option import Option
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.install import certificate_renewal, certificate_secrets
from nodewise.kube.options import KubeOptions

_SIGNER: Final = "Signer of the cluster for kube-scheduler's certificate"
_CONTENTS: Final = "Content of certificates"
_RENEWAL: Final = "Renewal"
_CLUSTER: Final = "Cluster"


class CertsOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise certs`."""

    apply: bool = False
    """Write the Secrets to the cluster, and renew what is due."""

    host_dir: Annotated[str, Option("--host", metavar="DIR")] = ""
    """Folder of this host to write files to: tls.crt, tls.key, client.crt, client.key, ca.crt."""

    check: bool = False
    """Print what is due, and change nothing. Exit code 3 if something is due."""

    restarted: bool = False
    """Use the new certificates: kube-scheduler was restarted after the announcement of the new authority."""

    renew: bool = False
    """Begin a renewal although none is due."""

    replace: bool = False
    """Replace Secrets and files that this command did not write."""

    systemd: bool = False
    """Print a systemd service and a timer that run --host once a day."""

    cert_manager: bool = False
    """Print objects for cert-manager."""

    output: Annotated[Literal["yaml", "json", "text"] | None, Option("-o --output")] = None
    """Output format. [default: yaml for objects, text for the rest]"""

    signer_name: Annotated[
        str,
        Option(
            metavar="SIGNER",
            section=_SIGNER,
            help="Signer of the cluster for kube-scheduler's certificate only, such as "
            f"{certificate_secrets.API_CLIENT}. The request needs an approval.",
        ),
    ] = ""

    signer_ca: Annotated[
        str,
        Option(
            metavar="FILE",
            section=_SIGNER,
            help=f"CA of --signer-name; not required for {certificate_secrets.API_CLIENT}.",
        ),
    ] = ""

    timeout_s: Annotated[float, msgspec.Meta(gt=0), Option(section=_SIGNER)] = 300.0
    """Timeout for the signer."""

    namespace: Annotated[str, Option("-n --namespace", metavar="NAMESPACE", section=_CONTENTS)] = "nodewise"
    """Namespace of nodewise."""

    service: Annotated[str, Option(metavar="NAME", section=_CONTENTS)] = certificate_renewal.SERVICE
    """Name of nodewise's Service."""

    names: Annotated[tuple[str, ...], Option("--name", metavar="NAME", section=_CONTENTS)] = ()
    """Additional host name or address of nodewise; may be repeated."""

    client_name: Annotated[str, Option(metavar="NAME", section=_CONTENTS)] = certificate_renewal.CLIENT
    """Name of kube-scheduler in its certificate, as in `nodewise extender --client-name`."""

    secret: Annotated[str, Option(metavar="NAME", section=_CONTENTS)] = "nodewise-tls"  # noqa: S105 - a name
    """Name of nodewise's Secret."""

    client_secret: Annotated[str, Option(metavar="NAME", section=_CONTENTS)] = certificate_renewal.CLIENT
    """Name of kube-scheduler's Secret."""

    lifetime_s: Annotated[float, msgspec.Meta(gt=0), Option(section=_CONTENTS, default_text="365d")] = (
        365 * 86400.0
    )
    """Lifetime of a certificate."""

    renew_before_s: Annotated[float | None, Option(section=_RENEWAL)] = None
    """Time before the end of a certificate at which it is renewed. [default: a third of its lifetime]"""

    switch_after_s: Annotated[float | None, Option(section=_RENEWAL)] = None
    """Time after the announcement of a new authority at which its certificates are used without --restarted. [default:
    half of --renew-before]"""

    settle_s: Annotated[float, Option(section=_RENEWAL)] = 180.0
    """Time until an announcement has reached all pods; --restarted is refused before."""

    kubeconfig: Annotated[
        str, Option(metavar="FILE", section=_CLUSTER, environment="NODEWISE_KUBECONFIG")
    ] = ""
    """Kubeconfig file; default: as in kubectl."""

    context: Annotated[str, Option(metavar="NAME", section=_CLUSTER, environment="NODEWISE_CONTEXT")] = ""
    """Context of the kubeconfig."""

    @property
    def kube(self) -> KubeOptions:
        return KubeOptions(kubeconfig=self.kubeconfig, context=self.context)


def check_options(options: CertsOptions) -> None:
    """`BadSettings` for options that contradict each other, and for options without effect."""
    problems = [*_exclusive_option_problems(options), *_no_target_option_problems(options)]
    if options.signer_name and (options.host_dir or options.cert_manager or options.check):
        expected = "alone, or with --apply"
        problems.append(Problem("--signer-name", "with --host, --cert-manager or --check", expected))
    if options.client_secret == options.secret:
        problems.append(Problem("--client-secret", "the same as --secret", "another name"))
    if problems:
        raise BadSettings("settings", problems)


def _exclusive_option_problems(options: CertsOptions) -> list[Problem]:
    targets = {
        "--apply": options.apply,
        "--host": bool(options.host_dir),
        "--cert-manager": options.cert_manager,
    }
    flags = [flag for flag, is_set in targets.items() if is_set]
    return [Problem(" ".join(flags), "given together", "one of them")] if len(flags) > 1 else []


def _no_target_option_problems(options: CertsOptions) -> list[Problem]:
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
    expected = "together with --apply or --host"
    return problems + [Problem(flag, "given", expected) for flag, is_set in flags.items() if is_set]
