"""The API server's side of mutual TLS: the two files that have it show a certificate to the webhook."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import yaml

from nodewise.cpu.webhook import certificate

CONFIGURATION: Final = "admission-control.yaml"
"""What `--admission-control-config-file` of kube-apiserver has to name."""
KUBECONFIG: Final = "webhook-kubeconfig.yaml"
DEFAULT_FOLDER: Final = "/etc/kubernetes/admission"


class Client(NamedTuple):
    """Paths on the API server's machine; kubeadm's are the default. Its CA is the cluster's own."""

    certificate: str = "/etc/kubernetes/pki/apiserver-kubelet-client.crt"
    key: str = "/etc/kubernetes/pki/apiserver-kubelet-client.key"


def files(folder: str, namespace: str, client: Client) -> Mapping[str, str]:
    """Text by name. `folder` is where they will be on the API server's machine: an absolute path, as it insists."""
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
    host = certificate.names(namespace)[-1]
    user = {"client-certificate": client.certificate, "client-key": client.key}
    users = [{"name": host, "user": user}]
    config = {"apiVersion": "v1", "kind": "Config", "users": users}
    told = f"# kube-apiserver --admission-control-config-file={folder}/{CONFIGURATION}\n"
    return {
        CONFIGURATION: told + yaml.safe_dump(configuration, sort_keys=False),
        KUBECONFIG: yaml.safe_dump(config, sort_keys=False),
    }
