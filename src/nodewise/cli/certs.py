"""`nodewise certs`: issues and renews the certificates of nodewise and of kube-scheduler as its client."""

import asyncio
import secrets
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

import click
import msgspec
import yaml

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, BadSettings, Conflict, Problem, Unavailable
from nodewise.base.option import Option
from nodewise.cli import terminal_output
from nodewise.cli.options_from_settings import (
    CommandLine,
    settings_command,
)
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.install import (
    certificate_folder,
    certificate_manifests,
    certificate_renewal,
    certificate_secrets,
)
from nodewise.install.certificate_renewal import (
    CertificateSpec,
    CertificateSummary,
    ConnectionCertificates,
    PeerCertificates,
    RenewalPlan,
)
from nodewise.install.certificate_secrets import SecretLocation, SigningRequest, StoredSecrets
from nodewise.kube.api_client_creation import connect
from nodewise.kube.api_server_interface import Api
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.tls import x509_certificates
from nodewise.tls.x509_certificates import format_rfc3339_time

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


def print_kubernetes_objects(made: list[dict[str, Any]], output: str | None) -> None:
    if output == "json":
        click.echo(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": made}))
    else:
        click.echo(yaml.safe_dump_all(made, sort_keys=False), nl=False)


def print_approval_command(request: SigningRequest, timeout_s: float) -> None:
    terminal_output.print_message(
        f"waiting up to {timeout_s:g} s for the approval of CertificateSigningRequest {request.name}: "
        f"kubectl certificate approve {request.name}"
    )


def print_next_step_and_exit(options: CertsOptions, plan: RenewalPlan) -> NoReturn:
    """Print the next step with its time and exit with the code of --check."""
    if options.output == "json":
        click.echo(msgspec.json.encode(_renewal_plan_document(plan)))
    else:
        for line in _renewal_plan_lines(plan):
            click.echo(line)
    raise click.exceptions.Exit(terminal_output.NO if plan.is_due else terminal_output.DONE)


def _renewal_plan_document(plan: RenewalPlan) -> dict[str, Any]:
    def summary_document(certificate: CertificateSummary | None) -> dict[str, Any] | None:
        signer = {"signer": certificate.signer} if certificate and certificate.signer else {}
        return (
            {"names": list(certificate.names), "ends": format_rfc3339_time(certificate.not_after), **signer}
            if certificate
            else None
        )

    return {
        "due": plan.is_due,
        "next": plan.step if plan.is_due else "announce",
        "at": format_rfc3339_time(plan.at),
        "reasons": list(plan.reasons),
        "server": summary_document(plan.server),
        "client": summary_document(plan.client),
    }


def _renewal_plan_lines(plan: RenewalPlan) -> list[str]:
    texts: dict[str, Callable[[], str]] = {
        "make": lambda: "due: the first certificates",
        "announce": lambda: f"due since {format_rfc3339_time(plan.at)}: a renewal",
        "wait": lambda: (
            f"due before {format_rfc3339_time(plan.at)}: a restart of kube-scheduler, then --restarted"
        ),
        "switch": lambda: f"due since {format_rfc3339_time(plan.at)}: the switch to the new certificates",
        "clock": lambda: "due now: the clock of this machine",
        "sign": lambda: (
            f"due since {format_rfc3339_time(plan.at)}: kube-scheduler's certificate, by --signer-name"
        ),
        "nothing": lambda: f"nothing is due before {format_rfc3339_time(plan.at)}",
    }
    return [texts[plan.step](), *(f"  {reason}" for reason in plan.reasons)]


def print_renewal_result(options: CertsOptions, done: RenewalPlan, after: RenewalPlan, where: str) -> None:
    """Print the step that was applied, and the required actions."""
    if options.output == "json":
        click.echo(msgspec.json.encode({"done": done.step, "where": where, **_renewal_plan_document(after)}))
        return
    messages = {
        "make": f"made: {where}",
        "announce": f"announced a new authority beside the old one: {where}",
        "wait": f"waiting until {format_rfc3339_time(after.at)}, or for --restarted: {where}",
        "switch": f"switched to the certificates of the new authority: {where}",
        "sign": f"nothing to do here, but kube-scheduler's certificate is due, by --signer-name: {where}",
        "nothing": f"nothing is due before {format_rfc3339_time(after.at)}: {where}",
    }
    click.echo(messages[done.step])
    for reason in done.reasons if done.step in {"announce", "make"} else ():
        click.echo(f"  {reason}")
    if done.step == "make":
        terminal_output.print_message(
            "if kube-scheduler runs with another caFile, restart all replicas now: it reads its caFile once, and every "
            "call fails until then. nodewise needs no restart"
        )
    if after.step == "wait":
        terminal_output.print_message(
            f"restart all replicas of kube-scheduler before {format_rfc3339_time(after.at)}: it reads its caFile once, "
            "and would refuse the new certificate. Then run this command with --restarted. nodewise needs no restart"
        )


_MAX_ATTEMPTS: Final = 5
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")


@settings_command("certs", CertsOptions, short_help="Make and renew certificates.")
def command(command_line: CommandLine) -> None:
    """Issue certificates for nodewise and for kube-scheduler as its client, and renew them.

    An authority is created in memory, signs one certificate for nodewise's Service and one for kube-scheduler, and its
    key is discarded. The certificates are printed as two Secrets. With --apply they are written to the cluster, with
    --host to the files of a folder. --apply and --host do only what is due: run them once a day.

    A renewal has two steps, because kube-scheduler reads its caFile once. First a new authority is announced, in
    addition to the old one. Then restart kube-scheduler, and run the command with --restarted. The new certificates are
    used after that, or after half of --renew-before. No call fails.

    \b
    Examples:
      nodewise certs --namespace nodewise | kubectl apply -f -
      nodewise certs --apply --check
      nodewise certs --host /etc/nodewise/pki --systemd

    \b
    Exit codes:
      0  done; with --check, nothing is due
      1  Secrets, files or the signer's response could not be read or written
      2  options contradict each other, or one is invalid
      3  with --check, something is due
    """
    logs.configure("warning")
    options = command_line.settings(CertsOptions)
    spec = _certificate_spec(options)
    check_options(options)
    if options.cert_manager:
        print_kubernetes_objects(
            certificate_manifests.build_cert_manager_objects(
                spec, options.namespace, _secret_location(options).names
            ),
            options.output,
        )
    elif options.systemd:
        folder = str(Path(options.host_dir).absolute())
        certificate_folder.check_folder(Path(folder))
        click.echo(
            certificate_manifests.render_systemd_units(_daily_renewal_command(folder), folder), nl=False
        )
    elif options.signer_name:
        asyncio.run(_sign_client_certificate(options, spec))
    elif options.host_dir:
        _renew_files(options, spec)
    elif options.apply or options.check:
        asyncio.run(_renew_secrets(options, spec))
    else:
        made = certificate_renewal.apply_renewal_step(
            ConnectionCertificates(), "make", spec, datetime.now(UTC)
        )
        print_kubernetes_objects(
            certificate_manifests.build_secrets(made, options.namespace, _secret_location(options).names),
            options.output,
        )


def _certificate_spec(options: CertsOptions) -> CertificateSpec:
    own = _LOCAL_NAMES if options.host_dir else ()
    names = (*certificate_renewal.service_dns_names(options.namespace, options.service), *own, *options.names)

    spec = CertificateSpec(
        tuple(dict.fromkeys(names)),
        options.client_name,
        timedelta(seconds=options.lifetime_s),
        _timedelta(options.renew_before_s),
        _timedelta(options.switch_after_s),
        timedelta(seconds=options.settle_s),
        options.renew,
    )
    certificate_renewal.check_certificate_spec(spec)
    return spec


def _timedelta(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _secret_location(options: CertsOptions) -> SecretLocation:
    return SecretLocation(options.namespace, (options.secret, options.client_secret))


def _plan_next_renewal_step(
    options: CertsOptions, before: ConnectionCertificates, spec: CertificateSpec, now: datetime
) -> RenewalPlan:
    """The next step. Unavailable if the clock of this machine is behind the existing certificates."""
    plan = certificate_renewal.plan_renewal(before, spec, now)
    if plan.step == "clock":
        raise Unavailable("nothing was changed", [Problem("", plan.reasons[0], "")])
    return certificate_renewal.plan_after_scheduler_restart(plan, spec, now) if options.restarted else plan


def _renew_files(options: CertsOptions, spec: CertificateSpec) -> None:
    folder = Path(options.host_dir).absolute()
    now = datetime.now(UTC)
    try:
        certificate_folder.check_folder(folder)
        if options.check:
            print_next_step_and_exit(
                options,
                certificate_renewal.plan_renewal(
                    certificate_folder.read_certificates(folder).certificates, spec, now
                ),
            )
        with certificate_folder.lock_folder(folder):
            existing = certificate_folder.read_certificates(folder)
            if not options.replace:
                certificate_folder.check_ownership(folder, existing)
            elif existing.foreign:
                spec = spec._replace(is_forced=True)
            plan = _plan_next_renewal_step(options, existing.certificates, spec, now)
            after = certificate_renewal.apply_renewal_step(existing.certificates, plan.step, spec, now)
            if after != existing.certificates:
                certificate_folder.write_certificates(folder, after)
    except OSError as error:
        raise BadInput("files", [Problem(str(error.filename or folder), error.strerror or "", "")]) from error
    print_renewal_result(
        options,
        plan,
        certificate_renewal.plan_renewal(after, spec._replace(is_forced=False), now),
        str(folder),
    )


async def _renew_secrets(options: CertsOptions, spec: CertificateSpec) -> None:
    api = connect(options.kube, MetricsRegistry())
    location, now = _secret_location(options), datetime.now(UTC)
    try:
        if options.check:
            existing = await certificate_secrets.read_secrets(api, location)
            print_next_step_and_exit(
                options, certificate_renewal.plan_renewal(existing.certificates, spec, now)
            )
        plan, after = await _apply_renewal_step_to_secrets(api, options, spec, now)
    finally:
        await api.close()
    where = ", ".join(f"Secret {location.namespace}/{name}" for name in location.names)
    print_renewal_result(
        options, plan, certificate_renewal.plan_renewal(after, spec._replace(is_forced=False), now), where
    )


async def _apply_renewal_step_to_secrets(
    api: Api, options: CertsOptions, spec: CertificateSpec, now: datetime
) -> tuple[RenewalPlan, ConnectionCertificates]:
    """Apply the next step to the Secrets. Returns the step and the new certificates. Conflict after 5 tries."""
    location = _secret_location(options)
    for left in reversed(range(_MAX_ATTEMPTS)):
        existing = await certificate_secrets.read_secrets(api, location)
        if not options.replace:
            certificate_secrets.check_ownership(location, existing)
        elif existing.foreign or existing.certificates.client.signer:
            spec = spec._replace(is_forced=True)
        before = existing.certificates
        if options.replace:
            before = before._replace(client=before.client._replace(signer=""))
        plan = _plan_next_renewal_step(options, before, spec, now)
        after = certificate_renewal.apply_renewal_step(before, plan.step, spec, now)
        try:
            await certificate_secrets.write_secrets(api, location, existing, after)
        except Conflict:
            if not left:
                raise
        else:
            break
    return plan, after


async def _sign_client_certificate(options: CertsOptions, spec: CertificateSpec) -> None:
    """Have a signer of the cluster issue kube-scheduler's certificate; print it, or write it and trust the signer."""
    api = connect(options.kube, MetricsRegistry())
    location, signer = _secret_location(options), options.signer_name
    try:
        authorities = _read_signer_ca(options.signer_ca) or await certificate_secrets.read_signer_authorities(
            api, signer
        )
        if options.apply:
            _check_signing_preconditions(options, await certificate_secrets.read_secrets(api, location))
        leaf = await _request_certificate(api, options, spec)
        if options.apply:
            await _write_signed_certificate(api, options, spec, leaf, authorities)
            click.echo(f"Secret {location.namespace}/{location.names[1]}: a certificate of {signer}")
        else:
            client = PeerCertificates(leaf.cert, leaf.key, signer=signer)
            print_kubernetes_objects(
                [certificate_manifests.build_secret(location.names[1], location.namespace, client)],
                options.output,
            )
    finally:
        await api.close()
    terminal_output.print_message(
        f"{signer} also issues certificates to others: start nodewise with --client-name {spec.client_name}"
    )


def _check_signing_preconditions(options: CertsOptions, existing: StoredSecrets) -> None:
    """BadInput if a Secret of others exists, or if nodewise has no certificate of its own yet."""
    if not options.replace:
        certificate_secrets.check_ownership(_secret_location(options), existing)
    if not existing.certificates.server.cert:
        location = _secret_location(options)
        problem = Problem(
            f"Secret {location.namespace}/{location.names[0]}", "is not there", "`--apply` without a signer"
        )
        raise BadInput("nodewise's own certificate comes first", [problem])


async def _request_certificate(
    api: Api, options: CertsOptions, spec: CertificateSpec
) -> x509_certificates.SignedCertificate:
    """Request a certificate; the result includes its key. BadInput if it is not a client certificate."""
    made = x509_certificates.certificate_request(spec.client_name)
    name = _make_object_name(f"{spec.client_name[:40]}-{secrets.token_hex(4)}")
    request = SigningRequest(name, options.signer_name, made.cert, spec.lifetime)
    cert = await certificate_secrets.request_certificate(
        api,
        request,
        options.timeout_s,
        SystemClock(),
        lambda: print_approval_command(request, options.timeout_s),
    )
    if reason := x509_certificates.issued_certificate_problem(cert, made.key):
        problem = Problem("certificate", reason, "a client's certificate")
        raise BadInput(f"signer {options.signer_name}", [problem])
    return made._replace(cert=cert)


async def _write_signed_certificate(
    api: Api,
    options: CertsOptions,
    spec: CertificateSpec,
    leaf: x509_certificates.SignedCertificate,
    authorities: bytes,
) -> None:
    """Write the trusted authorities first, and the certificate when a running nodewise has read them."""
    location = _secret_location(options)
    existing = await certificate_secrets.read_secrets(api, location)
    server, client = existing.certificates
    trusted = x509_certificates.merge_authorities(server.trusted, authorities)
    await certificate_secrets.write_secrets(
        api, location, existing, ConnectionCertificates(server._replace(trusted=trusted), client)
    )
    if client.cert and trusted != server.trusted:
        terminal_output.print_message(
            f"waiting {spec.settle} until nodewise trusts {options.signer_name} (--settle)"
        )
        await asyncio.sleep(spec.settle.total_seconds())
    existing = await certificate_secrets.read_secrets(api, location)
    server, client = existing.certificates
    signed = PeerCertificates(leaf.cert, leaf.key, client.trusted, signer=options.signer_name)
    await certificate_secrets.write_secrets(api, location, existing, ConnectionCertificates(server, signed))


def _read_signer_ca(path: str) -> bytes:
    if not path:
        return b""
    try:
        pem = Path(path).read_bytes()
    except OSError as error:
        raise BadSettings("settings", [Problem("--signer-ca", str(error), "a PEM file")]) from error
    if not x509_certificates.is_ca_bundle(pem):
        raise BadSettings(
            "settings", [Problem("--signer-ca", f"{path} holds no authority", "its certificate, PEM")]
        )
    return pem


def _make_object_name(text: str) -> str:
    """A valid object name made from a text."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower())
    return plain.strip("-")


def _daily_renewal_command(folder: str) -> list[str]:
    """The current command line with the absolute folder and without flags for a single run."""
    program = shutil.which("nodewise") or sys.argv[0]
    arguments = iter(sys.argv[sys.argv.index("certs") + 1 :])
    words = []
    for word in arguments:
        if word == "--host":
            next(arguments)
        elif word not in _ONE_TIME_FLAGS and not word.startswith("--host="):
            words.append(word)
    return [str(Path(program).absolute()), "certs", "--host", folder, *words]


_ONE_TIME_FLAGS: Final = frozenset({"--systemd", "--replace", "--restarted", "--renew", "--check"})
