"""`nodewise configure manifests`: prints parts of an installation, such as definitions and rights."""

from typing import Annotated, Final

import click

from nodewise.base.errors import BadSettings, Problem, did_you_mean
from nodewise.base.option import Option
from nodewise.cli.configure.options import check_object_names
from nodewise.cli.options_from_settings import CommandLine, settings_command
from nodewise.cli.parameter_types import PartName
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.install import platform_manifests

_PARTS: Final = ", ".join(platform_manifests.PARTS)


class ManifestsOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise configure manifests`."""

    namespace: Annotated[str, Option("-n --namespace", metavar="NAMESPACE")] = "nodewise"
    """Namespace of nodewise."""

    name: Annotated[str, Option(metavar="NAME")] = "nodewise"
    """Name of nodewise's service account, with which the names of the objects begin, as in the chart."""


@settings_command(
    "manifests",
    ManifestsOptions,
    more=[click.Argument(["parts"], nargs=-1, required=True, metavar="PART...", type=PartName())],
    short_help="Print definitions, rights or admission policies of nodewise.",
)
def command(command_line: CommandLine) -> None:
    """Print parts of an installation for kubectl apply: definitions, rights and admission policies.

    \b
    Parts:
      crds           definitions of the kinds of policies
      rbac           rights of extender and controller, and limits of writes
      policy-fields  refuses unknown fields of policies
      policy-roles   roles of users who write policies
      trust          limits who may trust a namespace
      pod-admission  warns of pods with a misspelt policy label or no request
      native         changes pods of policies in native mode (Kubernetes 1.36)
      controller     rights of the controller of native mode
      device-taints  rights to taint devices of DRA drivers
      extender-pods  adds the request of the extender to pods (Kubernetes 1.36)
      gpu            rights of the agent gpu
      memory         rights of agents that keep what they learn
      doctor         rights of nodewise doctor
      reader         rights of nodewise explain, decide and metrics

    The workloads are printed by nodewise configure --mode.

    \b
    Examples:
      nodewise configure manifests crds | kubectl apply --server-side -f -
      nodewise configure manifests rbac gpu | kubectl apply --server-side -f -

    \b
    Exit codes:
      0  printed
      2  the command line or a setting is invalid
    """
    options = command_line.settings(ManifestsOptions)
    check_object_names({"--namespace": options.namespace, "--name": options.name})
    parts: tuple[str, ...] = click.get_current_context().params["parts"]
    if unknown := [part for part in parts if part not in platform_manifests.PARTS]:
        expected = f"one of {_PARTS}{did_you_mean(unknown[0], [*platform_manifests.PARTS])}"
        raise BadSettings("settings", [Problem("PART", ", ".join(map(repr, unknown)), expected)])
    click.echo(platform_manifests.build_parts(parts, options.namespace, options.name), nl=False)
