"""Generates the derived parts of the Helm chart; `make chart` writes them, a test compares them.

- `deploy/crds`: the definitions of placement policies, and `deploy/policy-fields.yaml`, from the table of their fields.
- `values.schema.json`: what it says of settings, from the structs that the program itself reads.
- `README.md`: the table of values, from their schema and defaults.
- `crds/`: the definitions of `deploy/crds`.
- `deploy/native.yaml`: the admission policies of native mode.
- `files/`: the admission policies and alerts of `deploy` that the templates include as they are.
- `deploy/metrics/prometheus-rule.yaml`: the alerts as an object of the Prometheus operator.
- `deploy/kustomize`: each file of values, rendered, for those who do without Helm.
"""

import json
import re
import subprocess
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec
import yaml
from tests.cluster import program_cache

from nodewise import agents
from nodewise.cli.extender_options import setting_groups
from nodewise.cli.setting_declarations import Setting, list_settings
from nodewise.doctor.parsing.objects import expressions_digest
from nodewise_scorers.cli import annotate
from tools import native_mode_generator, policy_definitions

DEPLOY: Final = Path("deploy")
CHART: Final = DEPLOY / "chart/nodewise"
SCHEMA: Final = CHART / "values.schema.json"
README: Final = CHART / "README.md"
KUSTOMIZE: Final = DEPLOY / "kustomize"
NAMESPACE: Final = "nodewise"
KUBERNETES: Final = "1.30.0"
"""The Kubernetes version of the rendered kustomize files: the oldest whose tokens contain the node of a pod."""
NATIVE_KUBERNETES: Final = "1.36.0"
"""That of native mode: the oldest with MutatingAdmissionPolicies."""
_CHARTS_OWN: Final = frozenset(
    {
        "agents",
        "no_cluster",
        "objects_from",
        "address",
        "port",
        "cert",
        "key",
        "client_ca",
        "client_name",
        "unsafe",
    }
    | {
        "unsafe_address",
        "health_address",
        "health_port",
        "kubeconfig",
        "context",
        "namespace",
        "own_namespace",
        "identity",
    }
    | {"once", "dry_run", "output", "native_mode"}
)
"""What the chart says itself, or does not support."""
_BOUNDS: Final = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def combinations() -> list[Path]:
    """The shipped values files."""
    return sorted((CHART / "values").glob("values-*.yaml"))


def schema(before: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the chart with the current settings of the program."""
    made = {
        f"{kind.name}Settings": _closed(_sections(kind.name, kind.options))
        for kind in agents.built_in_agent_kinds()
    }
    made["settings"] = _closed(
        [*_of(setting_groups()), *_of(kind.options for kind in agents.built_in_agent_kinds())]
    )
    made["annotatorSettings"] = _closed(_of([*annotate.GROUPS, *setting_groups()]))
    described = {**before, "definitions": {**before.get("definitions", {}), **made}}
    return _with_required_defaults(
        described, yaml.load((CHART / "values.yaml").read_text(), yaml.CSafeLoader)
    )


def _with_required_defaults(described: dict[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object, which requires each value that has a default.

    Only null removes a default. A template takes a missing switch for false, and would so leave out admission policies.
    """
    properties = {
        key: _with_required_defaults(inner, default[key])
        if "properties" in inner and isinstance(default.get(key), dict)
        else inner
        for key, inner in described["properties"].items()
    }
    required = [key for key in properties if key in default]
    others = {key: value for key, value in described.items() if key != "required"}
    return {**others, "properties": properties, **({"required": required} if required else {})}


def _of(groups: Iterable[type[msgspec.Struct]]) -> list[tuple[str, Setting]]:
    """Settings by key; common ones appear once."""
    return list(
        {setting.key: (setting.key, setting) for group in groups for setting in list_settings(group)}.values()
    )


def _sections(agent: str, group: type[msgspec.Struct]) -> Iterator[tuple[str, Setting]]:
    """Settings of an agent's section, where they may omit the agent's name, as in `safe: {utilization: 90}`."""
    for setting in list_settings(group):
        yield setting.key, setting
        if setting.key.startswith(f"{agent}_"):
            yield setting.key.removeprefix(f"{agent}_"), setting


def _closed(settings: Iterable[tuple[str, Setting]]) -> dict[str, Any]:
    properties = {key: _value(setting) for key, setting in settings if setting.key not in _CHARTS_OWN}
    return {"type": "object", "additionalProperties": False, "properties": dict(sorted(properties.items()))}


def _value(setting: Setting) -> dict[str, Any]:
    return {"description": setting.help, **_type(setting)}


def _type(setting: Setting) -> dict[str, Any]:
    if setting.is_list:
        return {"type": "array", "items": {"type": "string"}}
    if setting.words:
        # the file takes `pass` and `accept` for each other
        same = {"accept", "pass"} if {"accept", "pass"} & {*setting.words} else set()
        return {"enum": [*setting.words, *sorted(same - {*setting.words})]}
    if setting.field.endswith("_s"):
        return {
            "type": ["string", "number"],
            "pattern": r"^[0-9.]+(ns|us|ms|s|m|h|d)([0-9.]+(ns|us|ms|s|m|h|d))*$",
        }
    if setting.field.endswith("_bytes"):
        return {"type": ["string", "integer"], "pattern": "^[0-9.]+([kMGT]i?|Ki)?$"}
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": names[setting.inner], **_bounds(setting.type)}


def _bounds(annotation: Any) -> dict[str, Any]:
    """The bounds of a number."""
    bounds: dict[str, Any] = {}
    if get_origin(annotation) is Annotated:
        for meta in get_args(annotation)[1:]:
            bounds |= {
                to: value for name, to in _BOUNDS.items() if (value := getattr(meta, name, None)) is not None
            }
        annotation = get_args(annotation)[0]
    for inner in get_args(annotation):
        bounds |= _bounds(inner)
    return bounds


def kustomizations(helm: Path) -> dict[Path, str]:
    """The files of `deploy/kustomize`, by path: one folder per values file."""
    definitions = [definition.name for definition in _definitions()]
    made = {
        KUSTOMIZE / "crds/kustomization.yaml": _kustomization("deploy/crds", definitions),
        KUSTOMIZE / "namespace/kustomization.yaml": _kustomization(
            "tools/helm_chart_generator.py", ["namespace.yaml"]
        ),
        KUSTOMIZE / "namespace/namespace.yaml": yaml.safe_dump(_NAMESPACE, sort_keys=False),
    }
    for values in combinations():
        folder = KUSTOMIZE / values.stem.removeprefix("values-")
        made[folder / "nodewise.yaml"] = rendered(helm, values)
        made[folder / "kustomization.yaml"] = _kustomization(
            str(values), ["../crds", "../namespace", "nodewise.yaml"]
        )
    return made


_NAMESPACE: Final = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
}


def _kustomization(source: str, resources: Sequence[str]) -> str:
    body = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(resources),
    }
    return f"# Made by `make chart` of {source}; do not edit.\n" + yaml.safe_dump(body, sort_keys=False)


def rendered(helm: Path, values: Path, *more: str) -> str:
    """Render a values file with Helm, without Helm's labels."""
    is_native = yaml.load(values.read_text(), yaml.CSafeLoader).get("nativeMode", {}).get("enabled", False)
    version = NATIVE_KUBERNETES if is_native else KUBERNETES
    command = [helm, "template", "nodewise", CHART, "--namespace", NAMESPACE, "--values", values]
    completed = subprocess.run(
        [*map(str, command), "--kube-version", version, "--no-hooks", *more],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = [
        line for line in completed.stdout.splitlines() if not re.search(r"helm\.sh/chart:|# Source:", line)
    ]
    return "\n".join(lines).replace("managed-by: Helm", "managed-by: kustomize").strip() + "\n"


def parts() -> dict[Path, str]:
    """The files of the chart, by path."""
    described = schema(json.loads(SCHEMA.read_text()))
    return {
        SCHEMA: json.dumps(described, indent=2, ensure_ascii=False) + "\n",
        README: _readme(described, yaml.load((CHART / "values.yaml").read_text(), yaml.CSafeLoader)),
        # `helm show crds` prints the files without a separator between them
        **{CHART / "crds" / file.name: f"---\n{file.read_text()}" for file in _definitions()},
        **{KUSTOMIZE / "crds" / file.name: file.read_text() for file in _definitions()},
        **dict.fromkeys(_NATIVE_MODE, native_mode_generator.native_manifest()),
        SHIPPED_POLICIES: _shipped_policies(
            native_mode_generator.native_manifest(), (DEPLOY / "extender-pods.yaml").read_text()
        ),
        PACKAGED: (DEPLOY / "crds" / PACKAGED.name).read_text(),
        **{CHART / "files" / Path(name).name: (DEPLOY / name).read_text() for name in _INCLUDED},
        PROMETHEUS_RULE: _prometheus_rule(ALERT_RULES.read_text()),
    }


def _readme(described: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """The chart's page in a catalog: how to install it, and all values."""
    rows = "".join(
        f"| `{path}` | `{json.dumps(default)}` | {description} |\n"
        for path, default, description in _value_rows(described, values, "")
    )
    return _README_HEAD + rows


def _value_rows(
    described: Mapping[str, Any], values: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, Any, str]]:
    """Path, default and description of each value, in the order of values.yaml."""
    for key, default in values.items():
        value = described.get("properties", {}).get(key, {})
        if isinstance(default, dict) and value.get("properties"):
            yield from _value_rows(value, default, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", default, value.get("description", "").replace("|", "\\|")


_README_HEAD: Final = """<!-- made by `make chart`; do not edit -->
# nodewise

Platform-aware scheduling for Kubernetes: kube-scheduler places pods by live telemetry, GPUs and load, and nodewise
explains each decision. From Kubernetes 1.36 the default is native mode: no certificates, and no configuration of
kube-scheduler.

```sh
helm install nodewise . --namespace nodewise --create-namespace
helm test nodewise --namespace nodewise
```

Before Kubernetes 1.36, and for agents other than telemetry, kube-scheduler calls the extender, which needs certificates
(`nodewise certs --namespace nodewise --apply`). `nativeMode.enabled=false` selects it.

The folder `values/` contains common combinations. The notes of the release print the next steps. Helm does not upgrade
the definitions in `crds/`; apply them before an upgrade.

| value | default | meaning |
|---|---|---|
"""


def _definitions() -> list[Path]:
    return sorted((DEPLOY / "crds").glob("*.yaml"))


PACKAGED: Final = Path("src/nodewise/policy_tools/taspolicies.yaml")
"""The definition that `nodewise policy lint` reads."""
_NATIVE_MODE: Final = (DEPLOY / "native.yaml", CHART / "files/native.yaml")
SHIPPED_POLICIES: Final = Path("src/nodewise/doctor/parsing/shipped_admission_policies.py")
_SHIPPED_POLICIES_HEAD: Final = '''"""Digests of the admission policies that nodewise ships for pods.

Made by `make chart`; do not edit.
"""

from collections.abc import Mapping
from typing import Final

SHIPPED_POLICIES: Final[Mapping[str, str]] = {
'''


def _shipped_policies(*manifests: str) -> str:
    """A module with the digest of each admission policy, by its kind and name."""
    policies = [
        document
        for manifest in manifests
        for document in yaml.load_all(manifest, yaml.CSafeLoader)
        if document["kind"].endswith("AdmissionPolicy")
    ]
    rows = (
        f'    "{policy["kind"]}/{policy["metadata"]["name"]}": "{expressions_digest(policy)}",\n'
        for policy in policies
    )
    return f"{_SHIPPED_POLICIES_HEAD}{''.join(rows)}}}\n"


_INCLUDED: Final = (
    "policy-fields.yaml",
    "policy-roles.yaml",
    "pod-admission.yaml",
    "extender-pods.yaml",
    "device-taints.yaml",
    "metrics/alert-rules.yaml",
)
ALERT_RULES: Final = DEPLOY / "metrics/alert-rules.yaml"
PROMETHEUS_RULE: Final = DEPLOY / "metrics/prometheus-rule.yaml"
_PROMETHEUS_RULE_HEAD: Final = f"""# Made by `make chart` of {ALERT_RULES}; do not edit.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: nodewise
  namespace: {NAMESPACE}
spec:
"""


def _prometheus_rule(alert_rules: str) -> str:
    """The file of rules as the spec of a PrometheusRule."""
    rules = alert_rules[alert_rules.index("groups:") :]
    return _PROMETHEUS_RULE_HEAD + textwrap.indent(rules, "  ")


def main() -> None:
    """Write all files."""
    _write(policy_definitions.generated_files())
    _write(parts())
    _write(kustomizations(program_cache.helm()))


def _write(made: Mapping[Path, str]) -> None:
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
