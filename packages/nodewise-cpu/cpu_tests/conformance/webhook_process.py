"""The webhook as a process, with certificates, and a client like the API server."""

import base64
import contextlib
import json
import re
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import yaml
from tests.cluster.certificates import CertificateAuthority
from tests.cluster.child_processes import Process, number
from tests.forked_commands import ForkedProcess

from nodewise_cpu.webhook import pod_mutation

Object = dict[str, Any]
NODEWISE = Path(sys.executable).with_name("nodewise")
CMK = NODEWISE.with_name("cmk")
PATIENCE_S = 60.0
V1 = "admission.k8s.io/v1"


class WebhookCertificateFiles:
    """The certificates of the server, and of an authorized client."""

    def __init__(self, folder: Path) -> None:
        self.servers = CertificateAuthority(folder, "servers")
        self.clients = CertificateAuthority(folder, "clients")
        self.server = self.servers.issue("webhook", "127.0.0.1", "localhost")
        self.client = self.clients.issue("kube-apiserver")

    def context(self, *, shows: bool = False) -> ssl.SSLContext:
        """The TLS context of a client with or without a certificate."""
        return self.servers.client_context(self.client if shows else None)


class Webhook(NamedTuple):
    """A running webhook."""

    process: Process
    url: str
    health: str
    certificates: WebhookCertificateFiles
    mutations: Path

    def post(self, body: Object | bytes, *, shows: bool = False, **headers: str) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **headers}
        with self.client(self.certificates.context(shows=shows)) as client:
            return client.post("/mutate", content=content, headers=sent)

    def client(self, context: ssl.SSLContext) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, verify=context, trust_env=False, timeout=PATIENCE_S)

    def operations(self, pod: Object | None = None) -> list[Object]:
        """The JSON patch of a pod, by default one that requests a core."""
        answer = self.post(review(pod)).raise_for_status().json()
        assert answer["apiVersion"] == V1
        assert answer["kind"] == "AdmissionReview"
        assert answer["response"]["uid"] == "u1"
        assert answer["response"]["allowed"] is True
        assert answer.keys() == {"apiVersion", "kind", "response"}
        patch = answer["response"].get("patch")
        assert answer["response"].get("patchType") == ("JSONPatch" if patch else None)
        return json.loads(base64.b64decode(patch)) if patch else []


def review(pod: Object | None = None, version: str = V1, uid: str = "u1") -> Object:
    """A review of a pod, by default one that requests a core."""
    pod = pod_with_request() if pod is None else pod
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": uid, "kind": kind, "operation": "CREATE", "namespace": "default", "object": pod}
    return {"apiVersion": version, "kind": "AdmissionReview", "request": request}


def pod_with_request(count: str = "1") -> Object:
    """A pod that requests cores."""
    resources = {"requests": {"cmk.intel.com/exclusive-cores": count}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod_with_request"},
        "spec": {"containers": [{"name": "c1", "image": "none", "resources": resources}]},
    }


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, "not so after a minute"
        time.sleep(0.02)


def own_mutations() -> Object:
    per_pod, per_container = pod_mutation.default_mutations()
    return {"perPod": per_pod, "perContainer": per_container}


def configure(
    folder: Path, certificates: WebhookCertificateFiles, mutations: Object, *, without: str = ""
) -> Path:
    """Write both files. Returns the path of server.yaml, which lacks the key `without`."""
    (folder / "mutations.yaml").write_text(yaml.safe_dump({"mutations": mutations}))
    server = {
        "binding-address": "127.0.0.1",
        "port": 0,
        "cert": str(certificates.server.cert),
        "key": str(certificates.server.key),
        "mutations": str(folder / "mutations.yaml"),
    }
    server.pop(without, None)
    (folder / "server.yaml").write_text(yaml.safe_dump({"server": server}))
    return folder / "server.yaml"


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, mutations: Object | None = None) -> Iterator[Webhook]:
    """The command, from its first line to its end; the client CA is in `certificates`."""
    certificates = WebhookCertificateFiles(folder)
    file = configure(folder, certificates, own_mutations() if mutations is None else mutations)
    options = [
        f"--conf-file={file}",
        f"--cafile={certificates.clients.ca_file}",
        "--health-port=0",
        "--shutdown-delay=0s",
        *arguments,
    ]
    log = folder / f"webhook-{number()}.log"
    with ForkedProcess([CMK, "webhook", *options], log) as process:
        process.wait_ready(lambda: len(_urls(log)) > 1)
        yield Webhook(process, *_urls(log), certificates, folder / "mutations.yaml")


def _urls(log: Path) -> list[str]:
    return re.findall(r"listening .*url=(\S+)", log.read_text())
