"""Hosts whose kube-scheduler has a configuration of the user, in each of the forms of `configuration_forms.yaml`."""

from pathlib import Path
from typing import Any

import yaml

from tests.conformance.configure.control_plane_hosts import ControlPlaneHost
from tests.conformance.configure.scheduler_manifests import kubeadm_pod, to_yaml, with_field

DEFAULT_MINOR = 36
CONFIGURATION_FORMS: list[dict[str, Any]] = yaml.load(
    Path(__file__).with_name("configuration_forms.yaml").read_text(), yaml.CSafeLoader
)


def host_with_configuration(folder: Path, form: dict[str, Any]) -> ControlPlaneHost:
    """A host of a kubeadm cluster whose kube-scheduler reads the configuration of a form."""
    host = ControlPlaneHost(folder / "host")
    host.template.unlink()
    own = host.k / "own.yaml"
    own.write_bytes(form["text"].encode())
    pod = kubeadm_pod(form.get("minor", DEFAULT_MINOR))
    command = [*pod["spec"]["containers"][0]["command"], f"--config={own}"]
    host.write(to_yaml(with_field(pod, "spec.containers.0.command", command)))
    return host


def contains(actual: Any, expected: Any) -> bool:
    """Whether a configuration has all fields of another one, at each depth. A field that is missing is false."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            contains(actual.get(field), value) for field, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list) and len(actual) == len(expected) and all(map(contains, actual, expected))
        )
    return bool(actual == expected) or (expected is False and actual is None)
