"""`nodewise configure` on a host with kubeadm: plans and applies changes, and prints both."""

import contextlib
import difflib
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec

import nodewise
from nodewise.base.errors import BadInput, NodewiseError, Problem, visible
from nodewise.cli import terminal_output
from nodewise.cli.configure.options import (
    DEFAULT_TEMPLATE,
    NEWEST,
    ConfigureOptions,
    check_contradictory_options,
    flags_to_repeat_run,
)
from nodewise.install import (
    control_plane_file_plan,
    file_transaction,
    host_checks,
    scheduler_configuration,
    scheduler_static_pod,
)
from nodewise.install.control_plane_file_plan import ChangePlan, HostRequest
from nodewise.install.file_transaction import Backup, FileChange
from nodewise.install.host_checks import OtherHostRun
from nodewise.install.scheduler_configuration import AgentRole, EntryFiles, SchedulerOptions


def print_message(text: str) -> None:
    """Print a line to standard error. Standard output is for diffs and JSON."""
    click.echo(visible(text), err=True)


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
                unified_diff(change.path, change.before, change.after, colour=colour),
                nl=False,
                color=True,
            )
    for line in plan.summary:
        print_message(f"  {line}")


_COLOURS: Final = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}


def unified_diff(path: str, before: bytes | None, after: bytes | None, *, colour: bool = False) -> str:
    """A unified diff; empty if nothing changes."""

    def split_lines(data: bytes | None) -> list[str]:
        lines = (data or b"").decode(errors="replace").split("\n")
        last = lines.pop()
        return [visible(line) for line in lines + ([last, "\\ No newline at end of file"] if last else [])]

    old, new = split_lines(before), split_lines(after)
    names = (path if before is not None else "/dev/null", path if after is not None else "/dev/null")
    if before != after and old == new:
        return f"--- {names[0]}\n+++ {names[1]}\nbytes that are no text differ\n"
    lines = difflib.unified_diff(old, new, *names, lineterm="")
    if colour:
        starts = ((_COLOURS.get(line[:1]), line) for line in lines)
        lines = (f"{start}{line}\x1b[0m" if start else line for start, line in starts)
    return "".join(f"{line}\n" for line in lines)


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
    return "Certs" if _is_certificate(change) else "Scheduler config"


def _is_certificate(change: FileChange) -> bool:
    return os.path.basename(change.path) in control_plane_file_plan.CERTIFICATE_FILES


def print_written_files(  # complexity: one line per kind of file
    request: HostRequest, plan: ChangePlan, backup: Backup | None
) -> None:
    """Print the files that were written or removed, and the backup folder."""
    if backup is not None and plan.effective_changes:
        print_message(f'Backups written to folder "{backup.path}"')
    certificates = [change for change in plan.effective_changes if _is_certificate(change)]
    if any(change.after is not None for change in certificates):
        print_message(f'Certs written to folder "{request.cert_dir}"')
    elif certificates:
        print_message(f'Certs removed from folder "{os.path.dirname(certificates[0].path)}"')
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
    is_secret = _is_certificate(change)
    what = "none" if change.is_unchanged else "remove" if change.after is None else "write"
    text = "" if is_secret else unified_diff(change.path, change.before, change.after)
    return {"path": change.path, "change": what, "diff": text}


_RESTART_LINES: Final = (
    "The kubelet restarts kube-scheduler now. Check that it runs again before you continue with the next host:",
    "  kubectl --namespace kube-system get pods --selector component=kube-scheduler --output wide",
)
_ROLLBACK_LINE: Final = "Do the same on the other hosts of the control plane."
_NEXT_HOST_LINE: Final = (
    "If it does not: `nodewise configure --restore`. For the other hosts: the same with --print-plan."
)
_IN_IMAGE: Final = "NODEWISE_IMAGE"  # the image of nodewise sets this variable
_MOUNTS: Final = Path("/proc/self/mountinfo")


def run(options: ConfigureOptions, roles: Sequence[AgentRole], weights: dict[str, int]) -> int:
    """Run the command on a host. Returns the exit code. All problems of files are printed, one line each."""
    try:
        return _run_on_host(options, roles, weights)
    except BadInput as error:
        first, *more = str(error).splitlines()
        if not more:
            raise
        for line in [f"nodewise: {first}", *more]:
            print_message(line)
        return terminal_output.FAILED
    except OSError as error:
        raise NodewiseError(
            "file check error", [Problem(str(error.filename), (error.strerror or str(error)).lower(), "")]
        ) from error


def _run_on_host(options: ConfigureOptions, roles: Sequence[AgentRole], weights: dict[str, int]) -> int:
    check_contradictory_options(options)
    print_message(f"nodewise {nodewise.__version__}")
    request = _build_configure_request(options, roles, weights)
    if options.print_plan:
        return _print_other_hosts(options, request)
    if options.dry_run or options.check:
        plan = _plan_changes(options, request, _new_backup(request))
        print_plan(request, plan)
        print_file_diffs(options, request, plan)
        print_json_summary(options, plan, None, written=False)
        print_message("Done.")
        return terminal_output.NO if options.check and plan.effective_changes else terminal_output.DONE
    folder = os.path.dirname(request.manifest)
    if not os.path.isdir(folder):
        return _apply_changes(options, request)  # reports everything that is missing
    with file_transaction.lock_folder(folder):
        _recover_interrupted_run(request)
        return _apply_changes(options, request)


def _print_other_hosts(options: ConfigureOptions, request: HostRequest) -> int:
    """Print a script, or a JSON document, that repeats the run on the other hosts."""
    plan = _plan_changes(options, request, _new_backup(request))
    for text in plan.warnings:
        print_message(f"warning: {text}")
    written = {
        change.path: change.after
        for change in plan.changes
        if change.after is not None and change.path not in {request.manifest, *request.deployments}
    }
    run_elsewhere = OtherHostRun(
        nodewise.__version__,
        ["configure", *flags_to_repeat_run(options, template=request.template)],
        plan.needed,
        written,
        request.manifest,
        plan.config_hash,
    )
    is_json = options.output == "json"
    click.echo(
        msgspec.json.encode(host_checks.encode_repeat_document(run_elsewhere))
        if is_json
        else host_checks.render_repeat_script(run_elsewhere),
        nl=is_json,
    )
    return terminal_output.DONE


def _apply_changes(options: ConfigureOptions, request: HostRequest) -> int:
    backup = None if options.restore is not None else _new_backup(request)
    plan = _plan_changes(options, request, backup)
    print_plan(request, plan)
    changes = plan.effective_changes
    file_transaction.commit_changes(changes, backup if changes else None)
    with contextlib.suppress(OSError):
        os.rmdir(plan.emptied)  # a folder that is not empty stays
    print_written_files(request, plan, backup)
    print_json_summary(options, plan, backup if changes else None, written=True)
    if any(change.path == request.manifest for change in changes):
        is_rollback = options.uninstall or options.restore is not None
        for line in (*_RESTART_LINES, _ROLLBACK_LINE if is_rollback else _NEXT_HOST_LINE):
            print_message(line)
    print_message("Done.")
    return terminal_output.DONE


def _plan_changes(options: ConfigureOptions, request: HostRequest, backup: Backup | None) -> ChangePlan:
    if options.uninstall:
        return control_plane_file_plan.plan_uninstall(request)
    if options.restore is not None:
        return control_plane_file_plan.plan_restore(request, _backup_to_restore(options, request))
    return control_plane_file_plan.plan_configuration(request, backup)


def _backup_to_restore(options: ConfigureOptions, request: HostRequest) -> str:
    if options.restore != NEWEST:
        return os.path.abspath(str(options.restore))
    parent = request.backup_dir or os.path.abspath(options.backup_dir)
    folder = file_transaction.newest_backup(parent, [os.path.basename(request.manifest)])
    if folder is None:
        raise BadInput(
            "no backup", [Problem("--restore", f"none in {parent}", "the name of a backup folder")]
        )
    print_message(f'Restoring from "{folder}"')
    return folder


def _new_backup(request: HostRequest) -> Backup | None:
    if not request.backup_dir:
        return None
    return Backup(
        request.backup_dir,
        file_transaction.new_backup_name(),
        request.manifest,
        control_plane_file_plan.cluster_ca_digest(request),
    )


def _recover_interrupted_run(request: HostRequest) -> None:
    """Restore the files that an interrupted run changed, and remove its temporary files."""
    if request.backup_dir and os.path.isdir(request.backup_dir):
        managed = control_plane_file_plan.list_managed_files(request)
        for outcome, folder in file_transaction.restore_interrupted_runs(request.backup_dir, managed):
            print_message(_RECOVERY_MESSAGES[outcome].format(folder))
    folders = [
        request.config_dir,
        request.cert_dir,
        os.path.dirname(request.manifest),
        *map(os.path.dirname, request.deployments),
    ]
    file_transaction.remove_temporary_files([os.path.realpath(folder) for folder in folders])


_RECOVERY_MESSAGES: Final = {
    "undone": 'An earlier run was interrupted; its changes were reverted with the backup "{}".',
    "left": "An earlier run was interrupted, and its files were modified since: they stay as they are. The previous "
    'content is in "{}".',
    "unreadable": 'warning: "{}" is no backup that can be used: its index is invalid, or users other than root can '
    "write to it. Move it elsewhere.",
    "foreign": 'warning: the backup "{}" is of an interrupted run, and names files that this command does not manage: '
    "they are not restored. Run that command again with its flags.",
}


def _build_configure_request(
    options: ConfigureOptions, roles: Sequence[AgentRole], weights: dict[str, int]
) -> HostRequest:
    pod = os.path.abspath(options.manifest)
    folder = os.path.dirname(pod)
    ca = "" if options.insecure else options.ca or os.path.join(os.path.dirname(folder), "pki/ca.crt")
    if not options.cert_dir:
        raise BadInput("file check error: mkdir : no such file or directory")

    return HostRequest(
        manifest=host_checks.resolve_path(pod),
        template=_scheduler_template_path(options),
        config_dir=os.path.abspath(options.config_dir),
        cert_dir=os.path.abspath(options.cert_dir),
        cert=os.path.abspath(options.cert),
        key=os.path.abspath(options.key),
        ca=os.path.abspath(ca) if ca else "",
        builtin=partial(_build_builtin_scheduler_config, options, roles, weights),
        container=options.container,
        version=options.kubernetes_version,
        existing="merge" if options.merge else "replace" if options.replace else "",
        allow_ca_key=options.allow_ca_key,
        deployments=[os.path.abspath(path) for path in (options.tas_depl, options.gas_depl) if path],
        backup_dir=os.path.abspath(options.backup_folder) if options.backup_folder else "",
        writes=not options.is_read_only,
        pod_folder=folder,
    )


def _scheduler_template_path(options: ConfigureOptions) -> str:
    """The path of the template; empty: the built-in one, which replaces only a missing default."""
    if options.template:
        return os.path.abspath(str(options.template))
    own = (options.extender, options.agents, options.extender_url, options.namespace, options.entry_weights)
    return "" if any(own) or not os.path.exists(DEFAULT_TEMPLATE) else os.path.abspath(DEFAULT_TEMPLATE)


def _build_builtin_scheduler_config(
    options: ConfigureOptions, roles: Sequence[AgentRole], weights: dict[str, int], kubeconfig: str, ca: str
) -> dict[str, Any]:
    several = options.one_entry_per_agent
    own = {
        role.agent: role.entry_weight for role in roles if role.entry_weight and role.prioritizes and several
    }
    url = options.extender_url or f"https://nodewise.{options.service_namespace}.svc:9001"
    files = EntryFiles()
    if not url.startswith("http:"):
        folder = scheduler_static_pod.CERTS_MOUNT
        files = EntryFiles(ca or "none", f"{folder}/client.crt", f"{folder}/client.key")
    configuration = scheduler_configuration.build_scheduler_configuration(
        roles,
        SchedulerOptions(
            url,
            files,
            whole_nodes=options.whole_nodes,
            filter_all_pods=options.filter_all_pods,
            one_entry_per_agent=several,
            weights={**own, **weights},
            kubeconfig=kubeconfig or "/etc/kubernetes/scheduler.conf",
        ),
    )
    for entry in configuration["extenders"]:
        if "tlsConfig" in entry and not ca:
            entry["tlsConfig"] = {"insecure": True, **entry["tlsConfig"]}
            del entry["tlsConfig"]["caFile"]
    return configuration


def check_container_mounts(options: ConfigureOptions) -> None:
    """BadInput, in a container of our image, for folders that are lost with the container: the scheduler would not
    start.
    """
    if not os.environ.get(_IN_IMAGE):
        return
    mounts = host_checks.parse_mountinfo(_MOUNTS.read_bytes().decode("utf-8", "surrogateescape"))
    folders = {flag: os.path.realpath(folder) for flag, folder in _folders_written_by_run(options).items()}
    if problems := host_checks.container_folder_problems(folders, mounts):
        raise BadInput("file check error", problems)
    for mount in host_checks.mounts_with_uncertain_host_path(folders.values(), mounts):
        text = f"{mount.point} is {mount.root} of its file system; the host has to have it as {mount.point}"
        click.echo(f"warning: {text}", err=True)


def _folders_written_by_run(options: ConfigureOptions) -> dict[str, str]:
    """The folders that a run writes to, by flag."""
    folders = {"-m": os.path.dirname(os.path.abspath(options.manifest)), "-d": options.config_dir}
    if options.backup_folder:
        folders["-b"] = options.backup_folder
    if options.restore is None and not options.uninstall:
        folders["--cert-dir"] = options.cert_dir
    return {flag: folder for flag, folder in folders.items() if folder}
