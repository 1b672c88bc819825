"""A control plane on loopback: etcd, kube-apiserver, and the other programs that a test starts.

Every process writes its log into the control plane's folder, must be ready before a deadline, and is stopped by its pid
with the control plane, also when a test fails. Start processes from the main thread: the kernel kills a child when the
thread that started it ends.
"""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import api_user_kubeconfigs, certificates, child_processes, program_cache
from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.api_user_kubeconfigs import ApiServerAccess, User
from tests.cluster.child_processes import Process

CONTROLLERS = "*,-node-lifecycle-controller,-taint-eviction-controller"
"""All controllers except those that would mark nodes without a kubelet as lost and evict their pods."""

SERVICE = "10.0.0.1"
"""The address by which pods call the API server: the first address of the Service range."""

GATES: dict[str, str] = {"1.36": "DRADeviceTaintRules=true"}
"""By release, the features that are off by default and that tests use."""
FEATURES = {"feature-gates": GATES[program_cache.RELEASE]} if program_cache.RELEASE in GATES else {}
"""The flag of every Kubernetes program that enables the features of GATES."""

SCHEDULER = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


class ControlPlane:
    """etcd and kube-apiserver, from `start` to `stop`; `with running(...)` does both."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.folder = folder
        self._programs = programs
        self.authority = certificates.CertificateAuthority(folder, "cluster-ca")
        self._accounts = certificates.signing_key(folder, "service-accounts")
        self._server = ApiServerAccess(
            f"https://127.0.0.1:{child_processes.free_port()}", self.authority, folder
        )
        self._stack = contextlib.ExitStack()
        self.processes: list[Process] = []
        self.etcd = ""
        """The URL of etcd once it runs."""
        self.admin: User = self._server.user("admin", api_user_kubeconfigs.ADMIN_GROUP)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def api(self) -> ClusterApi:
        """A client of the API server with the administrator's rights."""
        return self.admin.api

    @property
    def ca_file(self) -> Path:
        return self.authority.ca_file

    def start(self, flags: Mapping[str, str] | None = None) -> None:
        """Starts etcd and kube-apiserver; `flags` override the API server's default flags. Raises NotReadyError."""
        self._stack.callback(self.api.close)
        self.etcd = self._start_etcd()
        process = self.start_program("kube-apiserver", self._api_flags(self.etcd) | dict(flags or {}))
        process.wait_ready(lambda: self.api.answers("/readyz"))

    def start_api_server(self, flags: Mapping[str, str]) -> Process:
        """Starts one more API server on the same etcd; `flags` name at least its port, `secure-port`."""
        return self.start_program("kube-apiserver", self._api_flags(self.etcd) | dict(flags))

    def stop(self) -> None:
        """Stops every process, in reverse order of their start."""
        self._stack.close()

    def stop_others(self) -> None:
        """Stops every process except etcd and the API server."""
        for process in reversed(self.processes[2:]):
            process.stop()
        del self.processes[2:]

    def start_program(self, name: str, flags: Mapping[str, str]) -> Process:
        """Starts one of the programs; `flags` have no dashes. The process is stopped with the control plane."""
        arguments = [str(self._programs / name), *(f"--{flag}={value}" for flag, value in flags.items())]
        process = Process(arguments, self.folder / f"{name}-{child_processes.number()}.log")
        self.processes.append(process)
        self._stack.callback(process.stop)
        return process

    def start_scheduler(
        self,
        config: Mapping[str, Any] | str,
        verbosity: int = 2,
        user: User | None = None,
        more: Mapping[str, str] | None = None,
    ) -> Process:
        """Starts a kube-scheduler with a KubeSchedulerConfiguration, which is a mapping or YAML.

        The kubeconfig of `user`, by default `system:kube-scheduler`, is filled in. Leader election is off unless the
        configuration has a section for it. `more` are additional flags.
        """
        port = child_processes.free_port()
        user = user or self.user("system:kube-scheduler")
        configuration = yaml.safe_load(config) if isinstance(config, str) else dict(config)
        connection = configuration.get("clientConnection", {}) | {"kubeconfig": str(user.kubeconfig)}
        whole = (
            SCHEDULER
            | {"leaderElection": {"leaderElect": False}}
            | configuration
            | {"clientConnection": connection}
        )
        file = self.folder / f"scheduler-{port}.json"
        file.write_text(json.dumps(whole))
        flags = self._component_flags(port) | {"config": str(file), "v": str(verbosity)} | dict(more or {})
        process = self.start_program("kube-scheduler", flags)
        address = f"https://127.0.0.1:{flags['secure-port']}"
        process.wait_ready(lambda: self.api.answers(f"{address}/readyz"))
        return process

    def start_controller_manager(
        self, controllers: str = CONTROLLERS, more: Mapping[str, str] | None = None
    ) -> Process:
        """Starts kube-controller-manager with these controllers; `more` are additional flags."""
        port = child_processes.free_port()
        user = self.user("system:kube-controller-manager")
        flags = (
            self._component_flags(port)
            | {
                "kubeconfig": str(user.kubeconfig),
                "leader-elect": "false",
                "controllers": controllers,
                "kube-api-qps": "300",  # 20 per second, the default, are slow: it first deletes old namespaces
                "kube-api-burst": "600",
                "use-service-account-credentials": "true",  # each controller has the rights of its own role
                "service-account-private-key-file": str(self._accounts.key),
                "root-ca-file": str(self.ca_file),
            }
            | dict(more or {})
        )
        process = self.start_program("kube-controller-manager", flags)
        process.wait_ready(lambda: self.api.answers(f"https://127.0.0.1:{port}/healthz"))
        return process

    def user(self, name: str, rules: Sequence[Object] = (), namespace: str = "", group: str = "") -> User:
        """A user with a client certificate and the rights of `rules`, in the cluster or in one namespace."""
        if rules:
            api_user_kubeconfigs.grant(self.api, name, rules, namespace)
        return self._kept(self._server.user(name, group))

    def service_account(
        self, name: str, namespace: str, rules: Sequence[Object] = (), lifetime_s: int = 3600
    ) -> User:
        """A service account with a token and the rights of `rules` in the cluster; `lifetime_s` is at least 600."""
        token = api_user_kubeconfigs.service_account_token(self.api, name, namespace, lifetime_s)
        if rules:
            api_user_kubeconfigs.grant(self.api, f"system:serviceaccount:{namespace}:{name}", rules)
        return self._kept(self._server.bearer(name, token))

    def pod_account(self, pod: Object) -> User:
        """The service account of a pod, with a token that is bound to the pod."""
        name, space = pod["spec"]["serviceAccountName"], pod["metadata"]["namespace"]
        token = api_user_kubeconfigs.service_account_token(self.api, name, space, pod=pod)
        return self._kept(self._server.bearer(pod["metadata"]["name"], token))

    @property
    def kubectl_program(self) -> Path:
        return self._programs / "kubectl"

    def kubectl(self, *arguments: str) -> str:
        """Runs kubectl as the administrator and returns its output."""
        command = [str(self.kubectl_program), f"--kubeconfig={self.admin.kubeconfig}", *arguments]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert completed.returncode == 0, f"kubectl {' '.join(arguments)}: {completed.stderr}"
        return completed.stdout

    def _kept(self, user: User) -> User:
        self._stack.callback(user.api.close)
        return user

    def _start_etcd(self) -> str:
        client, peer = (f"http://127.0.0.1:{child_processes.free_port()}" for _ in range(2))
        flags = {
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }
        self.start_program("etcd", flags).wait_ready(lambda: self.api.answers(f"{client}/health"))
        return client

    def _api_flags(self, etcd: str) -> dict[str, str]:
        serving = self.authority.issue("kube-apiserver", "127.0.0.1", "localhost", SERVICE)
        to_kubelets = self.authority.issue("kube-apiserver-kubelet-client")
        return {
            "etcd-servers": etcd,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self.url.rpartition(":")[2],
            "endpoint-reconciler-type": "none",  # the reconciler refuses a loopback address
            "service-cluster-ip-range": "10.0.0.0/24",
            "tls-cert-file": str(serving.cert),
            "tls-private-key-file": str(serving.key),
            "client-ca-file": str(self.ca_file),
            "authorization-mode": "Node,RBAC",
            "disable-admission-plugins": "TaintNodesByCondition,ServiceAccount",
            "allow-privileged": "true",
            "kubelet-preferred-address-types": "InternalIP",
            "kubelet-client-certificate": str(to_kubelets.cert),
            "kubelet-client-key": str(to_kubelets.key),
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(self._accounts.cert),
            "service-account-signing-key-file": str(self._accounts.key),
            "runtime-config": "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true",
            **FEATURES,
            **self._aggregation_flags(),
        }

    def _aggregation_flags(self) -> dict[str, str]:
        front = certificates.CertificateAuthority(self.folder, "front-proxy-ca")
        proxy = front.issue("front-proxy-client")
        return {
            "requestheader-client-ca-file": str(front.ca_file),
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": str(proxy.cert),
            "proxy-client-key-file": str(proxy.key),
        }

    def _component_flags(self, port: int) -> dict[str, str]:
        serving = self.authority.issue("component", "127.0.0.1")
        return {
            "bind-address": "127.0.0.1",
            "secure-port": str(port),
            "tls-cert-file": str(serving.cert),
            "tls-private-key-file": str(serving.key),
            "authorization-always-allow-paths": "/healthz,/readyz,/livez,/metrics",
            **FEATURES,
        }


@contextlib.contextmanager
def running(
    programs: Path, inside: Path | None = None, flags: Mapping[str, str] | None = None
) -> Iterator[ControlPlane]:
    """A control plane in a temporary folder `inside` another folder; both are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="nodewise-cluster-", dir=inside) as folder:
        plane = ControlPlane(programs, Path(folder))
        try:
            plane.start(flags)
            yield plane
        finally:
            plane.stop()
