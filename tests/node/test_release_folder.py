"""The folder of `make release`, from which nodewise is installed without a repository or a registry.

A real kubelet runs the image of the folder, and a real kube-scheduler enforces a policy.
"""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tools import kubectl_plugin, release

import nodewise
from tests.cluster import native_mode, placement_policy_specs
from tests.cluster.api_client import path_of
from tests.cluster.debian_packages import ContainerPrograms
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.test_chart import Helm, helm_program
from tests.node import host_with_kubelet, preferred_nodes
from tests.node.host_with_kubelet import KubernetesHost
from tests.node.preferred_nodes import FAR

__all__ = ["helm_program"]

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
VERSION = nodewise.__version__
CONTROLLER = "deployment/nodewise-controller"
WARM = {"metric": "heat", "above": 80}


def output_of(*command: str | Path, folder: Path, **variables: str) -> str:
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(
    container_programs: ContainerPrograms, helm_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What `make release` writes in a clone of this checkout. Changes that are not committed are part of the commit.

    It needs packages of Debian and helm; without them, the fixtures of the programs skip the tests.
    """
    clone = tmp_path_factory.mktemp("clone")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", f"safe.directory={ROOT}"]
    changed = output_of(*git, "stash", "create", folder=ROOT).strip()
    output_of(*git, "archive", f"--output={clone}/source.tar", "--format=tar", changed or "HEAD", folder=ROOT)
    output_of("tar", "--extract", "--file=source.tar", folder=clone)
    (clone / "source.tar").unlink()
    for command in (["init", "--quiet"], ["add", "--all", "--force"], ["commit", "--quiet", "--message=x"]):
        output_of(*git, *command, folder=clone)
    environment = Path(sys.prefix)
    sources = [clone / "src", *(path / "src" for path in sorted(clone.glob("packages/*")))]
    make = ["make", "--quiet", f"--old-file={environment}/.dev", f"VENV={environment}", "release"]
    output_of(*make, folder=clone, PYTHONPATH=os.pathsep.join(map(str, sources)))
    return clone / "dist" / VERSION


def test_the_folder_has_all_files_with_their_checksums(folder: Path) -> None:
    output_of("sha256sum", "--check", "--strict", release.CHECKSUMS, folder=folder)
    names = {path.name for path in folder.iterdir()}
    distributions = {f"{name}-{VERSION}" for name in ("nodewise", "nodewise_cpu", "nodewise_scorers")}
    expected = {f"{name}{end}" for name in distributions for end in (".tar.gz", "-py3-none-any.whl")}
    expected |= {
        f"nodewise-{VERSION}{end}" for end in (".tgz", ".oci.tar", "-amd64.cdx.json", "-arm64.cdx.json")
    }
    expected |= {"install.yaml", "RELEASE_NOTES.md", "provenance.intoto.json", "SHA256SUMS"}
    (plugin,) = names - expected
    assert plugin.startswith(f"kubectl-nodewise-{VERSION}-linux-")
    assert (folder / plugin).stat().st_size <= kubectl_plugin.LARGEST_BYTES
    assert expected <= names


def test_the_wheel_prints_the_objects_of_the_installation_manifest(folder: Path, tmp_path: Path) -> None:
    (wheel,) = folder.glob("nodewise-*.whl")
    uv = Path(sys.executable).with_name("uv")
    output_of(uv, "pip", "install", "--offline", "--no-deps", "--target=site", wheel, folder=tmp_path)
    printed = output_of(
        *(sys.executable, "-m", "nodewise", "configure", "--mode=native", "--kubernetes-version=1.36"),
        folder=tmp_path,
        PYTHONPATH=str(tmp_path / "site"),
    )
    objects = [document for document in yaml.safe_load_all(printed) if document]
    assert objects == [*yaml.safe_load_all((folder / release.INSTALLATION).read_text())]


class Installation:
    """The cluster of the installation, with one node that is warm and another one that is not."""

    def __init__(
        self, kube_host: KubernetesHost, sandbox: Sandbox, metrics_api: FakeCustomMetricsApi
    ) -> None:
        self.kube_host, self.sandbox = kube_host, sandbox
        preferred_nodes.far_node(sandbox, metrics_api, hot=host_with_kubelet.NAME)

    def check_enforcement(self, name: str) -> None:
        """Check that kube-scheduler places a selected pod on the other node, and another pod where it prefers."""
        spec = {"podSelector": {"matchLabels": {"app": name}}, "avoid": [WARM]}
        policy = self.sandbox.put(placement_policy_specs.policy(spec, name=name))
        read = functools.partial(self.sandbox.api.get, path_of(policy))
        wait("the policy is active", lambda: read().get("status", {}).get("active") or None, show=read)
        selected = preferred_nodes.plain(f"{name}-pod", host_with_kubelet.NAME)
        selected["metadata"]["labels"] = {"app": name}
        self.sandbox.pods(selected, preferred_nodes.plain(f"{name}-other", host_with_kubelet.NAME))
        assert self.sandbox.expect_bound(f"{name}-pod") == FAR
        assert self.sandbox.expect_bound(f"{name}-other") == host_with_kubelet.NAME
        self.sandbox.api.delete(path_of(policy))
        nodes = functools.partial(self.kube_host.plane.kubectl, "get", "nodes", "-o", "yaml")
        key = native_mode.LABEL_PREFIX + policy["metadata"]["uid"]
        wait("the label of the policy is removed", lambda: key not in nodes() or None, show=nodes)


@pytest.fixture
def installation(
    folder: Path,
    kube_host: KubernetesHost,
    cluster_scheduler: None,
    host_sandbox: Sandbox,
    metrics_api: FakeCustomMetricsApi,
) -> Installation:
    kube_host.node.runtime.load(folder / f"nodewise-{VERSION}.oci.tar")
    return Installation(kube_host, host_sandbox, metrics_api)


def test_the_manifest_installs_upgrades_and_uninstalls_native_mode(
    folder: Path, installation: Installation
) -> None:
    kube_host = installation.kube_host
    kubectl = kube_host.plane.kubectl
    apply = ("apply", "--server-side", "--validate=strict", "-f", str(folder / release.INSTALLATION))
    count = sum(1 for document in yaml.safe_load_all((folder / release.INSTALLATION).read_text()) if document)
    assert kubectl(*apply).count("serverside-applied") == count
    try:
        kube_host.wait_ready("nodewise", 2, app="nodewise-controller")
        installation.check_enforcement("web")
        kubectl(
            "-n", "nodewise", "set", "env", CONTROLLER, "NODEWISE_PROMETHEUS_URL=http://prometheus.invalid"
        )
        assert kubectl(*apply).count("serverside-applied") == count
        environment = kubectl("-n", "nodewise", "set", "env", CONTROLLER, "--list")
        assert "NODEWISE_PROMETHEUS_URL=http://prometheus.invalid" in environment, "an upgrade keeps settings"
        kubectl("-n", "nodewise", "rollout", "status", CONTROLLER, "--timeout=55s")
    finally:
        kubectl("delete", "--ignore-not-found", "--timeout=55s", "-f", str(folder / release.INSTALLATION))
    assert not kube_host.plane.api.answers("/api/v1/namespaces/nodewise")


def test_the_chart_installs_native_mode_and_passes_helm_test(
    folder: Path, installation: Installation, helm_program: Path, tmp_path: Path
) -> None:
    """Without values: the node has the default image, and this version of Kubernetes has native mode."""
    helm = Helm(helm_program, installation.kube_host.plane.admin.kubeconfig, tmp_path)
    chart = folder / f"nodewise-{VERSION}.tgz"
    place = ("--namespace", "nodewise-chart")
    helm.said("install", "nodewise", chart, *place, "--create-namespace")
    try:
        controller = {"app.kubernetes.io/component": "controller"}
        installation.kube_host.wait_ready("nodewise-chart", 2, **controller)
        output = helm.said("test", "nodewise", *place)
        assert "Phase:          Succeeded" in output
        installation.check_enforcement("batch")
    finally:
        helm.said("uninstall", "nodewise", *place)
        installation.kube_host.plane.kubectl("delete", "namespace", "nodewise-chart", "--timeout=55s")
