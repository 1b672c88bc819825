"""The webhook's objects in a cluster, in the order of creation, and its certificate.

The webhook needs no rights: its pods have no token. Names are CMK's, so that its objects are replaced.
The API server presents a client certificate to the webhook if it is configured to, by two files.
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization

import nodewise
from nodewise.kube import yaml_writer
from nodewise.tls.x509_certificates import (
    UNREADABLE_CERTIFICATE,
    UNREADABLE_EXTENSIONS,
    CertificateIssuer,
    is_issued_by,
    load_certificates,
)
from nodewise_cpu import cmk_names
from nodewise_cpu.webhook import pod_mutation
from nodewise_cpu.webhook.pod_mutation import PATH

SERVICE: Final = "cmk-webhook-service"
VALID: Final = timedelta(days=3650)
"""Long, because nothing can renew it: the key of its authority is not kept. `is_certificate_valid_for_service`
tells when to replace it."""
_RENEW_BEFORE: Final = timedelta(days=365)
_MAX_COMMON_NAME: Final = 64  # RFC 5280

ADMISSION_CONFIGURATION: Final = "admission-control.yaml"
"""The file for `--admission-control-config-file` of kube-apiserver."""
KUBECONFIG: Final = "webhook-kubeconfig.yaml"
DEFAULT_ADMISSION_FOLDER: Final = "/etc/kubernetes/admission"


class WebhookCertificate(NamedTuple):
    """A certificate in PEM."""

    cert: bytes
    key: bytes
    authorities: bytes
    """The CA bundle that the API server has to trust."""


class ApiServerCertificate(NamedTuple):
    """Paths on the API server's machine, by default those of kubeadm. The CA is that of the cluster."""

    certificate: str = "/etc/kubernetes/pki/apiserver-kubelet-client.crt"
    key: str = "/etc/kubernetes/pki/apiserver-kubelet-client.key"


def service_dns_names(namespace: str) -> tuple[str, str, str]:
    """The host names of the webhook's Service."""
    return SERVICE, f"{SERVICE}.{namespace}", f"{SERVICE}.{namespace}.svc"


def create_certificate(namespace: str, now: datetime) -> WebhookCertificate:
    """A certificate for the Service, signed by an authority that signs nothing else and whose key is not kept."""
    issuer = CertificateIssuer("cmk-webhook-ca", now, VALID)
    host = service_dns_names(namespace)[-1]
    leaf = issuer.server(service_dns_names(namespace), host if len(host) <= _MAX_COMMON_NAME else SERVICE)
    return WebhookCertificate(leaf.cert, leaf.key, issuer.cert)


def is_certificate_valid_for_service(cert: bytes, authorities: bytes, namespace: str, now: datetime) -> bool:
    """Whether a certificate is valid for another year and the Service's names, and signed by an authority."""
    try:
        leaf, trusted = x509.load_pem_x509_certificate(cert), x509.load_pem_x509_certificates(authorities)
        alternative = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (*UNREADABLE_CERTIFICATE, *UNREADABLE_EXTENSIONS, x509.ExtensionNotFound):
        return False
    has_names = set(service_dns_names(namespace)) <= set(alternative.get_values_for_type(x509.DNSName))
    lasts = leaf.not_valid_before_utc <= now and now + _RENEW_BEFORE <= leaf.not_valid_after_utc
    return has_names and lasts and any(is_issued_by(leaf, authority) for authority in trusted)


def ca_bundle_of_both_certificates(new: WebhookCertificate, before: bytes, now: datetime) -> bytes:
    """The CA bundle while pods still serve the previous certificate: the authorities of both, in PEM."""
    pem, previous = serialization.Encoding.PEM, load_certificates(before)
    kept = [authority.public_bytes(pem) for authority in previous if authority.not_valid_after_utc > now]
    return new.authorities + b"".join(authority for authority in kept[:1] if authority != new.authorities)


def admission_configuration_files(
    folder: str, namespace: str, client: ApiServerCertificate
) -> Mapping[str, str]:
    """The files, by name, that make the API server present a certificate to the webhook.

    `folder` is their folder on the API server's machine; it has to be an absolute path.
    """
    folder = folder.rstrip("/")
    webhook = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": f"{folder}/{KUBECONFIG}",
    }
    configuration = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "MutatingAdmissionWebhook", "configuration": webhook}],
    }
    host = service_dns_names(namespace)[-1]
    user = {"client-certificate": client.certificate, "client-key": client.key}
    config = {"apiVersion": "v1", "kind": "Config", "users": [{"name": host, "user": user}]}
    comment = f"# kube-apiserver --admission-control-config-file={folder}/{ADMISSION_CONFIGURATION}\n"
    return {
        ADMISSION_CONFIGURATION: comment + yaml_writer.dump(configuration),
        KUBECONFIG: yaml_writer.dump(config),
    }


SECRET: Final = "cmk-webhook-certs"  # noqa: S105 - its name
CONFIG_MAP: Final = "cmk-webhook-configmap"
DEPLOYMENT: Final = "cmk-webhook-deployment"
REGISTRATION: Final = "cmk-webhook-config"
NAME: Final = "cmk.intel.com"
DEFAULT_CAFILE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"

_LABELS: Final[Mapping[str, str]] = {"app": "cmk-webhook-app"}
_PORT: Final = 8443
_HEALTH_PORT: Final = 9002
_CONFIG: Final = "/etc/webhook"
_CERTS: Final = "/etc/webhook-certs"
_CLIENTS: Final = "/etc/webhook-clients"
_CERT, _KEY = "cert.pem", "key.pem"
_ASKED: Final = (
    "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c,"
    " has(c.resources) && ["
    f"'{cmk_names.EXCLUSIVE_CORES}', '{cmk_names.NON_ISOLCPUS_CORES}'].exists(name,"
    " (has(c.resources.requests) && name in c.resources.requests)"
    " || (has(c.resources.limits) && name in c.resources.limits)))"
)
_NOT_STATIC: Final = (
    "!(has(object.metadata.annotations) && 'kubernetes.io/config.mirror' in object.metadata.annotations)"
)
"""The kubelet runs a static pod as its file says. Its mirror pod only shows it, and is never to be refused. The API
server accepts the annotation only on pods with a node.
"""
_ANNOTATED: Final = f"has(object.metadata.annotations) && '{cmk_names.MUTATE}' in object.metadata.annotations"

Object = dict[str, Any]


class WebhookInstallation(NamedTuple):
    """The options of the webhook's deployment, and the selection of pods."""

    namespace: str = "default"
    image: str = f"nodewise:{nodewise.__version__}"
    pull_policy: str = "IfNotPresent"
    pull_secret: str = ""
    install_dir: str = cmk_names.DEFAULT_INSTALL_DIR
    """The folder of the program on nodes."""
    cafile: str = ""
    """Clients need a certificate of this CA, a path in the container; `DEFAULT_CAFILE` is the cluster's.

    Empty: no client certificate is required. An API server presents one only if it is configured to.
    """
    failure_policy: Literal["Ignore", "Fail"] = "Ignore"
    """The failure policy: whether pods that request cores are created while the webhook does not respond."""
    selector: Mapping[str, str] = {}
    """The labels of namespaces whose pods are mutated; empty: all but kube-system."""
    version: Literal["v1", "v1beta1"] = "v1"
    """The version of `admissionregistration.k8s.io`: the older one before Kubernetes 1.16."""
    replicas: int = 2


def reuse_or_create_certificate(
    secret: Object | None, registration: Object | None, namespace: str, now: datetime
) -> WebhookCertificate:
    """The cluster's certificate if it is valid; else a new one, with the previous authority trusted as well."""
    cert, key = (_decode_base64(((secret or {}).get("data") or {}).get(name)) for name in (_CERT, _KEY))
    trusted = _decode_base64(_client_config(registration).get("caBundle"))
    if key and is_certificate_valid_for_service(cert, trusted, namespace, now):
        return WebhookCertificate(cert, key, trusted)
    made = create_certificate(namespace, now)
    return made._replace(authorities=ca_bundle_of_both_certificates(made, trusted, now))


def _decode_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except (TypeError, ValueError):
        return b""


def objects(installation: WebhookInstallation, certificate: WebhookCertificate | None) -> Sequence[Object]:
    """Secret, ConfigMap, Service, Deployment and MutatingWebhookConfiguration.

    Without a certificate there is no Secret, and the API server trusts no authority.
    """
    service = {"selector": dict(_LABELS), "ports": [{"name": "https", "port": 443, "targetPort": _PORT}]}
    parts = [
        _config_map(installation),
        _make_object("v1", "Service", SERVICE, installation, spec=service),
        _deployment(installation),
        _webhook_configuration(installation, certificate),
    ]
    if certificate is None:
        return parts
    data = {_CERT: _encode_base64(certificate.cert), _KEY: _encode_base64(certificate.key)}
    return [_make_object("v1", "Secret", SECRET, installation, type="Opaque", data=data), *parts]


def _encode_base64(text: bytes) -> str:
    return base64.b64encode(text).decode()


def sort_in_creation_order(created: Sequence[Object], existing: Object | None) -> Sequence[Object]:
    """The objects in the order of creation, given the `existing` registration.

    The registration is last, because the webhook has to run before it is called. It is first if it calls this Service
    already and the certificate is new: the API server has to trust its authority, beside the previous one, before the
    webhook presents it.
    """
    *others, registration = created
    had, wanted = _client_config(existing), _client_config(registration)
    renews = bool(had.get("caBundle")) and had["caBundle"] != wanted.get("caBundle")
    is_here = (had.get("service") or {}).get("namespace") == wanted["service"]["namespace"]
    return [registration, *others] if renews and is_here else created


def _client_config(registration: Object | None) -> Mapping[str, Any]:
    hooks = (registration or {}).get("webhooks") or [{}]
    return hooks[0].get("clientConfig") or {}


def _make_object(
    version: str, kind: str, name: str, installation: WebhookInstallation, **parts: Any
) -> Object:
    metadata = {"name": name, "namespace": installation.namespace, "labels": dict(_LABELS)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def _config_map(installation: WebhookInstallation) -> Object:
    per_pod, per_container = pod_mutation.default_mutations(installation.install_dir)
    server = {
        "binding-address": "0.0.0.0",  # noqa: S104 - of a pod
        "port": _PORT,
        "cert": f"{_CERTS}/{_CERT}",
        "key": f"{_CERTS}/{_KEY}",
        "mutations": f"{_CONFIG}/mutations.yaml",
    }
    data = {
        "server.yaml": yaml.safe_dump({"server": server}),
        "mutations.yaml": yaml.safe_dump({"mutations": {"perPod": per_pod, "perContainer": per_container}}),
    }
    return _make_object("v1", "ConfigMap", CONFIG_MAP, installation, data=data)


def _deployment(installation: WebhookInstallation) -> Object:
    volumes = [
        {"name": "config", "configMap": {"name": CONFIG_MAP}},
        {"name": "certs", "secret": {"secretName": SECRET}},
    ]
    if installation.cafile == DEFAULT_CAFILE:
        volumes.append({"name": "clients", "configMap": {"name": "kube-root-ca.crt"}})
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # nodes have the label since Kubernetes 1.14
        **({"nodeSelector": {"kubernetes.io/os": "linux"}} if installation.version == "v1" else {}),
        "containers": [_container(installation)],
        "volumes": volumes,
        # if every node has pools, the webhook has to run on one of them
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule", "key": cmk_names.TAINT}],
        "terminationGracePeriodSeconds": 30,
        **({"imagePullSecrets": [{"name": installation.pull_secret}]} if installation.pull_secret else {}),
    }
    spec = {
        "replicas": installation.replicas,
        "selector": {"matchLabels": dict(_LABELS)},
        "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": dict(_LABELS)}, "spec": pod},
    }
    return _make_object("apps/v1", "Deployment", DEPLOYMENT, installation, spec=spec)


def _container(installation: WebhookInstallation) -> Object:
    mounts = {"config": _CONFIG, "certs": _CERTS}
    arguments = [
        f"--conf-file={_CONFIG}/server.yaml",
        "--health-address=0.0.0.0",
        f"--health-port={_HEALTH_PORT}",
    ]
    if installation.cafile == DEFAULT_CAFILE:
        mounts["clients"] = _CLIENTS
        arguments.append(f"--cafile={_CLIENTS}/ca.crt")
    elif installation.cafile:
        arguments.append(f"--cafile={installation.cafile}")
    return {
        "name": "cmk-webhook",
        "image": installation.image,
        "imagePullPolicy": installation.pull_policy,
        "command": ["nodewise", "cpu", "webhook"],
        "args": [*arguments, f"--insecure={not installation.cafile}"],
        "ports": [
            {"name": "https", "containerPort": _PORT},
            {"name": "health", "containerPort": _HEALTH_PORT},
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "health"}, "periodSeconds": 5},
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "health"}, "periodSeconds": 10},
        "resources": {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 3000,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": name, "mountPath": path, "readOnly": True} for name, path in mounts.items()
        ],
    }


def _webhook_configuration(
    installation: WebhookInstallation, certificate: WebhookCertificate | None
) -> Object:
    """The registration.

    The webhook's own pods are excluded, because none could start while none is running. Of other pods only those that
    request cores are sent (Kubernetes 1.28 and later; before, the webhook itself ignores the others).
    """
    is_new = installation.version == "v1"
    namespaces: Object = {}
    if installation.selector:
        namespaces = {"matchLabels": dict(installation.selector)}
    elif is_new:  # for the older version no label has the name of the namespace
        not_ours = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
        namespaces = {"matchExpressions": [not_ours]}
    own = {"key": "app", "operator": "NotIn", "values": [_LABELS["app"]]}
    newer_fields = {
        "admissionReviewVersions": ["v1", "v1beta1"],
        "sideEffects": "None",
        "timeoutSeconds": 5,
        "reinvocationPolicy": "IfNeeded",
        "matchPolicy": "Equivalent",
        "objectSelector": {"matchExpressions": [own]},
        "matchConditions": [
            {"name": "pod-is-not-static", "expression": _NOT_STATIC},
            {"name": "asks-for-cores", "expression": f"({_ANNOTATED}) || {_ASKED}"},
        ],
    }
    service = {"name": SERVICE, "namespace": installation.namespace, "path": PATH}
    trusted = {"caBundle": _encode_base64(certificate.authorities)} if certificate else {}
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    hook = {
        "name": NAME,
        "clientConfig": {"service": service, **trusted},
        "rules": [rule],
        "failurePolicy": installation.failure_policy,
        "namespaceSelector": namespaces,
        **(newer_fields if is_new else {}),
    }
    return {
        "apiVersion": f"admissionregistration.k8s.io/{installation.version}",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": REGISTRATION, "labels": dict(_LABELS)},
        "webhooks": [hook],
    }
