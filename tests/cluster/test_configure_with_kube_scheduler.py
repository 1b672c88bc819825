"""The files that `nodewise configure` writes on a kubeadm host, read by the real kube-scheduler, which decodes
strictly.

kube-scheduler starts with the command line of the written manifest, with paths of the host, since there is no
container. In tests/node, the kubelet starts it from the manifest.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import child_processes, program_cache
from tests.cluster.api_client import Object
from tests.cluster.child_processes import NotReadyError, Process
from tests.cluster.controlplane import ControlPlane
from tests.conformance.configure import scheduler_manifests
from tests.conformance.configure.control_plane_hosts import ControlPlaneHost
from tests.conformance.configure.scheduler_configuration_forms import (
    CONFIGURATION_FORMS,
    DEFAULT_MINOR,
    contains,
    host_with_configuration,
)
from tests.conformance.configure.scheduler_manifests import with_field

pytestmark = pytest.mark.kubernetes_versions

KUBECONFIG = "/etc/kubernetes/scheduler.conf"
IMAGE = f"registry.k8s.io/kube-scheduler:{program_cache.VERSION}"


@pytest.fixture
def host(tmp_path: Path) -> ControlPlaneHost:
    host_files = ControlPlaneHost(tmp_path / "host")
    host_files.write(scheduler_manifests.to_yaml(scheduler_manifests.kubeadm_pod(36, image=IMAGE)))
    return host_files


def inside(text: str, host: ControlPlaneHost, plane: ControlPlane) -> str:
    """Replaces the container's paths in a text by paths of this machine."""
    names = {"/host/certs": str(host.certs), KUBECONFIG: str(plane.user("system:kube-scheduler").kubeconfig)}
    for name, here in names.items():
        text = text.replace(name, here)
    return text


def mounted_path(host: ControlPlaneHost) -> Path:
    """The path of the configuration in the manifest."""
    return Path(host.pod["spec"]["containers"][0]["volumeMounts"][1]["mountPath"])


def copy_of_configuration(host: ControlPlaneHost, plane: ControlPlane) -> Path:
    """The configuration of the manifest, with paths of this machine."""
    path = mounted_path(host)
    folder = plane.folder / f"configured-{child_processes.number()}"
    folder.mkdir()
    config = folder / path.name
    config.write_text(inside(path.read_text(), host, plane))
    return config


@contextlib.contextmanager
def scheduler(plane: ControlPlane, host: ControlPlaneHost) -> Iterator[tuple[Process, str]]:
    """Runs kube-scheduler with the flags of the manifest; yields the process and its address."""
    config = copy_of_configuration(host, plane)
    words = [inside(word, host, plane) for word in host.container["command"][1:]]
    flags = dict(word.removeprefix("--").split("=", 1) for word in words)
    assert flags["config"] == str(mounted_path(host))
    port = child_processes.free_port()
    serving = plane.authority.issue("component", "127.0.0.1")
    flags |= {
        "config": str(config),
        "secure-port": str(port),
        "tls-cert-file": str(serving.cert),
        "tls-private-key-file": str(serving.key),
        "authorization-always-allow-paths": "/healthz,/readyz,/livez,/configz",
    }
    process = plane.start_program("kube-scheduler", flags)
    try:
        yield process, f"https://127.0.0.1:{port}"
    finally:
        process.stop()


def load(config: Path, *flags: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Runs kube-scheduler until it has written the configuration with defaults; also returns the path of that file.

    /configz would not do: before 1.36 it prints the internal type instead of the version v1.
    """
    written = config.with_name("written.yaml")
    command = [
        program_cache.folder() / "kube-scheduler",
        f"--config={config}",
        f"--write-config-to={written}",
        "--secure-port=0",
        *flags,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False), written


def read(plane: ControlPlane, host: ControlPlaneHost) -> Object:
    """The configuration, with defaults, of a kube-scheduler that runs with the flags of the manifest."""
    with scheduler(plane, host) as (process, address):
        process.wait_ready(lambda: plane.api.answers(f"{address}/healthz"))
        assert "strict decoding" not in process.log.read_text().lower()
    loaded, written = load(copy_of_configuration(host, plane))
    assert loaded.returncode == 0, loaded.stderr
    configuration: Object = yaml.safe_load(written.read_text())
    return configuration


def of_host(host: ControlPlaneHost, plane: ControlPlane) -> Object:
    """The written configuration with paths of this machine."""
    value: Object = yaml.safe_load(inside(host.config.read_text(), host, plane))
    return value


TEMPLATES = {
    "tas": scheduler_manifests.TAS_TEMPLATE,
    "gas": scheduler_manifests.GAS_TEMPLATE,
    "both": scheduler_manifests.BOTH_TEMPLATE,
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_the_older_systems_are_read(
    plane: ControlPlane, host: ControlPlaneHost, name: str
) -> None:
    host.template.write_text(TEMPLATES[name])
    assert host.run().code == 0
    configuration = read(plane, host)
    assert configuration["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert contains(configuration["extenders"], of_host(host, plane)["extenders"])


@pytest.mark.parametrize(
    "flags",
    [
        ["--agents", "telemetry"],
        ["--agents", "gpu"],
        ["--extender", "both", "--weights", "telemetry=3,gpu=20"],
        ["--agents", "safe,congestion,pigeon,learned", "--one-entry-per-agent"],
        ["--agents", "telemetry,safe", "--filter-all-pods", "--whole-nodes"],
        ["--agents", "telemetry,gpu", "--filter-all-pods"],
        ["--agents", "telemetry", "--insecure"],
    ],
    ids=" ".join,
)
def test_configurations_of_our_own_are_read(
    plane: ControlPlane, host: ControlPlaneHost, flags: list[str]
) -> None:
    host.template.unlink()
    ran = host.run(*flags)
    assert ran.code == 0, ran.err
    configuration = read(plane, host)
    assert contains(configuration["extenders"], of_host(host, plane)["extenders"])
    counts = {"safe,congestion,pigeon,learned": 4, "both": 2, "telemetry,safe": 2, "telemetry,gpu": 3}
    assert len(configuration["extenders"]) == counts.get(flags[1], 1)


USERS = """\
# ours; two teams
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
parallelism: 8
profiles:
- schedulerName: default-scheduler
  percentageOfNodesToScore: 50
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated   # pack
        resources: [{name: cpu, weight: 1}, {name: memory, weight: 2}]
- schedulerName: batch
  plugins:
    multiPoint:
      enabled: [{name: NodeAffinity, weight: 7}]
    score:
      disabled: [{name: ImageLocality}]
  pluginConfig:
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints: [{maxSkew: 3, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
extenders:
- urlPrefix: http://127.0.0.1:1/other
  prioritizeVerb: score
  weight: 3
"""


def test_merged_configuration_keeps_the_settings_of_the_user(
    plane: ControlPlane, host: ControlPlaneHost
) -> None:
    own = host.k / "own.yaml"
    own.write_text(USERS)
    command = [*scheduler_manifests.kubeadm_pod(36)["spec"]["containers"][0]["command"], f"--config={own}"]
    host.write(
        scheduler_manifests.to_yaml(
            with_field(scheduler_manifests.kubeadm_pod(36, image=IMAGE), "spec.containers.0.command", command)
        )
    )
    ran = host.run("--merge")
    assert ran.code == 0, ran.err
    assert host.config.read_text().startswith(USERS)
    configuration = read(plane, host)
    theirs = yaml.safe_load(USERS)
    assert [profile["schedulerName"] for profile in configuration["profiles"]] == [
        "default-scheduler",
        "batch",
    ]
    assert configuration["parallelism"] == 8
    for wanted, seen in zip(theirs["profiles"], configuration["profiles"], strict=True):
        args = {plugin["name"]: plugin["args"] for plugin in seen["pluginConfig"]}
        for plugin in wanted["pluginConfig"]:
            assert contains(args[plugin["name"]], plugin["args"])
    assert configuration["profiles"][0]["percentageOfNodesToScore"] == 50
    assert contains(configuration["extenders"], of_host(host, plane)["extenders"])
    assert configuration["extenders"][0]["urlPrefix"] == "http://127.0.0.1:1/other"


MERGED_FORMS = [
    form
    for form in CONFIGURATION_FORMS
    if "refused" not in form and form.get("minor", DEFAULT_MINOR) == DEFAULT_MINOR
]


@pytest.mark.parametrize("form", MERGED_FORMS, ids=[form["name"] for form in MERGED_FORMS])
def test_kube_scheduler_loads_each_merged_form_of_a_configuration(
    plane: ControlPlane, tmp_path: Path, form: dict[str, Any]
) -> None:
    host = host_with_configuration(tmp_path, form)
    assert host.run("--merge", *form.get("flags", [])).code == 0
    config = tmp_path / "config.yaml"
    config.write_text(inside(host.config.read_text(), host, plane))
    # without a kubeconfig, kube-scheduler requires an address, which it does not call before it writes the file
    address = [] if "kubeconfig" in form["text"] else ["--master=https://127.0.0.1:1"]
    loaded, written = load(config, *address)
    if "unknown_plugin" in form:
        assert f'"{form["unknown_plugin"]}"' in loaded.stderr.replace("\\", "")
        return
    assert loaded.returncode == 0, loaded.stderr
    loaded_entries = yaml.safe_load(written.read_text())["extenders"]
    assert contains(loaded_entries, of_host(host, plane)["extenders"])


BROKEN = {
    "unknown field": ("weight: 1", "wait: 1"),
    "in another case": ("filterVerb", "FilterVerb"),
    "no duration": ("ignorable: true", "httpTimeout: 5"),
    "weight below one": ("weight: 1", "weight: 0"),
    "insecure beside a CA": ("insecure: false", "insecure: true\r\n    caFile: /host/certs/ca.crt"),
    "a certificate that is not there": ("client.crt", "nobody.crt"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_configuration_that_kube_scheduler_rejects_is_refused(
    plane: ControlPlane, host: ControlPlaneHost, what: str
) -> None:
    """kube-scheduler refuses the configuration, and `nodewise configure` refuses it before it writes anything."""
    old, new = BROKEN[what]
    assert old in scheduler_manifests.TAS_TEMPLATE
    assert host.run().code == 0
    whole = host.snapshot()
    host.template.write_text(scheduler_manifests.TAS_TEMPLATE.replace(old, new))
    assert host.run().code == 1
    assert host.snapshot() == whole
    broken = scheduler_manifests.TAS_TEMPLATE.replace(old, new).replace("XVERSIONX", "v1")
    host.config.write_text(broken)
    with scheduler(plane, host) as (process, address), pytest.raises(NotReadyError):
        process.wait_ready(lambda: plane.api.answers(f"{address}/healthz"))
    shutil.rmtree(host.certs)
