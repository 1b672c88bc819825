"""The flags of `nodewise configure` on a host: all of the older configurator by their names, and newer ones."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from nodewise.cli import forms
from nodewise.cli.sections import titled
from nodewise.errors import BadSettings, Problem

TEMPLATE: Final = "deploy/extender-configuration/scheduler-config.yaml"
NEWEST: Final = "newest"
_PATHS: Final = frozenset(
    ["manifest", "config_dir", "backup_dir", "cert", "key", "cert_dir", "ca", "tas_depl", "gas_depl"]
)
_FOR_NOW: Final = frozenset({"print_plan", "dry_run", "check", "output", "no_color", "template", "restore"})
"""Not part of what is done elsewhere; the template is named whole."""
_CONTRADICTIONS: Final = (
    ("merge", "replace"),
    ("insecure", "ca"),
    ("uninstall", "restore"),
    ("uninstall", "merge"),
    ("uninstall", "replace"),
    ("uninstall", "template"),
    ("restore", "merge"),
    ("restore", "template"),
    ("template", "extender"),
    ("template", "host_agents"),
    ("template", "extender_url"),
    ("template", "namespace"),
    ("template", "entry_weights"),
    ("extender", "host_agents"),
    ("extender_url", "namespace"),
    ("print_plan", "check"),
    ("print_plan", "restore"),
    ("print_plan", "uninstall"),
)
"""Flags of which one at most is given."""


def flag(name: str) -> str:
    """How people write a parameter."""
    return next(max(one.opts, key=len) for one in parameters() if one.name == name)


def check(given: Mapping[str, Any]) -> None:
    """BadSettings names flags that contradict each other, and those that are empty."""
    problems = [
        Problem(flag(one), f"given with {flag(other)}", "one of them")
        for one, other in _CONTRADICTIONS
        if given[one] and given[other]
    ]
    if not given["backup_dir"]:
        problems.append(Problem("-b", "empty", "a folder, or --no-backup"))
    if problems:
        raise BadSettings("settings", problems)


def words(given: Mapping[str, Any], *, template: str) -> Iterator[str]:
    """The flags that say the same in any folder."""
    if template:
        yield f"--template={template}"
    for one in parameters():
        value = given[str(one.name)]
        if one.name in _FOR_NOW or value == one.default or value in (None, False):
            continue
        if value is True:
            yield flag(str(one.name))
        else:
            yield f"{flag(str(one.name))}={Path(value).absolute() if one.name in _PATHS else value}"


def parameters() -> list[click.Parameter]:
    """All of them, with what they are about."""
    return [
        *_actions(),
        *titled("Files of this host", _files()),
        *titled("What kube-scheduler is to ask, where no template says it", _asking()),
    ]


def _actions() -> list[click.Parameter]:
    """What is to be done."""
    option = click.Option
    return [
        option(["--dry-run"], is_flag=True, help="Show what would change, and change nothing."),
        option(["--check"], is_flag=True, help="As --dry-run, with exit code 3 when something would change."),
        option(["--print-plan"], is_flag=True,
               help="Change nothing, and print a script that does the same on the other hosts of the control plane: "
               "it compares the files that it needs, runs this command, and compares what came out."),
        option(["--merge"], is_flag=True, help="Put our entries into the configuration that is in use."),
        option(["--replace"], is_flag=True,
               help="Replace the configuration that is in use. With --restore: bring back a backup of another version "
               "or cluster, too."),
        option(["--restore"], is_flag=False, flag_value=NEWEST, default=None, metavar="[FOLDER]",
               help="Bring a backup back; the newest if none is named."),
        option(["--uninstall"], is_flag=True,
               help="Take out what was put in, and nothing else; what was in its place comes back."),
        option(["--no-backup"], is_flag=True, help="Make no backup, as -b /dev/null."),
        forms.option(["text", "json"], "json: a summary on stdout."),
        option(["--no-color"], is_flag=True, help="No colours on a terminal."),
    ]  # fmt: skip


def _files() -> list[click.Parameter]:
    """What is read and written."""
    option = click.Option
    return [
        option(["-m", "--manifest"], metavar="FILE", default="/etc/kubernetes/manifests/kube-scheduler.yaml",
               show_default=True,
               help="The static pod of kube-scheduler."),
        option(["-f", "--template"], metavar="FILE", default="",
               help=f"Template of kube-scheduler's configuration. Without it {TEMPLATE} where that exists, else "
               "one of our own, by --agents."),
        option(["-d", "--config-dir"], metavar="DIR", default="/etc/kubernetes", show_default=True,
               help="Folder for the configuration, which takes the template's name."),
        option(["-b", "--backup-dir"], metavar="DIR", default="/etc/kubernetes", show_default=True,
               help="Folder in which a folder with a backup is made."),
        option(["--cert"], metavar="FILE", default="/etc/kubernetes/pki/ca.crt", show_default=True,
               help="kube-scheduler's client certificate. The default is a CA's, as of old, and is refused."),
        option(["--key"], metavar="FILE", default="/etc/kubernetes/pki/ca.key", show_default=True,
               help="Its key; never a CA's."),
        option(["--cert-dir"], metavar="DIR", default="/etc/certs/", show_default=True,
               help="Folder to which they are copied."),
        option(["--ca"], metavar="FILE", default="",
               help="CA of nodewise's certificate, copied as well. Default: pki/ca.crt beside the manifest's folder."),
        option(["--insecure"], is_flag=True, help="Without a CA: anybody can answer in nodewise's place."),
        option(["--allow-ca-key"], is_flag=True,
               help="Copy the key of a CA, with which whoever reads it can be anybody in the cluster."),
        option(["--kubernetes-version"], metavar="VERSION", default="",
               help="Such as 1.30, where the image does not say."),
        option(["--container"], metavar="NAME", default="",
               help="The container's name, if it is not kube-scheduler."),
        option(["--tas-depl"], metavar="FILE", default="",
               help="Deployment of TAS in which nodes are called as before 1.24."),
        option(["--gas-depl"], metavar="FILE", default="", help="The same of GAS."),
    ]  # fmt: skip


def _asking() -> list[click.Parameter]:
    """What the entries say."""
    option = click.Option
    return [
        option(["--agents", "host_agents"], metavar="NAMES", default="",
               help="Agents to have asked. Default: telemetry."),
        option(["--extender"], type=click.Choice(["tas", "gas", "both"]), default=None,
               help="The same in the older systems' names."),
        option(["--one-entry-per-agent", "host_one_entry_per_agent"], is_flag=True,
               help="An entry for each agent, not one for all."),
        option(["--weights", "--weight", "entry_weights"], metavar="WEIGHTS", default="",
               help="How much scores count: one number, or by agent, such as `telemetry=5,gpu=20`."),
        option(["--filter-all-pods", "host_filter_all_pods"], is_flag=True,
               help="Filter pods that nothing marks as well: none of them is placed while nodewise does not answer."),
        option(["--whole-nodes", "host_whole_nodes"], is_flag=True,
               help="Have whole nodes sent, for `nodewise extender --no-cluster`."),
        option(["--extender-url", "--url", "extender_url"], metavar="URL", default="",
               help="Where kube-scheduler finds nodewise."),
        option(["--namespace"], metavar="NAMESPACE", default="",
               help="Namespace of nodewise's Service. Default: nodewise."),
    ]  # fmt: skip
