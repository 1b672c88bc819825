"""The numbered cases of CMK's webhook, with a running server over TLS."""

import base64
import json
import os
import signal
import socket
import ssl
import subprocess
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from tests import forked_commands, plain_http

from cpu_tests.conformance import case_table_rows, webhook_process
from cpu_tests.conformance.case_table_rows import StoryRow, WebhookHttpRow, WebhookRow
from cpu_tests.conformance.webhook_process import CMK, NODEWISE, Object, Webhook, WebhookCertificateFiles
from cpu_tests.unit.webhook.json_patch import applied

OLDER: Object = {
    "perPod": {
        "metadata": {"annotations": {"cmk.intel.com/resources-injected": "true"}},
        "spec": {
            "serviceAccountName": "cmk-serviceaccount",
            "tolerations": [{"operator": "Exists"}],
            "volumes": [
                {"name": "cmk-host-proc", "hostPath": {"path": "/proc"}},
                {"name": "cmk-install-dir", "hostPath": {"path": "/opt/bin"}},
            ],
        },
    },
    "perContainer": {
        "env": [{"name": "CMK_PROC_FS", "value": "/host/proc"}],
        "volumeMounts": [
            {"name": "cmk-host-proc", "mountPath": "/host/proc", "readOnly": True},
            {"name": "cmk-install-dir", "mountPath": "/opt/bin", "readOnly": True},
        ],
    },
}
MOUNTS = {"own": ["/opt/bin", "/run/nodewise"], "older": ["/host/proc", "/opt/bin"]}
TOLERATED = {
    "own": {"key": "cmk", "operator": "Exists", "effect": "NoSchedule"},
    "older": {"operator": "Exists"},
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    with webhook_process.serving(tmp_path_factory.mktemp("own"), "--insecure=True") as running:
        yield running


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    folder = tmp_path_factory.mktemp("older")
    with webhook_process.serving(folder, "--insecure=True", mutations=OLDER) as running:
        yield running


# pods


def pod_of(description: Object) -> Object:
    spec: Object = {
        kind: [container(name, spec) for name, spec in description[kind].items()]
        for kind in ("containers", "initContainers")
        if kind in description
    }
    if "serviceAccountName" in description:
        spec["serviceAccountName"] = description["serviceAccountName"]
    if "volumes" in description:
        spec["volumes"] = [{"name": name, "emptyDir": {}} for name in description["volumes"]]
    metadata: Object = {"name": "p"}
    if "annotations" in description:
        metadata["annotations"] = description["annotations"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def container(name: str, spec: Object) -> Object:
    resources = {
        part: {f"cmk.intel.com/{word}": amount for word, amount in spec[part].items()}
        for part in ("requests", "limits")
        if part in spec
    }
    made: Object = {"name": name, "image": "none", "resources": resources}
    if "env" in spec:
        made["env"] = [{"name": key, "value": value} for key, value in spec["env"].items()]
    return made


def by_name(entries: list[Object] | None, key: str, value: str) -> dict[str, Any]:
    values = {entry[key]: entry[value] for entry in entries or ()}
    assert len(values) == len(entries or ())
    return values


@pytest.mark.parametrize("row", case_table_rows.read("webhook", WebhookRow), ids=lambda row: row.id)
def test_pods(row: WebhookRow, own: Webhook, older: Webhook) -> None:
    mutations = {"own": own, "older": older}[row.mutations]
    pod = pod_of(row.pod)
    operations = mutations.operations(pod)
    if not row.mounted:
        assert operations == []
        return
    assert {operation["path"] for operation in operations}.isdisjoint(
        {"", "/metadata", "/spec", "/spec/containers"}
    )
    mutated = applied(operations, pod)
    spec = mutated["spec"]
    containers = {entry["name"]: entry for entry in (*spec["containers"], *spec.get("initContainers", ()))}
    assert {name: by_name(entry.get("env"), "name", "value") for name, entry in containers.items()} == {
        name: row.env.get(name, {}) for name in containers
    }
    mounts = {
        name: list(by_name(entry.get("volumeMounts"), "mountPath", "name"))
        for name, entry in containers.items()
    }
    assert mounts == {name: MOUNTS[row.mutations] if name in row.mounted else [] for name in containers}
    volumes = [volume["name"] for volume in spec["volumes"]]
    assert volumes == (row.volumes or volumes)
    assert len(set(volumes)) == len(volumes)
    assert mutated["metadata"]["annotations"] == (row.annotations or mutated["metadata"]["annotations"])
    assert spec["tolerations"] == [TOLERATED[row.mutations]]
    assert spec.get("serviceAccountName", "") == (
        row.serviceAccountName or spec.get("serviceAccountName", "")
    )
    assert mutations.operations(mutated) == []


# HTTP


def content(row: WebhookHttpRow) -> bytes:
    if row.text is not None:
        return row.text.encode()
    body = webhook_process.review()
    if row.body is not None:
        body = {"apiVersion": webhook_process.V1, **row.body}
    text = json.dumps(body).encode()
    padding = max(0, row.pad - len(text) - len(b'"pad": "", '))
    return text.replace(b"{", b'{"pad": "%s", ' % (b"x" * padding), 1) if row.pad else text


@pytest.mark.parametrize("row", case_table_rows.read("webhook_http", WebhookHttpRow), ids=lambda row: row.id)
def test_requests(row: WebhookHttpRow, own: Webhook) -> None:
    sent = content(row)
    assert len(sent) == (row.pad or len(sent))
    with own.client(own.certificates.context()) as client:
        answer = client.request(row.method, row.path, content=sent, headers={"Content-Type": row.type})
    assert answer.status_code == row.status
    assert [part for part in row.error if part not in answer.text] == []
    if row.status == httpx2.codes.OK:
        response = answer.json()["response"]
        assert response["uid"] == "u1"
        assert response["allowed"] is not bool(row.error)
        assert ("patch" in response) is not bool(row.error)
        assert response.get("status", {}).get("code") == (400 if row.error else None)
    else:
        assert answer.json()["error"]
    assert own.operations()


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_the_answer_is_of_the_version_that_asks(version: str, own: Webhook) -> None:
    answer = own.post(webhook_process.review(webhook_process.pod_with_request(), version)).json()
    assert answer["apiVersion"] == version
    assert answer["response"]["patchType"] == "JSONPatch"


def test_only_new_pods_are_mutated(own: Webhook) -> None:
    """A registration that sends other requests must not block the deletion of pods."""
    for operation in ("DELETE", "UPDATE", "CONNECT"):
        body = webhook_process.review()
        body["request"] |= {"operation": operation, "object": None}
        assert own.post(body).json()["response"] == {"uid": "u1", "allowed": True}


def test_a_pod_that_cannot_be_merged_is_rejected_with_400(own: Webhook) -> None:
    pod = webhook_process.pod_with_request()
    pod["spec"] |= {"tolerations": {"key": "a"}}
    response = own.post(webhook_process.review(pod)).json()["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 400)
    assert "request.object.spec.tolerations" in response["status"]["message"]


def test_silent_clients_delay_no_others(own: Webhook) -> None:
    port = int(own.url.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(20)]
    try:
        assert own.operations()
    finally:
        for connection in silent:
            connection.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_served(version: ssl.TLSVersion, own: Webhook) -> None:
    context = own.certificates.context()
    context.minimum_version = context.maximum_version = version
    with own.client(context) as client:
        assert client.post("/mutate", json=webhook_process.review()).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_well(number: signal.Signals, tmp_path: Path) -> None:
    with webhook_process.serving(tmp_path, "--insecure=True") as running:
        os.kill(running.process.pid, number)
        assert running.process._child.wait(60) == 0


# stories


def certificate(folder: Path) -> None:
    command = [NODEWISE, "cpu", "webhook", "--print-manifests", "--with-certificate", "--namespace=ns1"]
    command_result = forked_commands.run(command, check=True, cwd=folder)
    objects = {obj["kind"]: obj for obj in yaml.load_all(command_result.stdout, yaml.CSafeLoader)}
    secret = {name: base64.b64decode(text) for name, text in objects["Secret"]["data"].items()}
    (hook,) = objects["MutatingWebhookConfiguration"]["webhooks"]
    leaf = x509.load_pem_x509_certificate(secret["cert.pem"])
    trusted = x509.load_pem_x509_certificate(base64.b64decode(hook["clientConfig"]["caBundle"]))
    leaf.verify_directly_issued_by(trusted)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    host = "cmk-webhook-service"
    assert names.get_values_for_type(x509.DNSName) == [host, f"{host}.ns1", f"{host}.ns1.svc"]
    assert leaf.subject.rfc4514_string() == f"CN={host}.ns1.svc"
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    public = leaf.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert trusted.public_key() != public
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc > timedelta(days=3650)
    assert "PRIVATE KEY" not in command_result.stdout  # the Secret has it in base64
    assert secret.keys() == {"cert.pem", "key.pem"}


def bad_mutations(folder: Path) -> None:
    with webhook_process.serving(folder, "--insecure=True") as running:
        request = webhook_process.review()
        for text in ("mutations: {perPod: [1]}", "mutations: {", "", "mutations: {perpod: {}}"):
            running.mutations.write_text(text)
            assert running.post(request).status_code == 500
            assert str(running.mutations) in running.post(request).json()["error"]
            assert running.operations({"spec": {"containers": [{"name": "c1"}]}}) == []
            large = webhook_process.pod_with_request()
            large["spec"]["nodeName"] = "n" * 2**17
            assert running.post(webhook_process.review(large)).status_code == 500
        assert running.process.log_line_has(
            "warning", "cpu_mutations_failed", "mutations.perPod", "[1]", "a mapping"
        )
        assert running.process.log_line_has("cpu_mutations_failed", "mutations.perpod", "unknown")
        assert "nodewise_cpu_mutations_failing 1.0" in plain_http.get(f"{running.health}/metrics").text
        running.mutations.unlink()
        assert running.post(request).status_code == 500
        assert running.process.log_line_has("cpu_mutations_failed", "No such file")
        running.mutations.write_text("mutations: {perPod: {metadata: {labels: {a: b}}}}")
        assert {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}} in running.operations(
            webhook_process.pod_with_request()
        )
        assert "nodewise_cpu_mutations_failing 0.0" in plain_http.get(f"{running.health}/metrics").text
    ended = started(folder, "--insecure=True", mutations={"perPod": [1]})
    assert ended.returncode == 2
    assert "mutations.perPod: [1]; expected a mapping" in ended.stderr


def edited_mutations(folder: Path) -> None:
    with webhook_process.serving(folder, "--insecure=True") as running:
        assert running.operations()
        edited = webhook_process.own_mutations()
        edited["perContainer"] = {"env": [{"name": "EDITED", "value": "yes"}]}
        running.mutations.write_text(yaml.safe_dump({"mutations": edited}))
        pod = applied(running.operations(), webhook_process.pod_with_request())
        env = [variable["name"] for variable in pod["spec"]["containers"][0]["env"]]
        assert env == ["EDITED", "CMK_NUM_CORES"]


def no_certificate(folder: Path) -> None:
    """Also where a word says no in another way than `False`."""
    for word in ("False", "no"):
        with webhook_process.serving(folder, f"--insecure={word}") as running:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = running.certificates.context()
                context.minimum_version = context.maximum_version = version
                with running.client(context) as client, pytest.raises(httpx2.TransportError):
                    client.post("/mutate", json=webhook_process.review())
            assert running.process.log_line_has("info", "cpu_webhook_mutual", "cafile=")
    ended = started(folder, "--insecure=perhaps")
    assert ended.returncode == 2
    assert "--insecure: 'perhaps'; expected true or false" in ended.stderr


def client_certificate(folder: Path) -> None:
    with webhook_process.serving(folder, "--insecure=False") as running:
        answer = running.post(webhook_process.review(), shows=True)
        assert answer.status_code == 200
        assert answer.json()["response"]["allowed"]
        strangers = running.certificates.servers.issue("stranger")
        context = running.certificates.servers.client_context(strangers)
        with running.client(context) as client, pytest.raises(httpx2.TransportError):
            client.post("/mutate", json=webhook_process.review())


def any_client(folder: Path) -> None:
    with webhook_process.serving(folder, "--insecure=True") as running:
        assert running.post(webhook_process.review()).status_code == 200
        assert running.process.log_line_has("warning", "cpu_webhook_any_client")
        port = int(running.url.rpartition(":")[2])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", port), 60) as raw, pytest.raises(ssl.SSLError):
            context.wrap_socket(raw)


def lacking_key(folder: Path) -> None:
    ended = started(folder, "--insecure=True", without="port")
    assert ended.returncode == 2
    assert "server.port: missing" in ended.stderr


def started(
    folder: Path, *arguments: str, without: str = "", mutations: Object | None = None
) -> subprocess.CompletedProcess[str]:
    """The error of a server that does not start."""
    certificates = WebhookCertificateFiles(folder)
    content = webhook_process.own_mutations() if mutations is None else mutations
    file = webhook_process.configure(folder, certificates, content, without=without)
    command = [CMK, "webhook", "--conf-file", file, "--health-port=0", *arguments]
    return forked_commands.run(command)


STORIES: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (
        certificate,
        bad_mutations,
        edited_mutations,
        no_certificate,
        client_certificate,
        any_client,
        lacking_key,
    )
}


@pytest.mark.parametrize("row", case_table_rows.read("webhook_process", StoryRow), ids=lambda row: row.id)
def test_stories(row: StoryRow, tmp_path: Path) -> None:
    STORIES[row.story](tmp_path)
