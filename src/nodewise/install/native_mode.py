"""The objects of native mode as one manifest: the shipped files, for one namespace, image and source of metrics.

Definitions are first: the API server notices a definition that follows the admission policies of native mode only after
half a minute.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import nodewise
from nodewise.base.errors import BadSettings, Problem
from nodewise.install.scheduler_versions import SchedulerVersion

OLDEST: Final = SchedulerVersion(36)
"""The first version in which MutatingAdmissionPolicies are enabled by default."""
FILES: Final = (
    "crds/taspolicies.yaml",
    "crds/placementpolicies.yaml",
    "crds/clusterplacementpolicies.yaml",
    "rbac.yaml",
    "policy-fields.yaml",
    "policy-roles.yaml",
    "trust.yaml",
    "pod-admission.yaml",
    "native.yaml",
    "controller.yaml",
)
"""The files of `deploy`, in the order in which they are applied. They are part of the wheel (pyproject.toml)."""
_COMMAND: Final = "command: [nodewise, controller, --native-mode, --health-address=0.0.0.0]"


def read_files() -> dict[str, str]:
    """The content of `FILES`: beside the package, or in the checkout."""
    package = Path(nodewise.__file__).parent
    inside = package / "deploy"
    folder = inside if inside.exists() else package.parents[1] / "deploy"
    return {name: (folder / name).read_text() for name in FILES}


def check_version(version: SchedulerVersion) -> None:
    """`BadSettings` if the API server of this version does not change pods by MutatingAdmissionPolicies."""
    if version < OLDEST:
        expected = f"{OLDEST} or later; --mode second-scheduler works with older clusters"
        raise BadSettings("settings", [Problem("--mode native", f"Kubernetes {version}", expected)])


def build_manifest(
    texts: Mapping[str, str], namespace: str, image: str, prometheus_urls: Sequence[str]
) -> str:
    """The files as one YAML stream."""
    replacements = {
        "namespace: nodewise}": f"namespace: {namespace}}}",
        "namespace: nodewise,": f"namespace: {namespace},",
        "kind: Namespace\nmetadata: {name: nodewise}": f"kind: Namespace\nmetadata: {{name: {namespace}}}",
        "system:serviceaccount:nodewise:": f"system:serviceaccount:{namespace}:",
        "values: [kube-system, nodewise]": f"values: [kube-system, {namespace}]",
        f"image: nodewise:{nodewise.__version__}": f"image: {image}",
        # pods need no request, because kube-scheduler does not call nodewise for them
        "{name: resource, expression: \"'telemetry/scheduling'\"}": "{name: resource, expression: \"''\"}",
        _COMMAND: _command(prometheus_urls),
    }
    text = "---\n".join(texts[name] for name in FILES)
    for shipped, own in replacements.items():
        text = text.replace(shipped, own)
    return text


def _command(prometheus_urls: Sequence[str]) -> str:
    urls = [json.dumps(f"--prometheus-url={url}") for url in prometheus_urls]
    return f"{_COMMAND[:-1]}{''.join(f', {url}' for url in urls)}]"
