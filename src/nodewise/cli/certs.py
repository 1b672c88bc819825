"""`nodewise certs`: issues and renews the certificates of nodewise and of kube-scheduler as its client."""

import asyncio
import secrets
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

import click
import msgspec

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, BadSettings, Conflict, Problem, Unavailable
from nodewise.base.option import Option
from nodewise.cli import terminal_output
from nodewise.cli.options_from_settings import (
    CommandLine,
    settings_command,
)
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.install import certificate_folder, certificate_renewal, certificate_secrets
from nodewise.install.certificate_renewal import (
    CertificateSpec,
    CertificateSummary,
    ConnectionCertificates,
    PeerCertificates,
    RenewalPlan,
)
from nodewise.install.certificate_secrets import SecretLocation, SigningRequest
from nodewise.kube import yaml_writer
from nodewise.kube.api_client_creation import open_api
from nodewise.kube.api_server_interface import Api
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.observe import logs
from nodewise.tls import x509_certificates
from nodewise.tls.x509_certificates import NO_CERTIFICATE, format_rfc3339_time

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


_MAX_ATTEMPTS: Final = 5
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_ONE_TIME_FLAGS: Final = frozenset({"--systemd", "--replace", "--restarted", "--renew", "--check"})


def check_options(options: CertsOptions) -> None:  # complexity: a table of conditions
    """`BadSettings` for options that contradict each other, and for options without effect."""
    targets = (
        ("--apply", options.apply),
        ("--host", options.host_dir),
        ("--cert-manager", options.cert_manager),
    )
    flags = [flag for flag, is_set in targets if is_set]
    writes = bool(options.apply or options.host_dir)
    other_output = options.host_dir or options.cert_manager or options.check
    alone, together = "alone, or with --apply", "together with --apply or --host"
    checks = (
        (len(flags) > 1, (" ".join(flags), "given together", "one of them")),
        (
            options.systemd and not options.host_dir,
            ("--systemd", "without --host", "the folder that is to be renewed"),
        ),
        (
            options.replace and not options.signer_name and not writes,
            ("--replace", "given", together),
        ),
        (options.restarted and not writes, ("--restarted", "given", together)),
        (options.renew and not writes, ("--renew", "given", together)),
        (
            options.signer_name and other_output,
            ("--signer-name", "with --host, --cert-manager or --check", alone),
        ),
        (
            options.client_secret == options.secret,
            ("--client-secret", "the same as --secret", "another name"),
        ),
    )
    if problems := [Problem(*problem) for is_wrong, problem in checks if is_wrong]:
        raise BadSettings("settings", problems)


def _print_objects(objects: list[dict[str, Any]], output: str | None) -> None:
    if output == "json":
        click.echo(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}))
    else:
        click.echo(yaml_writer.dump_all(objects), nl=False)


def _print_next_step_and_exit(options: CertsOptions, plan: RenewalPlan) -> NoReturn:
    """Print the next step with its time and exit with the code of --check."""
    at = format_rfc3339_time(plan.at)
    texts = {
        "make": "due: the first certificates",
        "announce": f"due since {at}: a renewal",
        "wait": f"due before {at}: a restart of kube-scheduler, then --restarted",
        "switch": f"due since {at}: the switch to the new certificates",
        "clock": "due now: the clock of this machine",
        "sign": f"due since {at}: kube-scheduler's certificate, by --signer-name",
        "nothing": f"nothing is due before {at}",
    }
    if options.output == "json":
        click.echo(msgspec.json.encode(_renewal_plan_document(plan)))
    else:
        click.echo("\n  ".join([texts[plan.step], *plan.reasons]))
    raise click.exceptions.Exit(terminal_output.NO if plan.is_due else terminal_output.DONE)


def _renewal_plan_document(plan: RenewalPlan) -> dict[str, Any]:
    def summary(certificate: CertificateSummary | None) -> dict[str, Any] | None:
        if certificate is None:
            return None
        signer = {"signer": certificate.signer} if certificate.signer else {}
        return {"names": certificate.names, "ends": format_rfc3339_time(certificate.not_after), **signer}

    return {
        "due": plan.is_due,
        "next": plan.step if plan.is_due else "announce",
        "at": format_rfc3339_time(plan.at),
        "reasons": plan.reasons,
        "server": summary(plan.server),
        "client": summary(plan.client),
    }


def _print_renewal_result(options: CertsOptions, done: RenewalPlan, after: RenewalPlan, where: str) -> None:
    """Print the step that was applied, and the required actions."""
    if options.output == "json":
        click.echo(msgspec.json.encode({"done": done.step, "where": where, **_renewal_plan_document(after)}))
        return
    at = format_rfc3339_time(after.at)
    messages = {
        "make": f"created: {where}",
        "announce": f"announced a new authority beside the old one: {where}",
        "wait": f"waiting until {at}, or for --restarted: {where}",
        "switch": f"switched to the certificates of the new authority: {where}",
        "sign": f"nothing to do here, but kube-scheduler's certificate is due, by --signer-name: {where}",
        "nothing": f"nothing is due before {at}: {where}",
    }
    is_reasoned = done.step in {"announce", "make"}
    reasons = [each for each in done.reasons if is_reasoned and not each.endswith(NO_CERTIFICATE)]
    click.echo("\n  ".join([messages[done.step], *(f"before: {reason}" for reason in reasons)]))
    if done.step == "make":
        terminal_output.print_message(
            "if kube-scheduler runs with another caFile, restart all replicas now: it reads its caFile once, and every "
            "call fails until then. nodewise needs no restart"
        )
    if after.step == "wait":
        terminal_output.print_message(
            f"restart all replicas of kube-scheduler before {at}: it reads its caFile once, and would refuse the new "
            "certificate. Then run this command with --restarted. nodewise needs no restart"
        )


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
    logs.configure("warning", "messages")
    options = command_line.settings(CertsOptions)
    spec = _certificate_spec(options)
    check_options(options)
    location = SecretLocation(options.namespace, (options.secret, options.client_secret))
    if options.cert_manager:
        objects = certificate_secrets.build_cert_manager_objects(spec, options.namespace, location.names)
        _print_objects(objects, options.output)
    elif options.systemd:
        folder = Path(options.host_dir).absolute()
        certificate_folder.check_folder(folder)
        units = certificate_secrets.render_systemd_units(_daily_renewal_command(str(folder)), str(folder))
        click.echo(units, nl=False)
    elif options.signer_name:
        asyncio.run(_sign_client_certificate(options, location, spec))
    elif options.host_dir:
        _renew_files(options, spec)
    elif options.apply or options.check:
        asyncio.run(_renew_secrets(options, location, spec))
    else:
        certificates = certificate_renewal.apply_renewal_step(
            ConnectionCertificates(), "make", spec, datetime.now(UTC)
        )
        objects = certificate_secrets.build_secrets(certificates, options.namespace, location.names)
        _print_objects(objects, options.output)


def _certificate_spec(options: CertsOptions) -> CertificateSpec:
    def optional(seconds: float | None) -> timedelta | None:
        return None if seconds is None else timedelta(seconds=seconds)

    own = _LOCAL_NAMES if options.host_dir else ()
    names = (*certificate_renewal.service_dns_names(options.namespace, options.service), *own, *options.names)
    spec = CertificateSpec(
        tuple(dict.fromkeys(names)),
        options.client_name,
        timedelta(seconds=options.lifetime_s),
        optional(options.renew_before_s),
        optional(options.switch_after_s),
        timedelta(seconds=options.settle_s),
        options.renew,
    )
    certificate_renewal.check_certificate_spec(spec)
    return spec


def _plan_next_renewal_step(
    options: CertsOptions, before: ConnectionCertificates, spec: CertificateSpec, now: datetime
) -> RenewalPlan:
    """The next step. Unavailable if the clock of this machine is behind the existing certificates."""
    plan = certificate_renewal.plan_renewal(before, spec, now)
    if plan.step == "clock":
        raise Unavailable("nothing was changed", [Problem("", plan.reasons[0], "")])
    return certificate_renewal.plan_after_scheduler_restart(plan, spec, now) if options.restarted else plan


def _renew_files(options: CertsOptions, spec: CertificateSpec) -> None:
    folder, now = Path(options.host_dir).absolute(), datetime.now(UTC)
    try:
        certificate_folder.check_folder(folder)
        if options.check:
            before = certificate_folder.read_certificates(folder).certificates
            _print_next_step_and_exit(options, certificate_renewal.plan_renewal(before, spec, now))
        with certificate_folder.lock_folder(folder):
            existing = certificate_folder.read_certificates(folder)
            if not options.replace:
                certificate_folder.check_ownership(folder, existing)
            elif existing.foreign:
                spec = spec._replace(is_forced=True)
            plan = _plan_next_renewal_step(options, existing.certificates, spec, now)
            certificates = certificate_renewal.apply_renewal_step(existing.certificates, plan.step, spec, now)
            if certificates != existing.certificates:
                certificate_folder.write_certificates(folder, certificates)
    except OSError as error:
        raise BadInput("files", [Problem(str(error.filename or folder), error.strerror or "", "")]) from error
    after = certificate_renewal.plan_renewal(certificates, spec._replace(is_forced=False), now)
    _print_renewal_result(options, plan, after, str(folder))


async def _renew_secrets(options: CertsOptions, location: SecretLocation, spec: CertificateSpec) -> None:
    now = datetime.now(UTC)
    async with open_api(options.kube) as api:
        if options.check:
            before = (await certificate_secrets.read_secrets(api, location)).certificates
            _print_next_step_and_exit(options, certificate_renewal.plan_renewal(before, spec, now))
        plan, certificates = await _apply_renewal_step_to_secrets(api, options, location, spec, now)
    where = ", ".join(f"Secret {location.namespace}/{name}" for name in location.names)
    after = certificate_renewal.plan_renewal(certificates, spec._replace(is_forced=False), now)
    _print_renewal_result(options, plan, after, where)


async def _apply_renewal_step_to_secrets(
    api: Api, options: CertsOptions, location: SecretLocation, spec: CertificateSpec, now: datetime
) -> tuple[RenewalPlan, ConnectionCertificates]:
    """Apply the next step to the Secrets. Returns the step and the new certificates. Conflict after 5 tries."""
    for left in reversed(range(_MAX_ATTEMPTS)):
        existing = await certificate_secrets.read_secrets(api, location)
        before = existing.certificates
        if not options.replace:
            certificate_secrets.check_ownership(location, existing)
        else:
            if existing.foreign or before.client.signer:
                spec = spec._replace(is_forced=True)
            before = before._replace(client=before.client._replace(signer=""))
        plan = _plan_next_renewal_step(options, before, spec, now)
        after = certificate_renewal.apply_renewal_step(before, plan.step, spec, now)
        try:
            await certificate_secrets.write_secrets(api, location, existing, after)
            break
        except Conflict:
            if not left:
                raise
    return plan, after


async def _sign_client_certificate(
    options: CertsOptions, location: SecretLocation, spec: CertificateSpec
) -> None:
    """Have a signer of the cluster issue kube-scheduler's certificate; print it, or write it and trust the signer."""
    signer = options.signer_name
    async with open_api(options.kube) as api:
        authorities = _read_signer_ca(options.signer_ca) or await certificate_secrets.read_signer_authorities(
            api, signer
        )
        if options.apply:
            existing = await certificate_secrets.read_secrets(api, location)
            if not options.replace:
                certificate_secrets.check_ownership(location, existing)
            if not existing.certificates.server.cert:
                where = f"Secret {location.namespace}/{location.names[0]}"
                problem = Problem(where, "does not exist", "`--apply` without a signer")
                raise BadInput("nodewise's own certificate comes first", [problem])
        leaf = await _request_certificate(api, options, spec)
        if options.apply:
            await _write_signed_certificate(api, location, spec, leaf, authorities)
            click.echo(f"Secret {location.namespace}/{location.names[1]}: a certificate of {signer}")
        else:
            secret = certificate_secrets.build_secret(location.names[1], location.namespace, leaf)
            _print_objects([secret], options.output)
    terminal_output.print_message(
        f"{signer} also issues certificates to others: start nodewise with --client-name {spec.client_name}"
    )


async def _request_certificate(api: Api, options: CertsOptions, spec: CertificateSpec) -> PeerCertificates:
    """Request a certificate; the result includes its key. BadInput if it is not a client certificate."""
    leaf = x509_certificates.certificate_request(spec.client_name)
    text = f"{spec.client_name[:40]}-{secrets.token_hex(4)}".lower()
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text).strip("-")
    request = SigningRequest(name, options.signer_name, leaf.cert, spec.lifetime)

    def print_approval_command() -> None:
        terminal_output.print_message(
            f"waiting up to {options.timeout_s:g} s for the approval of CertificateSigningRequest {name}: "
            f"kubectl certificate approve {name}"
        )

    cert = await certificate_secrets.request_certificate(
        api, request, options.timeout_s, SystemClock(), print_approval_command
    )
    if reason := x509_certificates.issued_certificate_problem(cert, leaf.key):
        problem = Problem("certificate", reason, "a client's certificate")
        raise BadInput(f"signer {options.signer_name}", [problem])
    return PeerCertificates(cert, leaf.key, signer=options.signer_name)


async def _write_signed_certificate(
    api: Api, location: SecretLocation, spec: CertificateSpec, leaf: PeerCertificates, authorities: bytes
) -> None:
    """Write the trusted authorities first, and the certificate when a running nodewise has read them."""
    existing = await certificate_secrets.read_secrets(api, location)
    server, client = existing.certificates
    trusted = x509_certificates.merge_authorities(server.trusted, authorities)
    await certificate_secrets.write_secrets(
        api, location, existing, ConnectionCertificates(server._replace(trusted=trusted), client)
    )
    if client.cert and trusted != server.trusted:
        terminal_output.print_message(f"waiting {spec.settle} until nodewise trusts {leaf.signer} (--settle)")
        await asyncio.sleep(spec.settle.total_seconds())
    existing = await certificate_secrets.read_secrets(api, location)
    server, client = existing.certificates
    signed = leaf._replace(trusted=client.trusted)
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
