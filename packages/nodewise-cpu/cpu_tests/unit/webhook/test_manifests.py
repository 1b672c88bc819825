import base64
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from nodewise_cpu.webhook import manifests
from nodewise_cpu.webhook.manifests import DEFAULT_CAFILE, Object, WebhookInstallation

NOW = datetime(2026, 7, 1, tzinfo=UTC)


OPTIONS = WebhookInstallation()


def installed(options: WebhookInstallation = OPTIONS) -> dict[str, Object]:
    made = manifests.create_certificate(options.namespace, NOW)
    return {obj["kind"]: obj for obj in manifests.objects(options, made)}


def test_objects_are_in_creation_order() -> None:
    expected = ["Secret", "ConfigMap", "Service", "Deployment", "MutatingWebhookConfiguration"]
    assert list(installed()) == expected


def test_without_a_certificate_there_is_no_secret_and_nothing_is_trusted() -> None:
    objects = {obj["kind"]: obj for obj in manifests.objects(WebhookInstallation(), None)}
    assert "Secret" not in objects
    assert "caBundle" not in objects["MutatingWebhookConfiguration"]["webhooks"][0]["clientConfig"]


def test_a_certificate_that_serves_is_kept_and_its_objects_are_the_same() -> None:
    before = installed()
    args = (before["Secret"], before["MutatingWebhookConfiguration"], "default")
    kept = manifests.reuse_or_create_certificate(*args, NOW + timedelta(days=3000))
    assert list(before.values()) == manifests.objects(WebhookInstallation(), kept)


@pytest.mark.parametrize("days", [3290, 4000])
def test_an_expiring_certificate_is_replaced_and_stays_trusted(days: int) -> None:
    before = installed()
    args = (before["Secret"], before["MutatingWebhookConfiguration"], "default")
    now = NOW + timedelta(days=days)
    kept = manifests.reuse_or_create_certificate(*args, now)
    assert manifests.is_certificate_valid_for_service(kept.cert, kept.authorities, "default", now)
    old = base64.b64decode(before["Secret"]["data"]["cert.pem"])
    trusted = x509.load_pem_x509_certificates(kept.authorities)
    assert len(trusted) == (2 if days < 3650 else 1)
    assert manifests.is_certificate_valid_for_service(old, kept.authorities, "default", NOW) == (days < 3650)


@pytest.mark.parametrize(
    ("secret", "registration"),
    [
        (None, None),
        ({"data": None}, {"webhooks": None}),
        (
            {"data": {"cert.pem": "!", "key.pem": "eA=="}},
            {"webhooks": [{"clientConfig": {"caBundle": "eA=="}}]},
        ),
        ({"data": {"cert.pem": 5}}, {"webhooks": [{}]}),
    ],
)
def test_an_unusable_certificate_is_replaced(secret: Object | None, registration: Object | None) -> None:
    kept = manifests.reuse_or_create_certificate(secret, registration, "default", NOW)
    assert manifests.is_certificate_valid_for_service(kept.cert, kept.authorities, "default", NOW)


def test_a_new_authority_is_trusted_before_its_certificate_is_served() -> None:
    before = installed()
    hook = before["MutatingWebhookConfiguration"]
    again = manifests.objects(
        OPTIONS, manifests.reuse_or_create_certificate(before["Secret"], hook, "default", NOW)
    )
    assert kinds(manifests.sort_in_creation_order(again, hook))[-1] == "MutatingWebhookConfiguration"
    renewed = manifests.objects(
        OPTIONS,
        manifests.reuse_or_create_certificate(before["Secret"], hook, "default", NOW + timedelta(days=3300)),
    )
    expected = ["MutatingWebhookConfiguration", "Secret", "ConfigMap", "Service", "Deployment"]
    assert kinds(manifests.sort_in_creation_order(renewed, hook)) == expected


def test_the_registration_is_last_for_a_new_namespace() -> None:
    hook = installed()["MutatingWebhookConfiguration"]
    moved = WebhookInstallation("other")
    made = manifests.objects(moved, manifests.reuse_or_create_certificate(None, hook, "other", NOW))
    for existing in (hook, None, {"webhooks": None}):
        assert kinds(manifests.sort_in_creation_order(made, existing))[-1] == "MutatingWebhookConfiguration"


def kinds(made: Sequence[Object]) -> list[str]:
    return [obj["kind"] for obj in made]


def test_validity_of_a_certificate_for_namespace_and_authority() -> None:
    made, other = manifests.create_certificate("one", NOW), manifests.create_certificate("one", NOW)
    valid = manifests.is_certificate_valid_for_service
    assert valid(made.cert, other.authorities + made.authorities, "one", NOW)
    assert not valid(made.cert, made.authorities, "two", NOW)
    assert not valid(made.cert, other.authorities, "one", NOW)
    # an extension twice: cryptography decodes the certificate, but not its extensions
    der = x509.load_pem_x509_certificate(made.cert).public_bytes(serialization.Encoding.DER)
    key_usage, constraints = (bytes.fromhex(f"0603551d{last}") for last in ("0f", "13"))
    twice = x509.load_der_x509_certificate(der.replace(constraints, key_usage))
    assert not valid(twice.public_bytes(serialization.Encoding.PEM), made.authorities, "one", NOW)
    long = manifests.create_certificate("n" * 63, NOW)
    assert valid(long.cert, long.authorities, "n" * 63, NOW)


def test_the_webhook_has_no_token_and_no_rights_and_reads_its_files_beside_the_systems() -> None:
    spec = installed()["Deployment"]["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    (container,) = spec["containers"]
    assert container["securityContext"]["runAsNonRoot"]
    expected = ["/etc/webhook", "/etc/webhook-certs"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == expected
    assert not any("hostPath" in volume for volume in spec["volumes"])


@pytest.mark.parametrize(
    ("cafile", "arguments"),
    [
        ("", ["--insecure=True"]),
        (DEFAULT_CAFILE, ["--cafile=/etc/webhook-clients/ca.crt", "--insecure=False"]),
        ("/etc/own.crt", ["--cafile=/etc/own.crt", "--insecure=False"]),
    ],
)
def test_client_certificates_are_optional(cafile: str, arguments: list[str]) -> None:
    (container,) = installed(WebhookInstallation(cafile=cafile))["Deployment"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["args"][3:] == arguments


def test_older_api_server_gets_known_fields_only() -> None:
    webhook_config = installed(WebhookInstallation(version="v1beta1"))["MutatingWebhookConfiguration"]
    assert webhook_config["apiVersion"] == "admissionregistration.k8s.io/v1beta1"
    expected = {"name", "clientConfig", "rules", "failurePolicy", "namespaceSelector"}
    assert webhook_config["webhooks"][0].keys() == expected


def test_options_are_applied() -> None:
    options = WebhookInstallation(
        "own", "image:1", "Never", "secret", "/opt/cmk", "", "Fail", {"cores": "yes"}
    )
    objects = installed(options)
    spec = objects["Deployment"]["spec"]["template"]["spec"]
    assert spec["imagePullSecrets"] == [{"name": "secret"}]
    assert (spec["containers"][0]["image"], spec["containers"][0]["imagePullPolicy"]) == ("image:1", "Never")
    mutations = yaml.load(objects["ConfigMap"]["data"]["mutations.yaml"], yaml.CSafeLoader)["mutations"]
    assert mutations["perPod"]["spec"]["volumes"][0]["hostPath"]["path"] == "/opt/cmk"
    (hook,) = objects["MutatingWebhookConfiguration"]["webhooks"]
    assert hook["failurePolicy"] == "Fail"
    assert hook["namespaceSelector"] == {"matchLabels": {"cores": "yes"}}
    assert hook["clientConfig"]["service"]["namespace"] == "own"


def test_the_api_servers_files_name_each_other() -> None:
    texts = manifests.admission_configuration_files(
        "/etc/x/", "ns1", manifests.ApiServerCertificate("/c", "/k")
    )
    configuration = yaml.load(texts[manifests.ADMISSION_CONFIGURATION], yaml.CSafeLoader)
    assert configuration["plugins"][0]["configuration"]["kubeConfigFile"] == f"/etc/x/{manifests.KUBECONFIG}"
    (user,) = yaml.load(texts[manifests.KUBECONFIG], yaml.CSafeLoader)["users"]
    assert user == {
        "name": "cmk-webhook-service.ns1.svc",
        "user": {"client-certificate": "/c", "client-key": "/k"},
    }


DEPLOY = Path(__file__).parents[5] / "deploy"


def test_all_that_ships_of_the_cpu_manager_is_in_one_namespace() -> None:
    """The only exception are the rights to the older program's reports, which are in `default`."""
    names: set[tuple[str, str]] = set()
    for path in DEPLOY.glob("cpu*.yaml"):
        for manifest in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            about = manifest["metadata"]
            name = about["name"] if manifest["kind"] == "Namespace" else about.get("namespace", "")
            names.add((name, about["name"] if name == "default" else ""))
    assert names == {("cmk-namespace", ""), ("default", "cmk-uninstall"), ("", "")}


def test_shipped_manifest_equals_output_of_command() -> None:
    shipped = (Path(__file__).parents[5] / "deploy/cpu-webhook.yaml").read_text()
    assert list(yaml.load_all(shipped, yaml.CSafeLoader)) == manifests.objects(
        WebhookInstallation("cmk-namespace"), None
    )
