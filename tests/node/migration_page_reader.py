"""A user who follows a page on a host of the control plane, as root and as the cluster's administrator.

All commands run on the host, among its processes and files. `helm` and `kubectl` are real except for `kubectl
port-forward`, which runs in the background: `forwarding` replaces it. Instead of DNS the host's
`/etc/hosts` has the names of Services, also for pods in the host's network.
"""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests import docs_page_code_blocks, docs_page_runner
from tests.cluster.api_client import ApiError, Object
from tests.cluster.extender_process import NODEWISE
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.docs_page_runner import PageReader
from tests.node import host_with_kubelet
from tests.node.host_with_kubelet import KubernetesHost
from tests.node.loopback_forwarding import ForwardingTarget
from tests.node.network_port_forwarding import forwarding

ADMIN: Final = "127.0.0.1:9002"
"""The address of a replica's admin port in the pages."""
NODE: Final = "node1"
"""The name of this host's node in the pages."""


@contextlib.contextmanager
def operator(
    kube_host: KubernetesHost,
    programs: Path,
    folder: Path,
    forwarded: Callable[[], Object] | None = None,
    helm: Path | None = None,
    instead: Mapping[str, str] | None = None,
) -> Iterator[PageReader]:
    """A shell on the host, in a folder with `deploy` and `examples`; `forwarded` is the target of port-forward."""
    home = folder / "repository"
    home.mkdir()
    for name in ("deploy", "examples"):
        (home / name).symlink_to(docs_page_code_blocks.ROOT / name)
    tools = folder / "bin"
    tools.mkdir()
    _script(
        tools / "kubectl", f'case "$*" in *port-forward*) exit 0;; esac\nexec {programs / "kubectl"} "$@"'
    )
    if helm:
        (tools / "helm").symlink_to(helm)
    kubeconfig = kube_host.plane.admin.kubeconfig
    kube_host.path(f"{host_with_kubelet.KUBERNETES}/admin.conf").write_text(kubeconfig.read_text())
    plain = docs_page_runner.plain_environment()
    environment = {
        **plain,
        "PATH": f"{tools}:{NODEWISE.parent}:{plain['PATH']}",
        "KUBECONFIG": str(kubeconfig),
        "HOME": str(folder),
    }
    # doctor knows the host that it is on by its name
    steps = (
        f"echo {host_with_kubelet.NAME} > /proc/sys/kernel/hostname; cd {shlex.quote(str(home))}; exec bash"
    )
    shell = kube_host.node.runtime.enter(["unshare", "--uts", "sh", "-e", "-c", steps], network=True)
    place = {NODE: host_with_kubelet.NAME, **(instead or {})}
    with contextlib.ExitStack() as stack:
        if forwarded:
            port = stack.enter_context(forwarding(lambda: _network_of(kube_host, forwarded()), 9002))
            kube_host.network.forward(("127.0.0.1", port), lambda: ForwardingTarget(("127.0.0.1", port)))
            place[ADMIN] = f"127.0.0.1:{port}"
        yield stack.enter_context(docs_page_runner.reading(home, environment, place, shell))


def expect_rejected(host_sandbox: Sandbox, pod: Object, words: str) -> None:
    """Wait until the API server rejects the pod: admission policies take effect with a delay."""

    def refused() -> bool | None:
        path = f"/api/v1/namespaces/{host_sandbox.namespace}/pods"
        try:
            host_sandbox.api.request("POST", path, json=pod, params={"dryRun": "All"})
        except ApiError as error:
            return words in str(error) or None
        return None

    wait(f"{pod['metadata']['name']} is refused", refused)


def name_service(kube_host: KubernetesHost, namespace: str, service: str) -> None:
    """Serve a Service, and add its name to the host's pods."""
    kube_host.network.serve(kube_host.plane.api, namespace, service)
    address = kube_host.plane.api.get(f"/api/v1/namespaces/{namespace}/services/{service}")["spec"][
        "clusterIP"
    ]
    names = kube_host.path("/etc/hosts")
    names.write_text(f"{names.read_text()}\n{address} {service}.{namespace}.svc\n")


def _network_of(kube_host: KubernetesHost, pod: Object) -> Path:
    """The network namespace of a running pod, as a file."""
    container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    tasks = kube_host.node.runtime.ctr("tasks", "list")
    tasks.check_returncode()
    (pid,) = [line.split()[1] for line in tasks.stdout.splitlines() if line.startswith(container)]
    return kube_host.node.runtime.inside(f"/proc/{pid}/ns/net")


def _script(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh -e\n{text}\n")
    file.chmod(0o755)
