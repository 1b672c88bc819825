"""Finds the programs that the cluster tests run, or builds them once into a cache outside the tree.

`python -m tests.cluster.program_cache` builds or fetches all of them and prints their folders, the control plane's
first. `KUBEBUILDER_ASSETS`, as in envtest, names a folder that contains the control plane of `DEFAULT`.
`python -m tests.cluster.program_cache --other-releases test-long` prints the other minor versions of a recipe.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tests.cluster import debian_packages, image_archive
from tests.cluster.go_builds import GoModule, print_progress
from tests.cluster.go_toolchain import MissingError


class KubernetesRelease(NamedTuple):
    """A version of Kubernetes whose control plane the tests run on, and the recipe that does so."""

    version: str
    recipe: str


DEFAULT: Final = "1.37"
"""The minor version that all cluster tests run on, and whose kubelet and kubeadm they use."""
RELEASES: Final = {
    DEFAULT: KubernetesRelease("v1.37.2", "test-cluster"),
    "1.36": KubernetesRelease("v1.36.3", "test-cluster"),
    "1.35": KubernetesRelease("v1.35.4", "test-long"),
    "1.34": KubernetesRelease("v1.34.4", "test-long"),
}
"""The tested versions. On those other than `DEFAULT`, tests with the marker `kubernetes_versions` run, with
TESTS_KUBERNETES set to the minor version. A recipe `test-long` includes the versions of `test-cluster`.
"""
RELEASE: Final = os.environ.get("TESTS_KUBERNETES") or DEFAULT
"""The minor version of this run."""
VERSION: Final = RELEASES[RELEASE].version
MINOR: Final = int(RELEASE.partition(".")[2])

MODULE = Path(__file__).parent / "bin"
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}


def _kubernetes_ldflags(version: str) -> str:
    """Flags without which the API server reports version v0.0.0-master, which clients cannot parse."""
    return f"-s -w -X k8s.io/component-base/version.gitVersion={version}"


def control_plane(release: str) -> GoModule:
    """The control plane of a minor version in `RELEASES`."""
    version = RELEASES[release].version
    return GoModule(
        name="controlplane",
        what=f"Kubernetes {version} and etcd",
        version=version,
        folder=MODULE if release == DEFAULT else MODULE / f"kubernetes-{release}",
        packages=PROGRAMS,
        ldflags=_kubernetes_ldflags(version),
        remedy=f"mend that, or have KUBEBUILDER_ASSETS name a folder with {', '.join(PROGRAMS)}",
    )


CONTROL_PLANE = control_plane(RELEASE)


def _module(name: str, what: str, version: str, package: str, ldflags: str = "-s -w") -> GoModule:
    """A module with one program, in the folder of its name."""
    return GoModule(name, f"{what} {version}", version, MODULE / name, {name: package}, ldflags)


DESCHEDULER = _module(
    "descheduler",
    "the descheduler",
    "v0.36.0",
    "sigs.k8s.io/descheduler/cmd/descheduler",
    # without this flag the descheduler warns that its version may not match the API server
    "-s -w -X sigs.k8s.io/descheduler/pkg/version.version=v0.36.0",
)
PROMETHEUS_ADAPTER = _module(
    "prometheus-adapter", "prometheus-adapter", "v0.12.0", "sigs.k8s.io/prometheus-adapter/cmd/adapter"
)
_NODE_VERSION = RELEASES[DEFAULT].version
KUBELET = _module(
    "kubelet",
    "the kubelet",
    _NODE_VERSION,
    "k8s.io/kubernetes/cmd/kubelet",
    _kubernetes_ldflags(_NODE_VERSION),
)


def kubeadm_module(release: str) -> GoModule:
    """kubeadm of a minor version: `DEFAULT`, or 1.36, the last that reads the configuration v1beta3."""
    version = RELEASES[release].version
    folder = MODULE if release == DEFAULT else MODULE / f"kubernetes-{release}"
    return GoModule(
        "kubeadm",
        f"kubeadm {version}",
        version,
        folder / "kubeadm",
        {"kubeadm": "k8s.io/kubernetes/cmd/kubeadm"},
        _kubernetes_ldflags(version),
    )


HELM = _module(
    "helm",
    "helm",
    "v3.21.3",
    "helm.sh/helm/v3/cmd/helm",
    # without a cluster, charts see this version of Kubernetes, the control plane's, instead of v1.20
    "-s -w -X helm.sh/helm/v3/internal/version.version=v3.21.3"
    " -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37",
)
KREW = GoModule(
    "krew",
    "krew v0.5.0",
    "v0.5.0",
    MODULE / "krew",
    {
        "krew": "sigs.k8s.io/krew/cmd/krew",
        "validate-krew-manifest": "sigs.k8s.io/krew/cmd/validate-krew-manifest",
    },
)
KARPENTER = GoModule(
    "karpenter",
    "Karpenter v1.14.1",
    "v1.14.1",
    MODULE / "karpenter",
    {"karpenter": "sigs.k8s.io/karpenter/kwok", "karpenter-crds": "."},
)
EXAMPLE_DRIVER = _module(
    "dra-example-kubeletplugin",
    "the DRA example driver",
    "v0.4.0",
    "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin",
)
POD_REQUESTS = _module("pod-requests", "the requests of pods by k8s.io/component-helpers", "v0.37.2", ".")
DEVICE_ALLOCATOR = _module("device-allocator", "the allocator of DRA devices", "v0.37.2", ".")
OTELCOL = _module("otelcol", "the OpenTelemetry Collector", "v0.165.0", ".")

SET_UP = "make controlplane"
"""The command that builds the programs."""


def folder() -> Path:
    """The folder with every program of PROGRAMS, built if necessary, which takes about five minutes on two cores.
    Raises MissingError.
    """
    assets = _assets()
    if assets and (lacking := CONTROL_PLANE.lacks(Path(assets))):
        print_progress(f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(lacking)}; taking our own")
    return find() or CONTROL_PLANE.built()


def find() -> Path | None:
    """The folder with every program of PROGRAMS; None if they are not built yet."""
    assets = _assets()
    places = [Path(assets)] if assets else []
    return next((place for place in [*places, CONTROL_PLANE.home()] if not CONTROL_PLANE.lacks(place)), None)


def _assets() -> str:
    """KUBEBUILDER_ASSETS; empty if it is not set, or if the run is on another version than `DEFAULT`."""
    return os.environ.get("KUBEBUILDER_ASSETS", "") if RELEASE == DEFAULT else ""


def other_releases(recipe: str) -> list[str]:
    """The minor versions other than `DEFAULT` that a recipe, `test-cluster` or `test-long`, runs tests on."""
    included = {"test-cluster"} if recipe == "test-cluster" else {"test-cluster", "test-long"}
    return [name for name, release in RELEASES.items() if name != DEFAULT and release.recipe in included]


def descheduler() -> Path:
    """The descheduler, built if necessary, which takes about two minutes. Raises MissingError."""
    return DESCHEDULER.built() / "descheduler"


def prometheus_adapter() -> Path:
    """prometheus-adapter, built if necessary, which takes about two minutes. Raises MissingError."""
    return PROMETHEUS_ADAPTER.built() / "prometheus-adapter"


def kubelet() -> Path:
    """The kubelet, built if necessary, which takes half a minute after the control plane. Raises MissingError."""
    return KUBELET.built() / "kubelet"


def kubeadm(release: str = DEFAULT) -> Path:
    """kubeadm, built if necessary, which takes half a minute after the kubelet. Raises MissingError."""
    return kubeadm_module(release).built() / "kubeadm"


def helm() -> Path:
    """helm, built if necessary, which takes about two minutes. Raises MissingError."""
    return HELM.built() / "helm"


def otelcol() -> Path:
    """The OpenTelemetry Collector, built if necessary, which takes about two minutes. Raises MissingError."""
    return OTELCOL.built() / "otelcol"


def pod_requests() -> Path:
    """A program that prints the requests of pods, built if necessary, in seconds. Raises MissingError."""
    return POD_REQUESTS.built() / "pod-requests"


def example_driver() -> Path:
    """The DRA example driver, built if necessary, which takes about a minute. Raises MissingError."""
    return EXAMPLE_DRIVER.built() / "dra-example-kubeletplugin"


def device_allocator() -> Path:
    """A program that allocates devices as kube-scheduler does, built if necessary, in a minute. Raises MissingError."""
    return DEVICE_ALLOCATOR.built() / "device-allocator"


def krew_folder() -> Path:
    """The folder with krew and its check of manifests, built if necessary, in half a minute. Raises MissingError."""
    return KREW.built()


def karpenter_folder() -> Path:
    """The folder with Karpenter and the program that prints its definitions, built if necessary, which takes about two
    minutes. Raises MissingError.
    """
    return KARPENTER.built()


def prometheus_folder() -> Path:
    """The folder of Prometheus. Raises MissingError."""
    return debian_packages.get().prometheus.parent


def containers_folder() -> Path:
    """The folder of containerd. Raises MissingError."""
    return debian_packages.containers().containerd.parent


def image_folder() -> Path:
    """The folder of nodewise's own image. Raises MissingError."""
    return image_archive.archive().parent


ALL: tuple[Callable[[], Path], ...] = (
    folder,
    *(control_plane(release).built for release in other_releases("test-cluster")),
    prometheus_folder,
    debian_packages.PROMETHEUS_2_53.get,
    debian_packages.VICTORIA_METRICS_1_112.get,
    lambda: descheduler().parent,
    lambda: prometheus_adapter().parent,
    lambda: kubelet().parent,
    lambda: kubeadm().parent,
    lambda: kubeadm("1.36").parent,
    lambda: helm().parent,
    lambda: otelcol().parent,
    lambda: pod_requests().parent,
    lambda: example_driver().parent,
    krew_folder,
    karpenter_folder,
    containers_folder,
    debian_packages.MACHINE.get,
    debian_packages.KERNEL.get,
    debian_packages.IMAGE_TOOLS.get,
    image_folder,
)
"""The functions that build or fetch all programs, those that most tests need first."""


def main() -> int:
    """Builds or fetches all programs. Prints their folders to stdout and progress to stderr. Returns 1 if one is not
    available. With `--other-releases RECIPE` it prints what `other_releases` returns.
    """
    if sys.argv[1:2] == ["--other-releases"]:
        print(*other_releases(sys.argv[2]))
        return 0
    code = 0
    for get in ALL:
        try:
            print(get(), flush=True)
        except MissingError as missing:
            print_progress(f"not run: {missing}")
            code = 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
