"""Prints the output of `nodewise configure` on a host: planned changes, applied changes, and the next step."""

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec

from nodewise.base.errors import BadInput, visible
from nodewise.cli import exit_codes
from nodewise.cli.configure.options import ConfigureOptions
from nodewise.install import control_plane_file_plan, file_diff
from nodewise.install.atomic_host_files import FileChange
from nodewise.install.backups import Backup
from nodewise.install.control_plane_file_plan import ChangePlan, HostRequest


def print_message(text: str) -> None:
    """Print a line to standard error. Standard output is for diffs and JSON."""
    click.echo(visible(text), err=True)


def print_problems(error: BadInput) -> int:
    """Print all problems of files, one line each. An error without a list is raised again."""
    first, *more = str(error).splitlines()
    if not more:
        raise error
    for line in [f"nodewise: {first}", *more]:
        print_message(line)
    return exit_codes.FAILED


def print_plan(request: HostRequest, plan: ChangePlan) -> None:
    """Print the paths, the version, and the warnings of a plan."""
    print_message(f'Manifest file is located at: "{request.manifest}"')
    if plan.version is not None:
        print_message(f'Scheduler config file is located at: "{request.template or "the built-in template"}"')
        print_message(
            f'Scheduler config destination will be: "{control_plane_file_plan.scheduler_config_path(request)}"'
        )
        print_message(f"kube-scheduler {plan.version}, configuration {plan.version.api_version}")
    for text in plan.warnings:
        print_message(f"warning: {text}")
    for text in plan.notes:
        print_message(text)


def print_file_diffs(options: ConfigureOptions, request: HostRequest, plan: ChangePlan) -> None:
    """Print the change of each file. Keys and certificates are not shown."""
    colour = sys.stdout.isatty() and not options.no_color and not os.environ.get("NO_COLOR")
    for change in plan.changes:
        kind = _describe_file_kind(request, change)
        if kind == "Certs" and change.is_unchanged:
            continue
        print_message(_HEADINGS.get(kind, 'Changes of "{}":').format(change.path))
        if change.is_unchanged:
            print_message("no changes")
        elif kind == "Certs":
            print_message("removed" if change.after is None else "written; not shown")
        elif options.output == "text":
            sys.stderr.flush()
            click.echo(
                file_diff.unified_diff(change.path, change.before, change.after, colour=colour),
                nl=False,
                color=True,
            )
    for line in plan.summary:
        print_message(f"  {line}")


_HEADINGS: Final = {
    "Scheduler config": 'Scheduler config changes compared to "{}":',
    "Deployment": 'Deployment at "{}" changes:',
    "Manifest": 'Manifest changes at "{}":',
}


def _describe_file_kind(request: HostRequest, change: FileChange) -> str:
    if change.path == request.manifest:
        return "Manifest"
    if change.path in request.deployments:
        return "Deployment"
    return (
        "Certs"
        if os.path.basename(change.path) in control_plane_file_plan.CERTIFICATE_FILES
        else "Scheduler config"
    )


def print_written_files(request: HostRequest, plan: ChangePlan, backup: Backup | None) -> None:
    """Print the files that were written or removed, and the backup folder."""
    if backup is not None and plan.effective_changes:
        print_message(f'Backups written to folder "{backup.path}"')
    _print_certificates_result(
        request,
        [change for change in plan.effective_changes if _describe_file_kind(request, change) == "Certs"],
    )
    for change in plan.changes:
        kind = _describe_file_kind(request, change)
        if kind == "Certs":
            continue
        if change.is_unchanged:
            print_message(f"No changes needed, {kind.lower().removeprefix('scheduler ')} not written.")
        elif change.after is None:
            print_message(f'{kind} "{change.path}" removed')
        elif kind == "Deployment":
            print_message(f'Deployment at "{change.path}" modified')
        else:
            print_message(f'{kind} written to "{change.path}"')
    for line in plan.summary:
        print_message(f"  {line}")


def _print_certificates_result(request: HostRequest, certificates: Sequence[FileChange]) -> None:
    """Print one line for all certificates and keys."""
    if any(change.after is not None for change in certificates):
        print_message(f'Certs written to folder "{request.cert_dir}"')
    elif certificates:
        print_message(f'Certs removed from folder "{os.path.dirname(certificates[0].path)}"')


def print_next_step(options: ConfigureOptions) -> None:
    print_message(
        "The kubelet restarts kube-scheduler now. Check that it runs again before you continue with the next host:"
    )
    print_message(
        "  kubectl --namespace kube-system get pods --selector component=kube-scheduler --output wide"
    )
    if options.uninstall or options.restore is not None:
        print_message("Do the same on the other hosts of the control plane.")
    else:
        print_message(
            "If it does not: `nodewise configure --restore`. For the other hosts: the same with --print-plan."
        )


def print_json_summary(
    options: ConfigureOptions, plan: ChangePlan, backup: Backup | None, *, written: bool
) -> None:
    """Print a summary as JSON to standard output, if requested."""
    if options.output != "json":
        return
    result = {
        "changed": bool(plan.effective_changes),
        "written": written and bool(plan.effective_changes),
        "files": list(map(_file_summary, plan.changes)),
        "pod": list(plan.summary),
        "warnings": list(plan.warnings),
        "backup": backup.path if backup else None,
        "kubernetesVersion": str(plan.version) if plan.version else None,
        "apiVersion": plan.version.api_version if plan.version else None,
    }
    click.echo(msgspec.json.encode(result))


def _file_summary(change: FileChange) -> dict[str, Any]:
    is_secret = os.path.basename(change.path) in control_plane_file_plan.CERTIFICATE_FILES
    what = "none" if change.is_unchanged else "remove" if change.after is None else "write"
    text = "" if is_secret else file_diff.unified_diff(change.path, change.before, change.after)
    return {"path": change.path, "change": what, "diff": text}
