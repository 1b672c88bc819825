"""Options of `nodewise configure`: the flags of the older configurator by their names, and newer ones."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from nodewise.base.errors import BadSettings, Problem
from nodewise.base.option import Option
from nodewise.cli.parameter_types import AgentNames
from nodewise.cli.setting_declarations import CommandOptions, Setting, list_settings
from nodewise.install.platform_manifests import PLATFORMS

DEFAULT_TEMPLATE: Final = "deploy/extender-configuration/scheduler-config.yaml"
NEWEST: Final = "newest"
NO_BACKUP_DIR: Final = "/dev/null"
HOST: Final = "host"
NATIVE: Final = "native"
SECOND: Final = "second-scheduler"
MODES: Final = (HOST, NATIVE, SECOND, *PLATFORMS)
SECOND_SCHEDULER_NAME: Final = "nodewise-scheduler"
_HOST_SECTION: Final = "Files of this host"
_ENTRY_SECTION: Final = "Entries of kube-scheduler, without a template"
_MODE_SECTION: Final = "Clusters whose static pods are not edited"


class ConfigureOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise configure`."""

    dry_run: bool = False
    """Show the changes without applying them."""

    check: bool = False
    """As --dry-run, with exit code 3 if something would change."""

    print_plan: bool = False
    """Change nothing, and print a script that repeats this run on the other control-plane hosts. The script compares
    the required files, runs this command, and compares the results."""

    merge: bool = False
    """Add our entries to the configuration in use."""

    replace: bool = False
    """Replace the configuration in use. With --restore: also restore a backup of another version or cluster."""

    restore: Annotated[str | None, Option(metavar="[FOLDER]", value_of_bare_flag=NEWEST)] = None
    """Restore a backup. Without a folder: the newest one."""

    uninstall: bool = False
    """Remove what earlier runs added, and restore what they replaced."""

    no_backup: bool = False
    """Make no backup, as -b /dev/null."""

    output: Annotated[Literal["text", "json"], Option("-o --output")] = "text"
    """json: a summary on standard output."""

    no_color: bool = False
    """No colours on a terminal."""

    manifest: Annotated[str, Option("-m --manifest", metavar="FILE", section=_HOST_SECTION)] = (
        "/etc/kubernetes/manifests/kube-scheduler.yaml"
    )
    """Manifest of kube-scheduler's static pod."""

    template: Annotated[
        str,
        Option(
            "-f --template",
            metavar="FILE",
            section=_HOST_SECTION,
            help=f"Template of kube-scheduler's configuration. Default: {DEFAULT_TEMPLATE} if it exists, "
            "else a built-in one, by --agents.",
        ),
    ] = ""

    config_dir: Annotated[str, Option("-d --config-dir", metavar="DIR", section=_HOST_SECTION)] = (
        "/etc/kubernetes"
    )
    """Folder for the configuration, whose name is that of the template."""

    backup_dir: Annotated[str, Option("-b --backup-dir", metavar="DIR", section=_HOST_SECTION)] = (
        "/etc/kubernetes"
    )
    """Folder in which a backup folder is created."""

    cert: Annotated[str, Option(metavar="FILE", section=_HOST_SECTION)] = "/etc/kubernetes/pki/ca.crt"
    """Client certificate of kube-scheduler. The default is a CA, as in the older configurator, and is refused."""

    key: Annotated[str, Option(metavar="FILE", section=_HOST_SECTION)] = "/etc/kubernetes/pki/ca.key"
    """Key of the client certificate; never the key of a CA."""

    cert_dir: Annotated[str, Option(metavar="DIR", section=_HOST_SECTION)] = "/etc/certs/"
    """Folder to which certificate and key are copied."""

    ca: Annotated[str, Option(metavar="FILE", section=_HOST_SECTION)] = ""
    """CA of nodewise's certificate, copied as well. Default: pki/ca.crt beside the manifest's folder."""

    insecure: Annotated[bool, Option(section=_HOST_SECTION)] = False
    """Connect without a CA: anyone can respond in place of nodewise."""

    allow_ca_key: Annotated[bool, Option(section=_HOST_SECTION)] = False
    """Copy the key of a CA. Anyone who can read it can act as any user of the cluster."""

    kubernetes_version: Annotated[str, Option(metavar="VERSION", section=_HOST_SECTION)] = ""
    """Version of kube-scheduler, such as 1.30, if its image does not name it."""

    container: Annotated[str, Option(metavar="NAME", section=_HOST_SECTION)] = ""
    """Name of the container, if it is not kube-scheduler."""

    tas_depl: Annotated[str, Option(metavar="FILE", section=_HOST_SECTION)] = ""
    """Deployment of TAS in which the node role is renamed for Kubernetes before 1.24."""

    gas_depl: Annotated[str, Option(metavar="FILE", section=_HOST_SECTION)] = ""
    """Deployment of GAS, likewise."""

    agents: Annotated[str, Option(metavar="NAMES", type=AgentNames(), section=_ENTRY_SECTION)] = ""
    """Agents that kube-scheduler calls. Default: telemetry."""

    extender: Annotated[Literal["tas", "gas", "both"] | None, Option(section=_ENTRY_SECTION)] = None
    """Agents, by the names of the older systems."""

    one_entry_per_agent: Annotated[bool, Option(section=_ENTRY_SECTION)] = False
    """One entry for each agent instead of one for all."""

    entry_weights: Annotated[str, Option("--weights --weight", metavar="WEIGHTS", section=_ENTRY_SECTION)] = (
        ""
    )
    """Weight of the scores: one number, or by agent, such as `telemetry=5,gpu=20`."""

    filter_all_pods: Annotated[bool, Option(section=_ENTRY_SECTION)] = False
    """Filter pods that no resource marks as well. None of them is scheduled while nodewise is down."""

    whole_nodes: Annotated[bool, Option(section=_ENTRY_SECTION)] = False
    """Send whole nodes, for `nodewise extender --no-cluster`."""

    extender_url: Annotated[str, Option("--extender-url --url", metavar="URL", section=_ENTRY_SECTION)] = ""
    """URL of nodewise for kube-scheduler."""

    namespace: Annotated[str, Option(metavar="NAMESPACE", section=_ENTRY_SECTION)] = ""
    """Namespace of nodewise's Service. Default: nodewise."""

    mode: Annotated[
        str,
        Option(
            metavar="MODE",
            section=_MODE_SECTION,
            choices=MODES,
            help="host: change this host. native: print the objects of native mode, in which kube-scheduler does not "
            "call nodewise, for clusters from Kubernetes 1.36. second-scheduler: print a second scheduler with "
            f"nodewise in the same pod, for any cluster. {', '.join(PLATFORMS)}: print files for such clusters.",
        ),
    ] = HOST

    scheduler_name: Annotated[
        str,
        Option(
            metavar="NAME",
            section=_MODE_SECTION,
            help=f"Name of the second scheduler. Default: {SECOND_SCHEDULER_NAME}.",
        ),
    ] = ""

    image: Annotated[str, Option(metavar="IMAGE", section=_MODE_SECTION)] = ""
    """Image of nodewise for native mode or the second scheduler."""

    prometheus_url: Annotated[tuple[str, ...], Option(metavar="URL", section=_MODE_SECTION)] = ()
    """URL of Prometheus, for native mode or the second scheduler; repeat the option for several. Default: the custom
    metrics API and metrics-server."""

    into: Annotated[str, Option(metavar="DIR", section=_MODE_SECTION)] = ""
    """Folder to write the files of a mode to, instead of printing them."""

    @property
    def backup_folder(self) -> str:
        """The folder for backups; empty without backups."""
        return "" if self.no_backup or self.backup_dir == NO_BACKUP_DIR else self.backup_dir

    @property
    def is_read_only(self) -> bool:
        return self.dry_run or self.check or self.print_plan

    @property
    def service_namespace(self) -> str:
        return self.namespace or "nodewise"


_PATHS: Final = frozenset(
    ["manifest", "config_dir", "backup_dir", "cert", "key", "cert_dir", "ca", "tas_depl", "gas_depl"]
)
_OF_THIS_RUN: Final = frozenset(
    {"print_plan", "dry_run", "check", "output", "no_color", "template", "restore"}
)
"""Options that are not repeated on the other hosts. The template is passed with its absolute path."""
_OF_MODES: Final = ("scheduler_name", "image", "prometheus_url", "into")
_NOT_OF_NATIVE: Final = (
    "agents",
    "extender",
    "one_entry_per_agent",
    "entry_weights",
    "filter_all_pods",
    "whole_nodes",
    "extender_url",
    "scheduler_name",
    "into",
)
"""Options about kube-scheduler, which needs no configuration in native mode, and about files."""
_OF_HOSTS: Final = (
    "check",
    "print_plan",
    "dry_run",
    "merge",
    "replace",
    "restore",
    "uninstall",
    "template",
    "allow_ca_key",
    "container",
)
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
    ("template", "agents"),
    ("template", "extender_url"),
    ("template", "namespace"),
    ("template", "entry_weights"),
    ("extender", "agents"),
    ("extender_url", "namespace"),
    ("print_plan", "check"),
    ("print_plan", "restore"),
    ("print_plan", "uninstall"),
)
"""Pairs of options that exclude each other."""
_SETTINGS: Final = {setting.field: setting for setting in list_settings(ConfigureOptions)}


_LABEL: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAMES: Final = {
    "--namespace": (_LABEL, "a namespace's name: a-z, 0-9 and -, at most 63"),
    "--name": (_LABEL, "a name of a-z, 0-9 and -, at most 63"),
    "--scheduler-name": (
        rf"(?=.{{1,63}}\Z){_LABEL}(\.{_LABEL})*",
        "a name of a-z, 0-9, - and dots, at most 63",
    ),
    "--image": (r"[a-zA-Z0-9][-\w.:/@]*", "an image's name, such as nodewise:1.0"),
}


def check_object_names(names: Mapping[str, str], prometheus_urls: Iterable[str] = ()) -> None:
    """`BadSettings` for names, by flag, that are not valid in objects, and for URLs that are no addresses."""
    problems = [
        Problem("--prometheus-url", repr(url), "an address such as http://prometheus.monitoring:9090")
        for url in prometheus_urls
        if not re.fullmatch(r"https?://[!-~]+", url)
    ]
    problems += [
        Problem(flag, repr(name), _NAMES[flag][1])
        for flag, name in names.items()
        if name and not re.fullmatch(_NAMES[flag][0], name, re.ASCII)
    ]
    if problems:
        raise BadSettings("settings", problems)


def check_options_of_mode(options: ConfigureOptions) -> None:
    """`BadSettings` for options that the mode does not have."""
    if options.mode == HOST:
        problems = [
            Problem(_SETTINGS[field].flag, "given without --mode", "a mode that has it")
            for field in _OF_MODES
            if getattr(options, field)
        ]
    else:
        unknown = list(_OF_HOSTS)
        unknown += _NOT_OF_NATIVE if options.mode == NATIVE else ()
        unknown += ["prometheus_url"] if options.mode in PLATFORMS else ()
        problems = [
            Problem(_SETTINGS[field].flag, f"given with --mode {options.mode}", "no such flag there")
            for field in unknown
            if getattr(options, field)
        ]
    if problems:
        raise BadSettings("settings", problems)


def check_contradictory_options(options: ConfigureOptions) -> None:
    """`BadSettings` for options that contradict each other, and for empty ones."""
    problems = [
        Problem(_SETTINGS[first].flag, f"given with {_SETTINGS[second].flag}", "one of the two options")
        for first, second in _CONTRADICTIONS
        if getattr(options, first) and getattr(options, second)
    ]
    if not options.backup_dir:
        problems.append(Problem("-b", "empty", "a folder, or --no-backup"))
    if problems:
        raise BadSettings("settings", problems)


def flags_to_repeat_run(options: ConfigureOptions, *, template: str) -> Iterator[str]:
    """The flags that repeat this run from any folder and on another host."""
    if template:
        yield f"--template={template}"
    for setting in _SETTINGS.values():
        if setting.field not in _OF_THIS_RUN:
            yield from _flag_to_repeat_run(setting, getattr(options, setting.field))


def _flag_to_repeat_run(setting: Setting, value: str | bool | None) -> Iterator[str]:
    if value == setting.default or value in (None, False):
        return
    if value is True:
        yield setting.flag
    else:
        yield f"{setting.flag}={Path(str(value)).absolute() if setting.field in _PATHS else value}"
