"""Finds the programs that the cluster tests run, or builds them once into a cache outside the tree.

`python -m tests.cluster.program_cache` builds or fetches all of them and prints their folders, the control plane's
first. `KUBEBUILDER_ASSETS`, as in envtest, names a folder that contains the control plane.
"""

import os
from collections.abc import Callable
from pathlib import Path

from tests.cluster import debian_packages, image_archive
from tests.cluster.go_builds import GoModule, print_progress
from tests.cluster.go_toolchain import MissingError

VERSION = "v1.36.3"
MODULE = Path(__file__).parent / "bin"
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}

CONTROL_PLANE = GoModule(
    name="controlplane",
    what=f"Kubernetes {VERSION} and etcd",
    version=VERSION,
    folder=MODULE,
    packages=PROGRAMS,
    # without this flag the API server reports version v0.0.0-master, which clients cannot parse
    ldflags=f"-s -w -X k8s.io/component-base/version.gitVersion={VERSION}",
    remedy=f"mend that, or have KUBEBUILDER_ASSETS name a folder with {', '.join(PROGRAMS)}",
)


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
KUBELET = _module("kubelet", "the kubelet", VERSION, "k8s.io/kubernetes/cmd/kubelet", CONTROL_PLANE.ldflags)
KUBEADM = _module("kubeadm", "kubeadm", VERSION, "k8s.io/kubernetes/cmd/kubeadm", CONTROL_PLANE.ldflags)
HELM = _module(
    "helm",
    "helm",
    "v3.21.3",
    "helm.sh/helm/v3/cmd/helm",
    # without a cluster, charts see this version of Kubernetes, the control plane's, instead of v1.20
    "-s -w -X helm.sh/helm/v3/internal/version.version=v3.21.3"
    " -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
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
OTELCOL = _module("otelcol", "the OpenTelemetry Collector", "v0.165.0", ".")

SET_UP = "make controlplane"
"""The command that builds the programs."""


def folder() -> Path:
    """The folder with every program of PROGRAMS, built if necessary, which takes about five minutes on two cores.
    Raises MissingError.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (lacking := CONTROL_PLANE.lacks(Path(assets))):
        print_progress(f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(lacking)}; taking our own")
    return find() or CONTROL_PLANE.built()


def find() -> Path | None:
    """The folder with every program of PROGRAMS; None if they are not built yet."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    places = [Path(assets)] if assets else []
    return next((place for place in [*places, CONTROL_PLANE.home()] if not CONTROL_PLANE.lacks(place)), None)


def descheduler() -> Path:
    """The descheduler, built if necessary, which takes about two minutes. Raises MissingError."""
    return DESCHEDULER.built() / "descheduler"


def prometheus_adapter() -> Path:
    """prometheus-adapter, built if necessary, which takes about two minutes. Raises MissingError."""
    return PROMETHEUS_ADAPTER.built() / "prometheus-adapter"


def kubelet() -> Path:
    """The kubelet, built if necessary, which takes half a minute after the control plane. Raises MissingError."""
    return KUBELET.built() / "kubelet"


def kubeadm() -> Path:
    """kubeadm, built if necessary, which takes half a minute after the kubelet. Raises MissingError."""
    return KUBEADM.built() / "kubeadm"


def helm() -> Path:
    """helm, built if necessary, which takes about two minutes. Raises MissingError."""
    return HELM.built() / "helm"


def otelcol() -> Path:
    """The OpenTelemetry Collector, built if necessary, which takes about two minutes. Raises MissingError."""
    return OTELCOL.built() / "otelcol"


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
    prometheus_folder,
    debian_packages.PROMETHEUS_2_53.get,
    debian_packages.VICTORIA_METRICS_1_112.get,
    lambda: descheduler().parent,
    lambda: prometheus_adapter().parent,
    lambda: kubelet().parent,
    lambda: kubeadm().parent,
    lambda: helm().parent,
    lambda: otelcol().parent,
    krew_folder,
    karpenter_folder,
    containers_folder,
    debian_packages.MACHINE.get,
    debian_packages.IMAGE_TOOLS.get,
    image_folder,
)
"""The functions that build or fetch all programs, those that most tests need first."""


def main() -> int:
    """Builds or fetches all programs. Prints their folders to stdout and progress to stderr. Returns 1 if one is not
    available.
    """
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
