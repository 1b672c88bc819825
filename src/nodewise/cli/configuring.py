"""`nodewise configure` on a host of the control plane: what is asked, and done."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec

import nodewise
from nodewise.cli import configured, exits, hostflags
from nodewise.configure import (
    backups,
    files,
    host,
    manifest,
    places,
    repeating,
    scheduler,
    transaction,
    undoing,
)
from nodewise.configure.backups import Backup
from nodewise.configure.host import Asked, Plan
from nodewise.configure.repeating import Repeat
from nodewise.configure.scheduler import Papers, Role, Wish
from nodewise.errors import BadInput, NodewiseError, Problem

_NONE: Final = "/dev/null"
_GPU_WEIGHT: Final = 20
"""A placement of cards counts more than two of the default plugins."""


def run(given: dict[str, Any], roles: Sequence[Role], weights: dict[str, int]) -> int:
    """Do what the flags say; the exit code."""
    try:
        return _run(given, roles, weights)
    except BadInput as error:
        return configured.problems(error)
    except OSError as error:
        raise NodewiseError("file check error", [Problem(str(error.filename), _reason(error), "")]) from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _run(given: dict[str, Any], roles: Sequence[Role], weights: dict[str, int]) -> int:
    hostflags.check(given)
    configured.say(f"nodewise {nodewise.__version__}")
    asked = _asked(given, roles, weights)
    if given["print_plan"]:
        return _repeat(given, asked)
    if given["dry_run"] or given["check"]:
        return _look(given, asked)
    folder = os.path.dirname(asked.manifest)
    if not os.path.isdir(folder):
        return _change(given, asked)  # which tells all that is missing
    with transaction.alone(folder):
        _mend(asked)
        return _change(given, asked)


def _look(given: dict[str, Any], asked: Asked) -> int:
    plan = _plan(given, asked, _backup(asked))
    configured.plan_of(asked, plan)
    configured.changes(given, asked, plan)
    configured.summary(given, plan, None, written=False)
    configured.say("Done.")
    return exits.NO if given["check"] and plan.changed else exits.DONE


def _repeat(given: dict[str, Any], asked: Asked) -> int:
    """Tell how the other hosts get the same."""
    plan = _plan(given, asked, _backup(asked))
    for text in plan.warnings:
        configured.say(f"warning: {text}")
    written = {
        change.path: change.after
        for change in plan.changes
        if change.after is not None and change.path not in {asked.manifest, *asked.deployments}
    }
    found = Repeat(
        nodewise.__version__,
        ["configure", *hostflags.words(given, template=asked.template)],
        plan.needed,
        written,
        asked.manifest,
        plan.config_hash,
    )
    is_json = given["output"] == "json"
    click.echo(
        msgspec.json.encode(repeating.value(found)) if is_json else repeating.script(found), nl=is_json
    )
    return exits.DONE


def _change(given: dict[str, Any], asked: Asked) -> int:
    backup = None if given["restore"] is not None else _backup(asked)
    plan = _plan(given, asked, backup)
    configured.plan_of(asked, plan)
    changes = plan.changed
    transaction.commit(changes, backup if changes else None)
    with contextlib.suppress(OSError):
        os.rmdir(plan.emptied)  # none, or not empty: it stays
    configured.done(asked, plan, backup)
    configured.summary(given, plan, backup if changes else None, written=True)
    if any(change.path == asked.manifest for change in changes):
        configured.next_step(given)
    configured.say("Done.")
    return exits.DONE


def _plan(given: dict[str, Any], asked: Asked, backup: Backup | None) -> Plan:
    if given["uninstall"]:
        return undoing.removal(asked)
    if given["restore"] is not None:
        return undoing.restored(asked, _named_backup(given, asked))
    return host.plan(asked, backup)


def _named_backup(given: dict[str, Any], asked: Asked) -> str:
    if given["restore"] != hostflags.NEWEST:
        return os.path.abspath(str(given["restore"]))
    parent = asked.backup_dir or os.path.abspath(given["backup_dir"])
    found = backups.newest(parent, [os.path.basename(asked.manifest)])
    if found is None:
        raise BadInput(
            "no backup", [Problem("--restore", f"none in {parent}", "the name of a backup folder")]
        )
    configured.say(f'Restoring from "{found}"')
    return found


def _backup(asked: Asked) -> Backup | None:
    if not asked.backup_dir:
        return None
    return Backup(asked.backup_dir, backups.new_name(), asked.manifest, host.cluster(asked))


def _mend(asked: Asked) -> None:
    """What a run left that was ended."""
    if asked.backup_dir and os.path.isdir(asked.backup_dir):
        for mended in transaction.recover(asked.backup_dir, host.managed(asked)):
            configured.say(_MENDED[mended.what].format(mended.folder))
    folders = [
        asked.config_dir,
        asked.cert_dir,
        os.path.dirname(asked.manifest),
        *map(os.path.dirname, asked.deployments),
    ]
    files.sweep([os.path.realpath(folder) for folder in folders])


_MENDED: Final = {
    "undone": 'An earlier run did not end; all is as before it, by its backup "{}".',
    "left": "An earlier run did not end, and somebody has changed its files since: they stay as they are. What was "
    'there before is in "{}".',
    "unreadable": 'warning: "{}" is no backup that can be used: its index makes no sense, or others than root can '
    "write to it. Move it elsewhere.",
    "foreign": 'warning: "{}" is of a run that did not end, and names files that this command does not manage: they '
    "stay as they are. Run that command again with its flags.",
}


def _asked(given: dict[str, Any], roles: Sequence[Role], weights: dict[str, int]) -> Asked:
    pod = os.path.abspath(given["manifest"])
    pki = os.path.join(os.path.dirname(os.path.dirname(pod)), "pki")
    ca = "" if given["insecure"] else given["ca"] or os.path.join(pki, "ca.crt")
    if not given["cert_dir"]:
        raise BadInput("file check error: mkdir : no such file or directory")
    backup = (
        "" if given["no_backup"] or given["backup_dir"] == _NONE else os.path.abspath(given["backup_dir"])
    )
    only_look = given["dry_run"] or given["check"] or given["print_plan"]

    def builtin(kubeconfig: str, ca: str) -> dict[str, Any]:
        return _builtin(given, roles, weights, kubeconfig, ca)

    return Asked(
        manifest=places.real(pod),
        template=_template(given),
        config_dir=os.path.abspath(given["config_dir"]),
        cert_dir=os.path.abspath(given["cert_dir"]),
        cert=os.path.abspath(given["cert"]),
        key=os.path.abspath(given["key"]),
        ca=os.path.abspath(ca) if ca else "",
        builtin=builtin,
        container=given["container"],
        version=given["kubernetes_version"],
        existing="merge" if given["merge"] else "replace" if given["replace"] else "",
        allow_ca_key=given["allow_ca_key"],
        deployments=[os.path.abspath(given[name]) for name in ("tas_depl", "gas_depl") if given[name]],
        backup_dir=backup,
        writes=not only_look,
        pod_folders=[os.path.dirname(pod)],
    )


def _template(given: dict[str, Any]) -> str:
    """The file; empty for the built-in one, which stands in where only the default is missing."""
    if given["template"]:
        return os.path.abspath(str(given["template"]))
    wants_own = any(
        given[name] for name in ("extender", "host_agents", "extender_url", "namespace", "entry_weights")
    )
    return os.path.abspath(hostflags.TEMPLATE) if os.path.exists(hostflags.TEMPLATE) and not wants_own else ""


def _builtin(
    given: dict[str, Any], roles: Sequence[Role], weights: dict[str, int], kubeconfig: str, ca: str
) -> dict[str, Any]:
    several = given["host_one_entry_per_agent"]
    own = {role.agent: _GPU_WEIGHT for role in roles if role.agent == "gpu" and role.prioritizes and several}
    url = given["extender_url"] or f"https://nodewise.{given['namespace'] or 'nodewise'}.svc:9001"
    papers = Papers()
    if not url.startswith("http:"):
        folder = manifest.CERTS_MOUNT
        papers = Papers(ca or "none", f"{folder}/client.crt", f"{folder}/client.key")
    found = scheduler.configuration(
        roles,
        Wish(
            url,
            papers,
            whole_nodes=given["host_whole_nodes"],
            filter_all_pods=given["host_filter_all_pods"],
            one_entry_per_agent=several,
            weights={**own, **weights},
            kubeconfig=kubeconfig or "/etc/kubernetes/scheduler.conf",
        ),
    )
    for entry in found["extenders"]:
        if "tlsConfig" in entry and not ca:
            entry["tlsConfig"] = {"insecure": True, **entry["tlsConfig"]}
            del entry["tlsConfig"]["caFile"]
    return found
