"""The output of `nodewise configure` on a host: planned changes, changes made, and the next step."""

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec

from nodewise.cli import exit_codes
from nodewise.cli.configure.options import ConfigureOptions
from nodewise.configure import control_plane_host, file_diff
from nodewise.configure.backups import Backup
from nodewise.configure.control_plane_host import HostRequest, Plan
from nodewise.configure.host_files import Change
from nodewise.errors import BadInput
from nodewise.terminal_escaping import visible


def say(text: str) -> None:
    """A line on standard error: on standard output are what changes in files, and JSON."""
    click.echo(visible(text), err=True)


def problems(error: BadInput) -> int:
    """All that is wrong with files, a line each. Any other error is raised again."""
    first, *more = str(error).splitlines()
    if not more:
        raise error
    for line in [f"nodewise: {first}", *more]:
        say(line)
    return exit_codes.FAILED


def plan_of(request: HostRequest, plan: Plan) -> None:
    """Where files are, and what an operator should know before they change."""
    say(f'Manifest file is located at: "{request.manifest}"')
    if plan.version is not None:
        say(f'Scheduler config file is located at: "{request.template or "the built-in template"}"')
        say(f'Scheduler config destination will be: "{control_plane_host.config_path(request)}"')
        say(f"kube-scheduler {plan.version}, configuration {plan.version.api_version}")
    for text in plan.warnings:
        say(f"warning: {text}")
    for text in plan.notes:
        say(text)


def changes(options: ConfigureOptions, request: HostRequest, plan: Plan) -> None:
    """What would change in each file; keys and certificates are not shown."""
    colour = sys.stdout.isatty() and not options.no_color and not os.environ.get("NO_COLOR")
    for change in plan.changes:
        kind = _kind(request, change)
        if kind == "Certs" and change.is_none:
            continue
        say(_HEADS.get(kind, 'Changes of "{}":').format(change.path))
        if change.is_none:
            say("no changes")
        elif kind == "Certs":
            say("removed" if change.after is None else "written; not shown")
        elif options.output == "text":
            sys.stderr.flush()
            click.echo(
                file_diff.unified_diff(change.path, change.before, change.after, colour=colour),
                nl=False,
                color=True,
            )
    for line in plan.summary:
        say(f"  {line}")


_HEADS: Final = {
    "Scheduler config": 'Scheduler config changes compared to "{}":',
    "Deployment": 'Deployment at "{}" changes:',
    "Manifest": 'Manifest changes at "{}":',
}


def _kind(request: HostRequest, change: Change) -> str:
    if change.path == request.manifest:
        return "Manifest"
    if change.path in request.deployments:
        return "Deployment"
    return "Certs" if os.path.basename(change.path) in control_plane_host.PAPERS else "Scheduler config"


def done(request: HostRequest, plan: Plan, backup: Backup | None) -> None:
    """What was written and removed, and where backups are."""
    if backup is not None and plan.changed:
        say(f'Backups written to folder "{backup.path}"')
    _papers_done(request, [change for change in plan.changed if _kind(request, change) == "Certs"])
    for change in plan.changes:
        kind = _kind(request, change)
        if kind == "Certs":
            continue
        if change.is_none:
            say(f"No changes needed, {kind.lower().removeprefix('scheduler ')} not written.")
        elif change.after is None:
            say(f'{kind} "{change.path}" removed')
        elif kind == "Deployment":
            say(f'Deployment at "{change.path}" modified')
        else:
            say(f'{kind} written to "{change.path}"')
    for line in plan.summary:
        say(f"  {line}")


def _papers_done(request: HostRequest, papers: Sequence[Change]) -> None:
    """Certificates and keys, which are told together."""
    if any(change.after is not None for change in papers):
        say(f'Certs written to folder "{request.cert_dir}"')
    elif papers:
        say(f'Certs removed from folder "{os.path.dirname(papers[0].path)}"')


def next_step(options: ConfigureOptions) -> None:
    say("The kubelet restarts kube-scheduler now. See that it comes back before you go on to the next host:")
    say("  kubectl --namespace kube-system get pods --selector component=kube-scheduler --output wide")
    if options.uninstall or options.restore is not None:
        say("Do the same on the other hosts of the control plane.")
    else:
        say(
            "If it does not: `nodewise configure --restore`. For the other hosts: the same with --print-plan."
        )


def summary(options: ConfigureOptions, plan: Plan, backup: Backup | None, *, written: bool) -> None:
    """All of it as JSON on standard output, where that was asked for."""
    if options.output != "json":
        return
    result = {
        "changed": bool(plan.changed),
        "written": written and bool(plan.changed),
        "files": list(map(_file, plan.changes)),
        "pod": list(plan.summary),
        "warnings": list(plan.warnings),
        "backup": backup.path if backup else None,
        "kubernetesVersion": str(plan.version) if plan.version else None,
        "apiVersion": plan.version.api_version if plan.version else None,
    }
    click.echo(msgspec.json.encode(result))


def _file(change: Change) -> dict[str, Any]:
    is_secret = os.path.basename(change.path) in control_plane_host.PAPERS
    what = "none" if change.is_none else "remove" if change.after is None else "write"
    text = "" if is_secret else file_diff.unified_diff(change.path, change.before, change.after)
    return {"path": change.path, "change": what, "diff": text}
