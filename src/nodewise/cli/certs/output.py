"""Output of `nodewise certs`: the objects, the next step of the renewal, and the result of a step."""

from collections.abc import Callable
from typing import Any, NoReturn

import click
import msgspec
import yaml

from nodewise.cli import exit_codes, terminal_output
from nodewise.cli.certs.options import CertsOptions
from nodewise.install.certificate_renewal import CertificateSummary, RenewalPlan
from nodewise.install.certificate_secrets import SigningRequest
from nodewise.tls.x509_certificates import format_rfc3339_time


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
    raise click.exceptions.Exit(exit_codes.NO if plan.is_due else exit_codes.DONE)


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
