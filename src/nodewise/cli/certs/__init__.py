"""`nodewise certs`: makes and renews the certificates of nodewise and of kube-scheduler as its client."""

import asyncio
import secrets
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import msgspec
import yaml

from nodewise.cli import exit_codes, terminal
from nodewise.cli.certs.options import CertsOptions, check
from nodewise.cli.options import CommandLine, make_command, parameters
from nodewise.clock import SystemClock
from nodewise.configure import certificate_files as files
from nodewise.configure import certificate_objects as objects
from nodewise.configure import certificate_renewal
from nodewise.configure import certificate_secrets as stored
from nodewise.configure.certificate_renewal import Both, Outlook, Shown, Side, Wish, stamp
from nodewise.configure.certificate_secrets import Place, Request
from nodewise.errors import BadInput, BadSettings, Conflict, Problem, Unavailable
from nodewise.kube.api import Api
from nodewise.kube.connection_settings import connect
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve import certificate_issuer

_TRIES: Final = 5
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


def run(command_line: CommandLine) -> None:
    """Make certificates for nodewise and for kube-scheduler as its client, and renew them.

    An authority is made in memory, signs one certificate for nodewise's Service and one for kube-scheduler, and its key
    is thrown away. Printed as two Secrets; with --apply written to the cluster, with --host as files of a folder.
    --apply and --host do what is due, and nothing if nothing is: run them once a day.

    A renewal has two steps, as kube-scheduler reads its caFile once. First a new authority is announced, beside the old
    one. Then kube-scheduler has to be started anew; tell it by --restarted. The new certificates are used after that,
    or when half of --renew-before is over. No call fails.

    \b
    Examples:
      nodewise certs --namespace nodewise | kubectl apply -f -
      nodewise certs --apply --check
      nodewise certs --host /etc/nodewise/pki --systemd

    \b
    Exit codes:
      0  done; with --check, nothing is due
      1  Secrets, files or the signer's answer could not be read or written
      2  options contradict each other, or one is wrong
      3  with --check, something is due
    """
    logs.configure("warning")
    options = command_line.settings(CertsOptions)
    wish = _wish(options)
    check(options)
    if options.cert_manager:
        _print(objects.cert_manager(wish, options.namespace, _place(options).names), options.output)
    elif options.systemd:
        folder = str(Path(options.host_dir).absolute())
        files.check_place(Path(folder))
        click.echo(objects.systemd(_words(folder), folder), nl=False)
    elif options.signer_name:
        asyncio.run(_sign(options, wish))
    elif options.host_dir:
        _on_host(options, wish)
    elif options.apply or options.check:
        asyncio.run(_in_cluster(options, wish))
    else:
        made = certificate_renewal.taken(Both(), "make", wish, datetime.now(UTC))
        _print(objects.secrets(made, options.namespace, _place(options).names), options.output)


def _wish(options: CertsOptions) -> Wish:
    own = _LOCAL if options.host_dir else ()
    names = (*certificate_renewal.service_names(options.namespace, options.service), *own, *options.names)

    wish = Wish(
        tuple(dict.fromkeys(names)),
        options.client_name,
        timedelta(seconds=options.lifetime_s),
        _timedelta(options.renew_before_s),
        _timedelta(options.switch_after_s),
        timedelta(seconds=options.settle_s),
        options.renew,
    )
    certificate_renewal.check(wish)
    return wish


def _timedelta(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _place(options: CertsOptions) -> Place:
    return Place(options.namespace, (options.secret, options.client_secret))


def _decide(options: CertsOptions, before: Both, wish: Wish, now: datetime) -> Outlook:
    """What is to be done now. Unavailable while this machine's clock cannot be right."""
    plan = certificate_renewal.outlook(before, wish, now)
    if plan.step == "clock":
        raise Unavailable("nothing was changed", [Problem("", plan.reasons[0], "")])
    return certificate_renewal.restarted(plan, wish, now) if options.restarted else plan


def _on_host(options: CertsOptions, wish: Wish) -> None:
    folder = Path(options.host_dir).absolute()
    now = datetime.now(UTC)
    try:
        files.check_place(folder)
        if options.check:
            _tell_check(options, certificate_renewal.outlook(files.read(folder).both, wish, now))
        with files.alone(folder):
            existing = files.read(folder)
            if not options.replace:
                files.check_ours(folder, existing)
            elif existing.foreign:
                wish = wish._replace(is_forced=True)
            todo = _decide(options, existing.both, wish, now)
            after = certificate_renewal.taken(existing.both, todo.step, wish, now)
            if after != existing.both:
                files.write(folder, after)
    except OSError as error:
        raise BadInput("files", [Problem(str(error.filename or folder), error.strerror or "", "")]) from error
    _tell_done(
        options, todo, certificate_renewal.outlook(after, wish._replace(is_forced=False), now), str(folder)
    )


async def _in_cluster(options: CertsOptions, wish: Wish) -> None:
    api = connect(options.kube, MetricsRegistry())
    place, now = _place(options), datetime.now(UTC)
    try:
        if options.check:
            existing = await stored.read(api, place)
            _tell_check(options, certificate_renewal.outlook(existing.both, wish, now))
        todo, after = await _applied(api, options, wish, now)
    finally:
        await api.close()
    where = ", ".join(f"Secret {place.namespace}/{name}" for name in place.names)
    _tell_done(options, todo, certificate_renewal.outlook(after, wish._replace(is_forced=False), now), where)


async def _applied(api: Api, options: CertsOptions, wish: Wish, now: datetime) -> tuple[Outlook, Both]:
    """What was done, and what there is then. Conflict if others write there all the time."""
    place = _place(options)
    for left in reversed(range(_TRIES)):
        existing = await stored.read(api, place)
        if not options.replace:
            stored.check_ours(place, existing)
        elif existing.foreign or existing.both.client.signer:
            wish = wish._replace(is_forced=True)
        before = existing.both
        if options.replace:
            before = before._replace(client=before.client._replace(signer=""))
        todo = _decide(options, before, wish, now)
        after = certificate_renewal.taken(before, todo.step, wish, now)
        try:
            await stored.write(api, place, existing, after)
        except Conflict:
            if not left:
                raise
        else:
            break
    return todo, after


async def _sign(options: CertsOptions, wish: Wish) -> None:
    """kube-scheduler's certificate by a signer of the cluster; printed, or written with whom nodewise has to trust."""
    api = connect(options.kube, MetricsRegistry())
    place, signer = _place(options), options.signer_name
    try:
        authorities = _signer_ca(options.signer_ca) or await stored.authority_of(api, signer)
        if options.apply:
            _check_signing(options, await stored.read(api, place))
        leaf = await _signed(api, options, wish)
        if options.apply:
            await _write_signed(api, options, wish, leaf, authorities)
            click.echo(f"Secret {place.namespace}/{place.names[1]}: a certificate of {signer}")
        else:
            client = Side(leaf.cert, leaf.key, signer=signer)
            _print([objects.secret(place.names[1], place.namespace, client)], options.output)
    finally:
        await api.close()
    terminal.print_message(
        f"others have certificates of {signer} too: start nodewise with --client-name {wish.client_name}"
    )


def _check_signing(options: CertsOptions, existing: stored.Found) -> None:
    """BadInput where what is there is not ours, or nobody would trust what is signed."""
    if not options.replace:
        stored.check_ours(_place(options), existing)
    if not existing.both.server.cert:
        place = _place(options)
        problem = Problem(
            f"Secret {place.namespace}/{place.names[0]}", "is not there", "`--apply` without a signer"
        )
        raise BadInput("nodewise's own certificate comes first", [problem])


async def _signed(api: Api, options: CertsOptions, wish: Wish) -> certificate_issuer.Leaf:
    """A certificate of the signer's with its key. BadInput where it is not a client's."""
    made = certificate_issuer.request(wish.client_name)
    name = _name_of(f"{wish.client_name[:40]}-{secrets.token_hex(4)}")
    wanted = Request(name, options.signer_name, made.cert, wish.valid)
    cert = await stored.signed(
        api, wanted, options.timeout_s, SystemClock(), lambda: _tell_waiting(wanted, options.timeout_s)
    )
    if trouble := certificate_renewal.trouble_of_issued(cert, made.key):
        problem = Problem("certificate", trouble, "a client's certificate")
        raise BadInput(f"signer {options.signer_name}", [problem])
    return made._replace(cert=cert)


async def _write_signed(
    api: Api, options: CertsOptions, wish: Wish, leaf: certificate_issuer.Leaf, authorities: bytes
) -> None:
    """Whom to trust comes first, and where a client is at work its new certificate only when that has arrived."""
    place = _place(options)
    existing = await stored.read(api, place)
    server, client = existing.both
    trusted = certificate_renewal.trusting(server.trusted, authorities)
    await stored.write(api, place, existing, Both(server._replace(trusted=trusted), client))
    if client.cert and trusted != server.trusted:
        terminal.print_message(
            f"{options.signer_name} is new to nodewise, which gets {wish.settle} to hear of it (--settle)"
        )
        await asyncio.sleep(wish.settle.total_seconds())
    existing = await stored.read(api, place)
    server, client = existing.both
    signed = Side(leaf.cert, leaf.key, client.trusted, signer=options.signer_name)
    await stored.write(api, place, existing, Both(server, signed))


def _signer_ca(path: str) -> bytes:
    if not path:
        return b""
    try:
        pem = Path(path).read_bytes()
    except OSError as error:
        raise BadSettings("settings", [Problem("--signer-ca", str(error), "a PEM file")]) from error
    if not certificate_renewal.is_authority(pem):
        raise BadSettings(
            "settings", [Problem("--signer-ca", f"{path} holds no authority", "its certificate, PEM")]
        )
    return pem


def _name_of(text: str) -> str:
    """A name that objects may have."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower())
    return plain.strip("-")


def _words(folder: str) -> list[str]:
    """The command line that this is, without what is for now only, and with the folder's whole name."""
    program = shutil.which("nodewise") or sys.argv[0]
    arguments = iter(sys.argv[sys.argv.index("certs") + 1 :])
    words = []
    for word in arguments:
        if word == "--host":
            next(arguments)
        elif word not in _FOR_NOW and not word.startswith("--host="):
            words.append(word)
    return [str(Path(program).absolute()), "certs", "--host", folder, *words]


_FOR_NOW: Final = frozenset({"--systemd", "--replace", "--restarted", "--renew", "--check"})


def _print(made: list[dict[str, Any]], output: str | None) -> None:
    if output == "json":
        click.echo(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": made}))
    else:
        click.echo(yaml.safe_dump_all(made, sort_keys=False), nl=False)


def _tell_waiting(wanted: Request, timeout_s: float) -> None:
    terminal.print_message(
        f"CertificateSigningRequest {wanted.name} waits for an approval, for up to {timeout_s:g} s: "
        f"kubectl certificate approve {wanted.name}"
    )


def _tell_check(options: CertsOptions, plan: Outlook) -> NoReturn:
    """Print what is due, or when something is, and end."""
    if options.output == "json":
        click.echo(msgspec.json.encode(_report(plan)))
    else:
        for line in _lines(plan):
            click.echo(line)
    raise click.exceptions.Exit(exit_codes.NO if plan.is_due else exit_codes.DONE)


def _report(plan: Outlook) -> dict[str, Any]:
    def shown(certificate: Shown | None) -> dict[str, Any] | None:
        signer = {"signer": certificate.signer} if certificate and certificate.signer else {}
        return (
            {"names": list(certificate.names), "ends": stamp(certificate.ends), **signer}
            if certificate
            else None
        )

    return {
        "due": plan.is_due,
        "next": plan.step if plan.is_due else "announce",
        "at": stamp(plan.at),
        "reasons": list(plan.reasons),
        "server": shown(plan.server),
        "client": shown(plan.client),
    }


def _lines(plan: Outlook) -> list[str]:
    texts: dict[str, Callable[[], str]] = {
        "make": lambda: "due: certificates are to be made",
        "announce": lambda: f"due since {stamp(plan.at)}: a renewal",
        "wait": lambda: f"due before {stamp(plan.at)}: kube-scheduler started anew, then --restarted",
        "switch": lambda: f"due since {stamp(plan.at)}: the new certificates are to be used",
        "clock": lambda: "due now: the clock of this machine",
        "sign": lambda: f"due since {stamp(plan.at)}: kube-scheduler's certificate, by --signer-name",
        "nothing": lambda: f"nothing is due before {stamp(plan.at)}",
    }
    return [texts[plan.step](), *(f"  {reason}" for reason in plan.reasons)]


def _tell_done(options: CertsOptions, done: Outlook, after: Outlook, where: str) -> None:
    """What was done, and what somebody has to do now."""
    if options.output == "json":
        click.echo(msgspec.json.encode({"done": done.step, "where": where, **_report(after)}))
        return
    messages = {
        "make": f"made: {where}",
        "announce": f"announced a new authority beside the old one: {where}",
        "wait": f"waiting until {stamp(after.at)}, or for --restarted: {where}",
        "switch": f"switched to the certificates of the new authority: {where}",
        "sign": f"nothing is to be done here, but kube-scheduler's certificate is due, by --signer-name: {where}",
        "nothing": f"nothing is due before {stamp(after.at)}: {where}",
    }
    click.echo(messages[done.step])
    for reason in done.reasons if done.step in {"announce", "make"} else ():
        click.echo(f"  {reason}")
    if done.step == "make":
        terminal.print_message(
            "where kube-scheduler runs with another caFile, start it anew now, all replicas: it reads that once, and "
            "every call fails until then. nodewise needs no restart"
        )
    if after.step == "wait":
        terminal.print_message(
            f"start kube-scheduler anew, all replicas, before {stamp(after.at)}: it reads its caFile once, and would "
            "refuse the new certificate; then run this with --restarted. nodewise needs no restart"
        )


command = make_command("certs", run, parameters(CertsOptions), short_help="Make and renew certificates.")
