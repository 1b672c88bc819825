"""`nodewise configure --mode`: objects and files for clusters whose static pods are not edited."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import msgspec

import nodewise
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Problem
from nodewise.cli.configure.options import NATIVE, SECOND, SECOND_SCHEDULER_NAME, ConfigureOptions
from nodewise.install import platform_manifests, scheduler_configuration, scheduler_versions
from nodewise.install.platform_manifests import PLATFORMS, Platform
from nodewise.install.scheduler_configuration import AgentRole, EntryFiles, SchedulerOptions
from nodewise.install.scheduler_versions import SchedulerVersion
from nodewise.kube import object_files, yaml_writer
from nodewise.kube.api_client_creation import open_api
from nodewise.kube.kubeconfig import KubeOptions


def run(options: ConfigureOptions, roles: Sequence[AgentRole], weights: Mapping[str, int]) -> None:
    """Print the objects or files of a mode, or write them into a folder."""
    if options.mode == NATIVE:
        try:
            version, _ = _kubernetes_version(options.kubernetes_version)
        except _UnknownVersionError as error:
            needed = f"Native mode needs Kubernetes {platform_manifests.OLDEST_NATIVE} or later."
            click.echo(f"{needed} The version of the cluster could not be read: {error}.", err=True)
        else:
            platform_manifests.check_native_version(version)
            _print_version_warnings(version, "Kubernetes")
        text = platform_manifests.build_native_manifest(
            options.service_namespace, _image(options), options.prometheus_url
        )
        if options.output == "json":
            documents = object_files.split_documents(text.encode(), "deploy")
            items = [msgspec.Raw(document) for _, document in documents]
            click.echo(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items}))
        else:
            click.echo(text, nl=False)
    elif options.mode == SECOND:
        _print_second_scheduler(options, roles, weights)
    else:
        _print_platform_files(options, PLATFORMS[options.mode], roles, weights)


def _image(options: ConfigureOptions) -> str:
    return options.image or f"nodewise:{nodewise.__version__}"


def _print_second_scheduler(
    options: ConfigureOptions, roles: Sequence[AgentRole], weights: Mapping[str, int]
) -> None:
    try:
        version, tag = _kubernetes_version(options.kubernetes_version)
    except _UnknownVersionError as error:
        expected = (
            "the version of the cluster, which could not be read: kube-scheduler must have the same version"
        )
        raise BadSettings("settings", [Problem("--kubernetes-version", str(error), expected)]) from error
    _print_version_warnings(version)
    name = options.scheduler_name or SECOND_SCHEDULER_NAME
    if name == scheduler_configuration.DEFAULT_SCHEDULER:
        raise BadSettings(
            "settings", [Problem("--scheduler-name", repr(name), "another: that is the cluster's own")]
        )
    scheduler_options = _scheduler_options(options, weights, platform_manifests.URL)._replace(
        scheduler_name=name
    )
    configuration = scheduler_configuration.build_scheduler_configuration(roles, scheduler_options) | {
        "apiVersion": version.api_version
    }
    objects = platform_manifests.build_second_scheduler_objects(
        platform_manifests.SecondSchedulerOptions(
            name,
            options.service_namespace,
            roles,
            f"registry.k8s.io/kube-scheduler:{tag}",
            _image(options),
            configuration,
            options.prometheus_url,
        )
    )
    if options.output == "json":
        click.echo(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}))
    else:
        click.echo(yaml_writer.dump_all(objects), nl=False)
    click.echo(
        f"Pods choose it with schedulerName: {name}. Policies need deploy/crds applied first.", err=True
    )


class _UnknownVersionError(Exception):
    """The version of the cluster could not be read; the text is the reason."""


def _kubernetes_version(text: str) -> tuple[SchedulerVersion, str]:
    """The version and image tag of kube-scheduler, from the flag or from the cluster."""
    if text:
        version = scheduler_versions.parse_version(text)
        whole = text.removeprefix("v")
        return version, f"v{whole}" if whole.count(".") > 1 else f"v{whole}.0"
    try:
        server_version = asyncio.run(_cluster_kubernetes_version())
    except NodewiseError as error:
        raise _UnknownVersionError(str(error)) from error
    tag = server_version.partition("+")[0].partition("-")[0]
    return scheduler_versions.parse_version(tag), tag


def _print_version_warnings(version: SchedulerVersion, program: str = "kube-scheduler") -> None:
    for text in version.untested_warnings(program):
        click.echo(f"warning: {text}", err=True)


async def _cluster_kubernetes_version() -> str:
    async with open_api(KubeOptions()) as api:
        body = await api.get("/version", timeout_s=5.0)
    try:
        return str(msgspec.json.decode(body)["gitVersion"])
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise BadInput("/version", [Problem("gitVersion", "no value", "a version")]) from error


def _print_platform_files(
    options: ConfigureOptions, platform: Platform, roles: Sequence[AgentRole], weights: Mapping[str, int]
) -> None:
    namespace = options.service_namespace
    service = f"nodewise.{namespace}.svc"
    if not platform.has_dns and not options.extender_url:
        expected = "https:// and the Service's ClusterIP with its port: kube-scheduler finds no Service by name there"
        raise BadSettings("settings", [Problem("--extender-url", "not given", expected)])
    url = options.extender_url or f"https://{service}:9001"
    folder = platform.certs
    files = EntryFiles(f"{folder}/ca.crt", f"{folder}/client.crt", f"{folder}/client.key")
    scheduler_options = _scheduler_options(options, weights, url)._replace(
        files=files, kubeconfig=platform.kubeconfig
    )
    configuration = scheduler_configuration.build_scheduler_configuration(roles, scheduler_options)
    if options.kubernetes_version:
        version = scheduler_versions.parse_version(options.kubernetes_version)
        _print_version_warnings(version)
        configuration["apiVersion"] = version.api_version
    for entry in configuration["extenders"]:
        if urlsplit(url).hostname != service:
            entry["tlsConfig"]["serverName"] = service
    _print_or_write_files(options, platform_manifests.render_platform_files(platform, configuration))
    click.echo(_INSTRUCTIONS[options.mode].format(platform), err=True)


def _scheduler_options(options: ConfigureOptions, weights: Mapping[str, int], url: str) -> SchedulerOptions:
    return SchedulerOptions(
        url,
        whole_nodes=options.whole_nodes,
        filter_all_pods=options.filter_all_pods,
        one_entry_per_agent=options.one_entry_per_agent,
        weights=weights,
    )


def _print_or_write_files(options: ConfigureOptions, texts: Mapping[str, str]) -> None:
    if options.output == "json":
        click.echo(msgspec.json.encode(texts))
        return
    if not options.into:
        click.echo("---\n".join(f"# file: {name}\n{text}" for name, text in texts.items()))
        return
    for name, text in texts.items():
        path = Path(options.into) / name
        try:
            if path.exists() and path.read_text() != text:
                problem = Problem("--into", "there is another file of this name", "a folder of its own")
                raise BadInput(str(path), [problem])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            problem = Problem("--into", str(error.strerror), "a folder to write to")
            raise BadInput(str(path), [problem]) from error
        click.echo(f"{path}", err=True)


_UNTESTED: Final = "After the distribution's documentation; not run by us. "
_INSTRUCTIONS: Final = {
    "kubeadm": "Put scheduler-config.yaml, certs/ (ca.crt, client.crt, client.key) and patches/ into {0.folder} of "
    "each host of the control plane; then kubeadm init --config, or kubeadm upgrade apply --patches. On further hosts, "
    "kubeadm join and kubeadm upgrade node need --patches too, or kube-scheduler cannot resolve the Service there.",
    "kind": "Put certs/ (ca.crt, client.crt, client.key) beside these files, and there: kind create cluster "
    "--config kind.yaml",
    "capi": _UNTESTED + "Merge one of the two, by the version that your management cluster serves, into the "
    "KubeadmControlPlane, whose machines are then replaced one by one. Beside it belongs the Secret "
    "nodewise-scheduler-client of `nodewise certs`. The ClusterResourceSet wants a ConfigMap nodewise-manifests "
    "(deploy/crds and a file of deploy/kustomize) and a Secret nodewise-tls-manifest, of type "
    "addons.cluster.x-k8s.io/resource-set, with the Secret nodewise-tls in it.",
    "k3s": _UNTESTED + "Put the configuration and certs/ into {0.folder} of each server, config.yaml.d/ into "
    "/etc/rancher/k3s, and restart k3s.",
    "rke2": _UNTESTED
    + "Put the configuration and certs/ into {0.folder} of each server, config.yaml.d/ into "
    "/etc/rancher/rke2, and restart rke2-server.",
    "microk8s": _UNTESTED + "Put the configuration and certs/ into {0.folder}, add the line to "
    "/var/snap/microk8s/current/args/kube-scheduler, and restart microk8s.daemon-kubelite.",
    "talos": _UNTESTED
    + "Write ca.crt, client.crt and client.key into {0.folder} by machine.files, with permissions: 0o644, because "
    "kube-scheduler does not run as root there; talosctl patch machineconfig with the patch.",
}
