"""A real API server calls the webhook over TLS, and creates the pods that it mutates."""

import base64
import contextlib
import functools
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from nodewise_cpu import cmk_names
from nodewise_cpu.webhook import manifests as certificates
from nodewise_cpu.webhook import manifests as webhook_manifests
from tests import plain_http
from tests.cluster import asgi_server_thread, controlplane, namespace_sandboxes
from tests.cluster.api_client import ApiError, ClusterApi, Object, folder_of, path_of
from tests.cluster.certificates import CertificateAuthority, CertificatePair
from tests.cluster.child_processes import Process, free_port, number
from tests.cluster.extender_process import NODEWISE
from tests.cluster.namespace_sandboxes import Sandbox, wait

REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class RunningWebhook(NamedTuple):
    """The running webhook, which the API server calls by a Service that points to this machine."""

    sandbox: Sandbox
    process: Process
    health: str
    pair: CertificatePair

    def offered(self, pod: Object) -> Object:
        """The pod that the API server would create (dry run)."""
        path = f"/api/v1/namespaces/{self.sandbox.namespace}/pods"
        answer: Object = self.sandbox.api.request("POST", path, json=pod, params={"dryRun": "All"}).json()
        return answer

    def count(self, outcome: str) -> float:
        """The number of reviews with this outcome."""
        lines = plain_http.get(f"{self.health}/metrics").text.splitlines()
        name = f'nodewise_cpu_reviews_total{{outcome="{outcome}"}} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def manifests(*arguments: str) -> dict[str, Object]:
    """The manifests that the command prints, by kind."""
    command = [NODEWISE, "cpu", "webhook", "--print-manifests", "--with-certificate", *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(completed.stdout)}


@contextlib.contextmanager
def running(
    sandbox: Sandbox, folder: Path, *arguments: str, port: int = 0, asks: bool = True
) -> Iterator[RunningWebhook]:
    """Runs the webhook on this machine with the manifests that it prints, and with `arguments` instead of the
    Deployment's. If `asks` is set, waits until the API server calls it.
    """
    space = sandbox.namespace
    selector = f"kubernetes.io/metadata.name={space}"
    printed = manifests(f"--namespace={space}", "--failure-policy=Fail", f"--namespace-selector={selector}")
    files = {name: base64.b64decode(text) for name, text in printed["Secret"]["data"].items()}
    files |= {name: text.encode() for name, text in printed["ConfigMap"]["data"].items()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    server = yaml.safe_load(files["server.yaml"])["server"]
    server |= {"binding-address": "127.0.0.1", "port": port, "mutations": str(folder / "mutations.yaml")}
    server |= {"cert": str(folder / "cert.pem"), "key": str(folder / "key.pem")}
    (folder / "server.yaml").write_text(yaml.safe_dump({"server": server}))
    options = [f"--conf-file={folder / 'server.yaml'}", "--health-port=0", "--shutdown-delay=0s", *arguments]
    log = folder / f"webhook-{number()}.log"
    with Process([NODEWISE, "cpu", "webhook", *options], log) as process, contextlib.ExitStack() as stack:
        process.wait_ready(lambda: log.read_text().count("url=") > 1)
        urls = [line.partition("url=")[2].strip() for line in log.read_text().splitlines() if "url=" in line]
        registration = at_hand(
            printed["MutatingWebhookConfiguration"], space, int(urls[0].rpartition(":")[2])
        )
        sandbox.put(printed["Service"] | {"spec": {"type": "ExternalName", "externalName": "localhost"}})
        sandbox.api.create(registration)
        stack.callback(sandbox.api.delete, path_of(registration))
        made = RunningWebhook(
            sandbox, process, urls[1], CertificatePair(folder / "cert.pem", folder / "key.pem")
        )
        if asks:
            wait("the API server asks the webhook", functools.partial(mutated, made))
        yield made


def mutated(running: RunningWebhook) -> Object | None:
    """A mutated pod; None until the API server has seen the registration of the webhook."""
    admitted_pod = running.offered(pod(requests={cmk_names.EXCLUSIVE_CORES: "1"}))
    return admitted_pod if "annotations" in admitted_pod["metadata"] else None


def at_hand(registration: Object, space: str, port: int) -> Object:
    """Adapts the registration: a unique name, and the webhook's port on this machine."""
    registration["metadata"]["name"] += f"-{space}"
    (hook,) = registration["webhooks"]
    hook["clientConfig"]["service"]["port"] = port
    return registration


def pod(
    name: str = "p", *, requests: dict[str, str] | None = None, annotations: dict[str, str] | None = None
) -> Object:
    resources = {"requests": requests, "limits": requests} if requests else {}
    containers = [{"name": "c1", "image": "none", "resources": resources}, {"name": "c2", "image": "none"}]
    metadata: Object = {"name": name, **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def expect_ready_for_cores(admitted_pod: Object) -> None:
    assert admitted_pod["metadata"]["annotations"][cmk_names.INJECTED] == "true"
    spec = admitted_pod["spec"]
    first, other = spec["containers"]
    assert first["env"] == [{"name": "CMK_NUM_CORES", "value": "1"}]
    assert [mount["mountPath"] for mount in first["volumeMounts"]] == ["/opt/bin", "/run/nodewise"]
    assert all(mount["readOnly"] for mount in first["volumeMounts"])
    assert "env" not in other
    assert "volumeMounts" not in other
    assert [volume["hostPath"]["path"] for volume in spec["volumes"]] == ["/opt/bin", "/run/nodewise"]
    assert {"key": "cmk", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]


@pytest.fixture(scope="module")
def plain(
    plane: controlplane.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningWebhook]:
    """A webhook that requires no client certificate; by default, an API server presents none."""
    with (
        namespace_sandboxes.created(plane) as sandbox,
        running(sandbox, tmp_path_factory.mktemp("webhook"), "--insecure=True") as made,
    ):
        yield made


@pytest.mark.parametrize("resource", [cmk_names.EXCLUSIVE_CORES, cmk_names.NON_ISOLCPUS_CORES])
def test_a_pod_that_is_made_is_mutated(plain: RunningWebhook, resource: str) -> None:
    name = f"made-{resource.rpartition('/')[2]}"
    plain.sandbox.put(pod(name, requests={resource: "1"}))
    expect_ready_for_cores(plain.sandbox.pod(name) or {})


def test_that_everybody_is_served_is_said(plain: RunningWebhook) -> None:
    assert plain.process.log_line_has("warning", "cpu_webhook_any_client")


def test_a_pod_that_is_mutated_already_stays_as_it_is(plain: RunningWebhook) -> None:
    first = plain.offered(pod(requests={cmk_names.EXCLUSIVE_CORES: "1"}))
    before = plain.count("untouched")
    again = plain.offered(
        {key: first[key] for key in ("apiVersion", "kind", "spec")}
        | {"metadata": {"name": "p", "annotations": first["metadata"]["annotations"]}}
    )
    assert again["spec"] == first["spec"]
    assert plain.count("untouched") > before


def test_the_api_server_asks_only_about_pods_that_ask_for_cores(plain: RunningWebhook) -> None:
    before = {outcome: plain.count(outcome) for outcome in ("mutated", "untouched", "refused")}
    for submitted_pod in (pod(), pod(requests={"cpu": "1"}), pod(annotations={"a": "b"})):
        admitted_pod = plain.offered(submitted_pod)
        assert "volumes" not in admitted_pod["spec"]
        assert "env" not in admitted_pod["spec"]["containers"][0]
    assert before == {outcome: plain.count(outcome) for outcome in before}
    plain.offered(pod(annotations={cmk_names.MUTATE: "no"}))
    assert plain.count("untouched") == before["untouched"] + 1


def test_all_containers_of_a_pod_that_wants_to_be_mutated(plain: RunningWebhook) -> None:
    admitted_pod = plain.offered(pod(annotations={cmk_names.MUTATE: "true"}))
    mounts = [len(container["volumeMounts"]) for container in admitted_pod["spec"]["containers"]]
    assert mounts == [2, 2]


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_namespace_with_pod_security_rejects_mutated_pods(plain: RunningWebhook, level: str) -> None:
    space, api = f"/api/v1/namespaces/{plain.sandbox.namespace}", plain.sandbox.api
    label = "pod-security.kubernetes.io/enforce"
    api.patch(space, {"metadata": {"labels": {label: level}}})
    try:
        message = wait("pods with cores are rejected", lambda: refusal(plain))
        assert f'violates PodSecurity "{level}:' in message
        assert 'volumes "cmk-install-dir", "nodewise-cpu-agent"' in message
        api.patch(space, {"metadata": {"labels": {label: "privileged"}}})
        expect_ready_for_cores(wait("pods with cores are admitted", lambda: admitted(plain)))
    finally:
        api.patch(space, {"metadata": {"labels": {label: None}}})


def admitted(webhook: RunningWebhook) -> Object | None:
    return None if refusal(webhook) else mutated(webhook)


def test_a_container_that_runs_first_is_seen(plain: RunningWebhook) -> None:
    requested_pod = pod()
    first = {"name": "i1", "image": "none", "resources": {"limits": {cmk_names.EXCLUSIVE_CORES: "1"}}}
    requested_pod["spec"]["initContainers"] = [first]
    pod_object = plain.offered(requested_pod)["spec"]
    assert pod_object["initContainers"][0]["env"] == [{"name": "CMK_NUM_CORES", "value": "1"}]
    assert "volumeMounts" not in pod_object["containers"][0]


def test_the_webhooks_own_pods_and_other_namespaces_do_not_need_it(
    plain: RunningWebhook, sandbox: Sandbox
) -> None:
    own = pod(requests={cmk_names.EXCLUSIVE_CORES: "1"})
    own["metadata"]["labels"] = {"app": "cmk-webhook-app"}
    assert "volumes" not in plain.offered(own)["spec"]
    sandbox.put(pod("elsewhere", requests={cmk_names.EXCLUSIVE_CORES: "1"}))
    assert "volumes" not in (sandbox.pod("elsewhere") or {})["spec"]


def test_container_of_another_webhook_is_mutated(plain: RunningWebhook, tmp_path: Path) -> None:
    """The other webhook is called later, because of its name, so the API server calls this one again."""
    added = {"name": "added", "image": "none", "resources": {"limits": {cmk_names.EXCLUSIVE_CORES: "2"}}}
    with another_webhook(plain.sandbox, tmp_path, added):

        def seen() -> Object | None:
            spec: Object = plain.offered(pod(requests={cmk_names.EXCLUSIVE_CORES: "1"}))["spec"]
            return spec if len(spec["containers"]) > 2 else None

        spec = wait("the other webhook is asked", seen)
    wait("the other webhook is gone", lambda: None if seen() else True)
    first, _, last = spec["containers"]
    assert last["env"] == [{"name": "CMK_NUM_CORES", "value": "2"}]
    assert first["env"] == [{"name": "CMK_NUM_CORES", "value": "1"}]
    assert len(last["volumeMounts"]) == len(first["volumeMounts"]) == len(spec["volumes"]) == 2


@contextlib.contextmanager
def another_webhook(sandbox: Sandbox, folder: Path, container: Object) -> Iterator[None]:
    """Runs and registers a webhook that adds a container to every pod of the namespace."""

    async def application(
        _scope: asgi_server_thread.Scope, receive: asgi_server_thread.Receive, send: asgi_server_thread.Send
    ) -> None:
        uid = json.loads(await asgi_server_thread.body_of(receive))["request"]["uid"]
        patch = [{"op": "add", "path": "/spec/containers/-", "value": container}]
        response = {"uid": uid, "allowed": True, "patchType": "JSONPatch"}
        response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        await asgi_server_thread.answer(send, 200, review)

    authority = CertificateAuthority(folder, "other")
    tls = asgi_server_thread.ServerTls(authority.issue("other", "127.0.0.1"))
    with asgi_server_thread.serving(application, tls) as url:
        hook = {
            "name": "other.nodewise.io",
            "clientConfig": {"url": url, "caBundle": base64.b64encode(authority.ca_pem).decode()},
            "rules": [
                {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": sandbox.namespace}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        }
        registration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": f"other-{sandbox.namespace}"},
            "webhooks": [hook],
        }
        made = sandbox.api.create(registration)
        try:
            yield
        finally:
            sandbox.api.delete(path_of(made))


def test_a_certificate_made_anew_loses_no_pod(plain: RunningWebhook) -> None:
    """The API server trusts both certificates before the webhook presents the new one. No pod is refused."""
    api = plain.sandbox.api
    path = f"{REGISTRATIONS}/{webhook_manifests.REGISTRATION}-{plain.sandbox.namespace}"
    now = datetime.now(UTC)
    held = api.get(path)
    config = held["webhooks"][0]["clientConfig"]
    made = certificates.create_certificate(plain.sandbox.namespace, now)
    trusted = certificates.ca_bundle_of_both_certificates(made, base64.b64decode(config["caBundle"]), now)
    config["caBundle"] = base64.b64encode(trusted).decode()
    api.request("PUT", path, json=held)
    for content, file in ((made.cert, plain.pair.cert), (made.key, plain.pair.key)):
        file.write_bytes(content)

    def is_reloaded() -> bool | None:
        expect_ready_for_cores(plain.offered(pod(requests={cmk_names.EXCLUSIVE_CORES: "1"})))
        return plain.process.log_line_has("tls_reloaded") or None

    wait("the webhook loads the new certificate", is_reloaded, show=plain.process.tail)
    expect_ready_for_cores(plain.offered(pod(requests={cmk_names.EXCLUSIVE_CORES: "1"})))


def test_api_server_accepts_printed_manifests(sandbox: Sandbox) -> None:
    """The API server accepts the manifests with strict field validation: unknown fields and wrong types are errors."""
    printed = manifests(f"--namespace={sandbox.namespace}", "--insecure=false")
    printed["MutatingWebhookConfiguration"]["metadata"]["name"] += f"-{sandbox.namespace}"
    strictly = {"dryRun": "All", "fieldValidation": "Strict"}
    for manifest in printed.values():
        sandbox.api.request("POST", folder_of(manifest), json=manifest, params=strictly)


class MutualTlsPlane(NamedTuple):
    """An API server that is configured with a client certificate for webhooks, and its CA."""

    plane: controlplane.ControlPlane
    clients: CertificateAuthority
    port: int
    """The port at which the API server calls the webhook."""


@pytest.fixture(scope="module")
def mutual_tls(
    control_plane_programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MutualTlsPlane]:
    """Runs an API server with the two files that the command writes for a webhook in the namespace `mutual-tls`."""
    folder = tmp_path_factory.mktemp("mutual-tls")
    clients = CertificateAuthority(folder, "clients")
    pair = clients.issue("kube-apiserver")
    where = folder / "admission"
    command = [NODEWISE, "cpu", "webhook", f"--print-admission-config={where}", "--namespace=mutual-tls"]
    command += [f"--client-certificate={pair.cert}", f"--client-key={pair.key}"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    file, kubeconfig = completed.stdout.splitlines()
    port = free_port()
    config = yaml.safe_load(Path(kubeconfig).read_text())
    config["users"][0]["name"] += f":{port}"  # the port must be named unless it is 443
    Path(kubeconfig).write_text(yaml.safe_dump(config))
    with controlplane.running(
        control_plane_programs, folder, {"admission-control-config-file": file}
    ) as plane:
        yield MutualTlsPlane(plane, clients, port)


def test_an_api_server_with_a_certificate_is_served_by_mutual_tls(
    mutual_tls: MutualTlsPlane, tmp_path: Path
) -> None:
    with named_sandbox(mutual_tls.plane, "mutual-tls") as sandbox:
        arguments = ("--insecure=False", f"--cafile={mutual_tls.clients.ca_file}")
        with running(sandbox, tmp_path, *arguments, port=mutual_tls.port) as webhook:
            sandbox.put(pod("mutual", requests={cmk_names.EXCLUSIVE_CORES: "1"}))
            expect_ready_for_cores(sandbox.pod("mutual") or {})
            assert webhook.process.log_line_has("info", "cpu_webhook_mutual")
            assert not webhook.process.log_line_has("any_client")


def test_an_api_server_that_shows_none_is_refused_and_both_say_so(
    mutual_tls: MutualTlsPlane, tmp_path: Path
) -> None:
    """The client certificate of the API server is configured for another webhook."""
    arguments = ("--insecure=False", f"--cafile={mutual_tls.clients.ca_file}")
    with (
        namespace_sandboxes.created(mutual_tls.plane) as sandbox,
        running(sandbox, tmp_path, *arguments, asks=False) as webhook,
    ):
        message = wait("the API server is refused", functools.partial(refusal, webhook))
        assert "certificate required" in message
        assert webhook.process.log_line_has("no_certificate")


def refusal(webhook: RunningWebhook) -> str | None:
    try:
        webhook.offered(pod(requests={cmk_names.EXCLUSIVE_CORES: "1"}))
    except ApiError as error:
        return str(error)
    return None


@contextlib.contextmanager
def named_sandbox(plane: controlplane.ControlPlane, name: str) -> Iterator[Sandbox]:
    """A sandbox with this namespace, which the files of the API server name."""
    with namespace_sandboxes.created(plane) as sandbox:
        api: ClusterApi = sandbox.api
        api.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        sandbox.namespace, own = name, sandbox.namespace
        try:
            yield sandbox
        finally:
            sandbox.namespace = own
