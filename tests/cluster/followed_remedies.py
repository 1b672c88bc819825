"""How a test follows the remedies of `nodewise doctor`: it runs their commands in a shell, and follows instructions.

An instruction is an edit of a file of kube-scheduler, or work on a machine that the test does not have, such as the
restart of a component.
"""

import functools
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from tests import forked_commands
from tests.cluster import (
    child_processes,
    extender_process,
    fake_custom_metrics_server,
    gpu_cluster,
    health_example_manifests,
    healthy_cluster,
)
from tests.cluster.api_client import Object
from tests.cluster.healthy_cluster import HealthyCluster
from tests.cluster.namespace_sandboxes import wait

_PODS: Final = f"/api/v1/namespaces/{healthy_cluster.TENANT}/pods"


class ReadRemedy(NamedTuple):
    """A remedy that was read, and the output of its command, which was run; empty without a command."""

    text: str
    output: str
    folder: Path
    """The working directory of the command."""


Follow = Callable[[HealthyCluster, ReadRemedy], None]
"""The work of an operator who reads a remedy, after its command has run."""


def run_in_shell(cluster: HealthyCluster, command: str, editor: str = "") -> str:
    """Pastes a command into a shell of the administrator, and returns its output. Its exit code must be 0.

    `editor` is a script of sed with which the file is edited that `kubectl edit` opens.
    """
    folder = cluster.folder / "shell"
    programs = folder / "bin"
    if not folder.exists():
        programs.mkdir(parents=True)
        (programs / "kubectl").symlink_to(cluster.plane.kubectl_program)
        (programs / "nodewise").symlink_to(extender_process.NODEWISE)
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(folder),
        "KUBECONFIG": str(cluster.plane.admin.kubeconfig),
        "KUBE_EDITOR": f"sed --in-place --expression={shlex.quote(editor)}" if editor else "true",
    }
    if "rollout restart" in command:
        time.sleep(1.0)  # kubectl refuses a second restart of a workload within a second
    done = subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def follow_remedy(cluster: HealthyCluster, finding: Object, editor: str, follow: Follow | None) -> None:
    """Runs the command of a finding, and then follows its text."""
    command = finding["command"]
    output = run_in_shell(cluster, command, editor) if command else ""
    assert follow or command, f"nothing to run: {finding}"
    if follow:
        follow(cluster, ReadRemedy(finding["remedy"], output, cluster.folder / "shell"))


def entry(cluster: HealthyCluster) -> Object:
    """The entry of nodewise in the configuration of kube-scheduler, to be changed."""
    made: Object = cluster.config["extenders"][0]
    return made


# Edits of the configuration of kube-scheduler


def set_fields(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
    """Sets the fields in the entry that the text names: `set ignorable: false`."""
    fields = re.findall(r"(?:set|and) (\w+): ([\w.]+)", remedy.text)
    assert fields, remedy.text
    entry(cluster).update({name: yaml.safe_load(value) for name, value in fields})


def replace_entry(**fields: object) -> Follow:
    """Other values of fields in the entry; None removes a field."""

    def follow(cluster: HealthyCluster, _: ReadRemedy) -> None:
        entry(cluster).update(fields)
        for name in [name for name, value in fields.items() if value is None]:
            del entry(cluster)[name]

    return follow


def upgrade_configuration(cluster: HealthyCluster, _: ReadRemedy) -> None:
    cluster.config["apiVersion"] = "kubescheduler.config.k8s.io/v1"


def correct_plugin(cluster: HealthyCluster, _: ReadRemedy) -> None:
    cluster.config["profiles"][0]["plugins"]["score"]["disabled"] = [{"name": "ImageLocality"}]


def correct_address(cluster: HealthyCluster, _: ReadRemedy) -> None:
    entry(cluster)["urlPrefix"] = f"{cluster.replicas[0].url}/scheduler"


def use_port_of_service(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
    [port] = re.findall(r"a port of the Service: (\d+)", remedy.text)
    entry(cluster)["urlPrefix"] = re.sub(r":\d+/", f":{port}/", entry(cluster)["urlPrefix"])


def use_listed_service(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
    """The Service that `kubectl get services` lists."""
    namespace, name, *_ = remedy.output.splitlines()[1].split()
    entry(cluster)["urlPrefix"] = f"https://{name}.{namespace}.svc:9001/scheduler"


def use_printed_ca(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
    """The CA that the command wrote."""
    entry(cluster)["tlsConfig"] |= {"caFile": str(remedy.folder / "ca.crt"), "insecure": False}


def use_printed_entry(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
    """The verbs and resources of the entry that the command printed."""
    [printed] = yaml.safe_load(remedy.output)["extenders"]
    names = ("bindVerb", "preemptVerb", "managedResources")
    entry(cluster).update({name: printed[name] for name in names})


def use_rendered_entry(cluster: HealthyCluster, _: ReadRemedy) -> None:
    """The entry that `nodewise configure` writes."""
    certificates = cluster.certificates
    arguments = [
        "--agents=telemetry,gpu",
        f"--url={cluster.replicas[0].url}",
        f"--ca={certificates.authority.ca_file}",
        f"--cert={certificates.client.cert}",
        f"--key={certificates.client.key}",
    ]
    printed = run_in_shell(cluster, shlex.join(["nodewise", "configure", "render-scheduler", *arguments]))
    cluster.config["extenders"] = yaml.safe_load(printed)["extenders"]


def write_key_to_file(cluster: HealthyCluster, _: ReadRemedy) -> None:
    """The file exists already."""
    del entry(cluster)["tlsConfig"]["keyData"]


def ignore_in_scheduler(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
    [name] = re.findall(r"set ignoredByScheduler: true beside (\S+) in", remedy.text)
    [resource] = [item for item in entry(cluster)["managedResources"] if item["name"] == name]
    resource["ignoredByScheduler"] = True


def remove_score_plugins(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
    [names] = re.findall(r"remove (.+?) from plugins.score.enabled", remedy.text)
    score = cluster.config["profiles"][0]["plugins"]["score"]
    score["enabled"] = [plugin for plugin in score["enabled"] if plugin["name"] not in names.split(" and ")]


def look_at_all_nodes(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
    [percentage] = re.findall(r"set percentageOfNodesToScore: (\d+) in a profile", remedy.text)
    cluster.config["profiles"][0]["percentageOfNodesToScore"] = int(percentage)


# Certificates


def issue_certificates(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
    """`nodewise certs --host` for a replica that starts with the new certificates, and for kube-scheduler."""
    assert "nodewise certs" in remedy.text
    replica, folder = _replica_with_issued_certificates(cluster)
    entry(cluster)["urlPrefix"] = f"{replica}/scheduler"
    files = {"caFile": "ca.crt", "certFile": "client.crt", "keyFile": "client.key"}
    entry(cluster)["tlsConfig"] |= {field: str(folder / name) for field, name in files.items()}


@functools.cache
def _replica_with_issued_certificates(cluster: HealthyCluster) -> tuple[str, Path]:
    folder, address = cluster.folder / "pki", child_processes.own_address()
    names = [f"--name={address}", "--name=other.example"]
    command: list[str | Path] = [forked_commands.NODEWISE, "certs", f"--host={folder}", *names]
    forked_commands.run(command, check=True)
    files = (f"--cert={folder}/tls.crt", f"--key={folder}/tls.key", f"--client-ca={folder}/ca.crt")
    arguments = [*healthy_cluster.replica_arguments(cluster), *files]
    started = extender_process.started(cluster.folder, arguments, cluster.certificates)
    replica = cluster.stack.enter_context(started)
    replica.process.wait_ready(replica.is_ready)
    return replica.url, folder


# Work on the cluster


def start_endpoints(cluster: HealthyCluster, _: ReadRemedy) -> None:
    """The replicas become ready."""
    folder = f"/apis/discovery.k8s.io/v1/namespaces/{healthy_cluster.NAMESPACE}/endpointslices"
    for endpoint_slice in cluster.api.get(folder)["items"]:
        ready = [end | {"conditions": {"ready": True}} for end in endpoint_slice["endpoints"]]
        cluster.api.patch(f"{folder}/{endpoint_slice['metadata']['name']}", {"endpoints": ready})


def export_metric(metric: str) -> Follow:
    """The exporters have a value of each node."""

    def follow(cluster: HealthyCluster, _: ReadRemedy) -> None:
        cluster.metrics.set(metric, dict.fromkeys(healthy_cluster.NODES, 20))

    return follow


def correct_api_service(cluster: HealthyCluster, _: ReadRemedy) -> None:
    """The APIService leads to the adapter."""
    port = int(cluster.metrics.url.rpartition(":")[2])
    for version in fake_custom_metrics_server.VERSIONS:
        path = f"/apis/apiregistration.k8s.io/v1/apiservices/{version}.{fake_custom_metrics_server.GROUP}"
        cluster.api.patch(path, {"spec": {"service": {"port": port}}})


def measure_usage_more_often(cluster: HealthyCluster, _: ReadRemedy) -> None:
    """metrics-server has the argument `--metric-resolution=15s`."""
    cluster.usage.window = "15s"


def create_again(pod: Object) -> Follow:
    """The pod is deleted, and created from a corrected template."""

    def follow(cluster: HealthyCluster, _: ReadRemedy) -> None:
        path = f"{_PODS}/{pod['metadata']['name']}"
        cluster.api.delete(path)
        wait("the pod is deleted", lambda: cluster.api.find(path) is None or None)
        cluster.api.create(pod)

    return follow


def delete_pod(name: str, namespace: str = healthy_cluster.TENANT) -> Follow:
    return lambda cluster, _: cluster.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")


def label_pod(name: str, **labels: str | None) -> Follow:
    """Other labels of a pod; None removes a label. `_` stands for `-` in keys."""
    changed = {key.replace("_", "-"): value for key, value in labels.items()}

    def follow(cluster: HealthyCluster, _: ReadRemedy) -> None:
        cluster.api.patch(f"{_PODS}/{name}", {"metadata": {"labels": changed}})

    return follow


def report_unscheduled(pod: str) -> Follow:
    """nodewise is started, and kube-scheduler reports its response about the pod."""

    def follow(cluster: HealthyCluster, _: ReadRemedy) -> None:
        healthy_cluster.report_unscheduled(cluster.api, f"{_PODS}/{pod}", "0/4 nodes are available")

    return follow


def shorten_policy(name: str) -> Follow:
    """A policy keeps its first rule."""

    def follow(cluster: HealthyCluster, _: ReadRemedy) -> None:
        path = f"{healthy_cluster.POLICIES}/{name}"
        strategies = cluster.api.get(path)["spec"]["strategies"]
        for strategy in strategies.values():
            strategy["rules"] = strategy["rules"][:1]
        cluster.api.patch(path, {"spec": {"strategies": strategies}})

    return follow


def run_with_node(node: str) -> Follow:
    """Runs the command with the placeholder NODE that the text contains."""

    def follow(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
        [command] = re.findall(r"kubectl \w+ node NODE \S+", remedy.text)
        run_in_shell(cluster, command.replace("NODE", node))

    return follow


def start_device_plugin(cluster: HealthyCluster, _: ReadRemedy) -> None:
    """The kubelet reports the GPUs of the device plugin."""
    offered = gpu_cluster.node("bare")["status"]
    path = "/api/v1/nodes/bare"
    healthy_cluster.status(
        cluster.api, path, {field: offered[field] for field in ("capacity", "allocatable")}
    )


def configure_kubelet(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
    """Sets the fields that the text names in the kubelet's configuration, and restarts it."""
    fields = dict(re.findall(r"(\w+Policy): (\w+)", remedy.text))
    kubelet = cluster.kubelets[healthy_cluster.POOLS]
    kubelet.configuration = kubelet.configuration | fields


def install_descheduler(cluster: HealthyCluster, _: ReadRemedy) -> None:
    healthy_cluster.put_descheduler(cluster)


def enable_descheduler_plugin(cluster: HealthyCluster, _: ReadRemedy) -> None:
    text = health_example_manifests.DESCHEDULER_POLICY.read_text()
    cluster.api.patch(healthy_cluster.DESCHEDULER_POLICY, {"data": {"policy.yaml": text}})


def disable_descheduler_plugin(cluster: HealthyCluster, _: ReadRemedy) -> None:
    text = healthy_cluster.policy_of_other_plugin()
    cluster.api.patch(healthy_cluster.DESCHEDULER_POLICY, {"data": {"policy.yaml": text}})


def repair_replica(cluster: HealthyCluster, _: ReadRemedy) -> None:
    """The kubelet reports that both replicas run."""
    namespace = healthy_cluster.NAMESPACE
    deployment = cluster.api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/nodewise")
    healthy_cluster.report_available(cluster.api, deployment)
    pod = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/nodewise-1")
    healthy_cluster.report_running(cluster.api, pod, child_processes.own_address())
