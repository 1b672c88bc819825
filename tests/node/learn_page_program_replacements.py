"""Replacements for the programs that the learn pages call and that cannot run here, on the reader's PATH.

`kind` needs Docker. The replacement uses real programs: a control plane with etcd, the API server, controllers and
kube-scheduler, and a real kubelet with containerd as `nodewise-worker2`, into which it loads the archive.
`nodewise-worker` is a Node without a kubelet, too small for pods that request CPU; the control plane's Node is only an
object. `make` uses the archive in the tests' cache. The image has its local name instead of that in a registry.
"""

import contextlib
import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import nodewise
from tests import docs_page_code_blocks, docs_page_runner
from tests.cluster import image_archive, kubernetes_objects
from tests.cluster.extender_process import NODEWISE
from tests.docs_page_runner import PageReader
from tests.node import busybox_image
from tests.node.host_with_kubelet import KubernetesHost

REAL: Final = "nodewise-worker2"
PAUSE: Final = "registry.k8s.io/pause:3.10"
_ARCHIVE: Final = f"dist/nodewise-{nodewise.__version__}.oci.tar"
_OTHER_ARCHIVE: Final = f"dist/nodewise-{nodewise.__version__}-arm64.oci.tar"
"""An archive of another architecture that the user made before."""


@contextlib.contextmanager
def laptop(
    kube_host: KubernetesHost, programs: Path, busybox: Path, archive: Path, folder: Path
) -> Iterator[PageReader]:
    """A user's shell with a copy of the repository and these programs."""
    home = folder / "repository"
    home.mkdir()
    for name in ("deploy", "examples"):
        (home / name).symlink_to(docs_page_code_blocks.ROOT / name)
    pause = folder / "pause.tar"
    busybox_image.write(pause, busybox, PAUSE, command=busybox_image.PAUSE)
    kube_host.node.runtime.load(pause)
    tools = {
        "kind": _kind(kube_host, programs),
        "make": _make(archive),
        "kubectl": f'exec {programs / "kubectl"} "$@"',
    }
    plain = docs_page_runner.plain_environment()
    environment = {
        **plain,
        "PATH": f"{_written(tools, folder)}:{NODEWISE.parent}:{plain['PATH']}",
        "KUBECONFIG": str(folder / "kubeconfig"),
        "HOME": str(folder),
    }
    (home / ".venv/bin").mkdir(parents=True)
    (home / ".venv/bin/nodewise").symlink_to(NODEWISE)
    local_name = {f"registry.example.org/nodewise:{nodewise.__version__}": image_archive.NAME}
    with docs_page_runner.reading(home, environment, local_name) as typing:
        yield typing


def _kind(kube_host: KubernetesHost, programs: Path) -> str:
    kubeconfig = kube_host.plane.admin.kubeconfig
    kubectl = f"{programs / 'kubectl'} --kubeconfig={kubeconfig}"
    load = shlex.join(kube_host.node.runtime.ctr_line("images", "import"))
    return f"""
case "$1 $2" in
"create cluster") test "$(grep -c role: "$6")" = 3 && cp {kubeconfig} "$KUBECONFIG" ;;
"load image-archive") test "$4" = --name && exec {load} "$(realpath "$3")" ;;
"delete cluster") rm "$KUBECONFIG" && {kubectl} delete --wait=false namespace nodewise ;;
*) echo "kind: $*" >&2; exit 2 ;;
esac"""


def _make(archive: Path) -> str:
    return f"""
for recipe in "$@"; do case "$recipe" in
venv) ;;
image) mkdir -p dist && cp {archive} {_ARCHIVE} && touch {_OTHER_ARCHIVE} ;;
*) echo "make: $recipe" >&2; exit 2 ;;
esac; done"""


def _written(scripts: Mapping[str, str], folder: Path) -> Path:
    place = folder / "bin"
    place.mkdir()
    for name, script in scripts.items():
        file = place / name
        file.write_text(f"#!/bin/sh -e\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return place


def other_nodes(kube_host: KubernetesHost) -> None:
    """The Nodes of the cluster that are only objects."""
    small = kubernetes_objects.node("nodewise-worker", cpu="50m")
    control = kubernetes_objects.node("nodewise-control-plane")
    control["spec"] = {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}
    for node in (small, control):
        kube_host.plane.api.create(node)
