"""Values of the Helm chart from a careless or hostile hand: each is refused with its key, or stays one string."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from nodewise.kube import object_files
from tests.cluster import program_cache
from tests.cluster.conftest import get_or_skip
from tests.cluster.controlplane import ControlPlane
from tests.cluster.test_chart import CHART, TLS, Helm

pytestmark = pytest.mark.cluster

SCHEMA: Final[dict[str, Any]] = json.loads((CHART / "values.schema.json").read_text())
EVERYTHING: Final[list[dict[str, Any]]] = [
    {
        "agents": {
            name: {"enabled": True}
            for name in ("telemetry", "gpu", "load", "safe", "congestion", "pigeon", "learned")
        },
        "scheduler": {"enabled": True, "image": {"tag": "v1"}},
        "tls": {"certManager": {"enabled": True}},
        "annotator": {"enabled": True},
        "cpu": {"enabled": True, "webhook": {"enabled": True}, "uninstall": {"enabled": True}},
        **{name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboards")},
    },
    {
        "tls": {"renewal": {"enabled": True}},
        "nativeMode": {"enabled": True, "keepExtender": True},
        "podAdmission": {"mode": "deny", "addResource": True},
        "cpu": {"enabled": True, "setup": {"enabled": True, "hosts": ["a"]}},
    },
]
"""Values that together render every template; the second excludes what the first has."""
HOSTILE: Final = {
    "lines": "x\n---\nkind: Pod",
    "block": "x\n  hostNetwork: true",
    "quotes": "a\"b'c\\d",
    "mapping": "a: {b: [c]} # d",
    "template": "{{ .Values.image | toYaml }}",
    "tag": "!!binary x",
    "alias": "*a",
    "escape": "a\x1b[31m\ufeff",
    "spaces": " a ",
}
_TEXT: Final = "zqtext"
_HASH: Final = re.compile(r"[0-9a-f]{64}")


@pytest.fixture(scope="session")
def helm_program(request: pytest.FixtureRequest) -> Path:
    return get_or_skip(request, program_cache.helm)


@pytest.fixture
def helm(helm_program: Path, tmp_path: Path) -> Helm:
    """Without a cluster."""
    return Helm(helm_program, Path("/none"), tmp_path)


def _texts(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The path of each value that may be any text, and its pattern. `[]` is an entry of a list, `*` any key."""
    if "$ref" in node:
        node = SCHEMA["definitions"][node["$ref"].rpartition("/")[2]]
    kinds = node.get("type", [])
    if "string" in kinds and "enum" not in node:
        yield path, node.get("pattern", "")
    elif kinds == "array":
        yield from _texts(node["items"], (*path, "[]"))
    elif isinstance(inner := node.get("additionalProperties"), dict):
        yield from _texts(inner, (*path, "*"))
    for key, child in node.get("properties", {}).items():
        yield from _texts(child, (*path, key))


# this one is a part of an expression, and has a test of its own
TEXTS: Final = [(path, pattern) for path, pattern in _texts(SCHEMA) if path[-1] != "advertise_resource"]


def _with_text(values: dict[str, Any], path: tuple[str, ...], text: str) -> None:
    """Sets a value, in the way of its path."""
    key, *rest = path
    key = "example.org/key" if key == "*" else key
    if not rest:
        values[key] = text
    elif rest == ["[]"]:
        values[key] = [text]
    elif rest[0] == "[]":
        entry = {"name": "other"}
        _with_text(entry, tuple(rest[1:]), text)
        values[key] = [entry]
    else:
        _with_text(values.setdefault(key, {}), tuple(rest), text)


def _values(base: dict[str, Any], texts: dict[tuple[str, ...], str]) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(base))
    for path, text in texts.items():
        _with_text(values, path, text)
    return values


def _render(helm: Helm, folder: Path, values: dict[str, Any]) -> list[Any]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return [_opened(manifest) for manifest in helm.rendered("nodewise", "--values", file)]


def _opened(value: Any) -> Any:
    """The same with files of ConfigMaps as values, and without checksums."""
    if isinstance(value, dict):
        return {
            key: _opened(yaml.safe_load(inner) if key.endswith(".yaml") else inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_opened(inner) for inner in value]
    return _HASH.sub("", value) if isinstance(value, str) else value


def _replaced(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(inner, text) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, text) for inner in value]
    return value.replace(_TEXT, text) if isinstance(value, str) else value


def _accepting(text: str) -> list[tuple[str, ...]]:
    return [path for path, pattern in TEXTS if re.search(pattern.replace("$", r"\Z"), text)]


@pytest.mark.parametrize("base", EVERYTHING, ids=["cert-manager", "native"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_text_stays_one_string(helm: Helm, tmp_path: Path, kind: str, base: dict[str, Any]) -> None:
    """The objects are those of a harmless text, with the hostile text in the same strings."""
    text = HOSTILE[kind]
    paths = [path for path in _accepting(text) if path in _accepting(_TEXT)]
    assert paths
    harmless = _render(helm, tmp_path, _values(base, dict.fromkeys(paths, _TEXT)))
    hostile = _render(helm, tmp_path, _values(base, dict.fromkeys(paths, text)))
    assert hostile == _replaced(harmless, text)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_text_that_cannot_be_meant_is_refused_with_its_key(helm: Helm, tmp_path: Path, kind: str) -> None:
    refusing = [path for path, _ in TEXTS if path not in _accepting(HOSTILE[kind])]
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(_values({}, dict.fromkeys(refusing, HOSTILE[kind]))))
    completed = helm.run("template", "nodewise", CHART, "--values", file)
    assert completed.returncode == 1
    assert completed.stdout == ""
    named = re.findall(r"- at '/([^']*)'", completed.stderr)
    for path in refusing:
        expected = "/".join(path).replace("[]", "0").replace("*", "example.org~1key")
        assert expected in named, completed.stderr[:2000]


@pytest.mark.parametrize("path", [(), ("agents", "telemetry"), ("annotator",), ("extender",)], ids=".".join)
@pytest.mark.parametrize("character", ["\x7f", "\x9f", "\u2028", "\u2029", "\uffff"], ids=ascii)
def test_a_character_that_yaml_lacks_is_refused(
    helm: Helm, tmp_path: Path, character: str, path: tuple[str, ...]
) -> None:
    """With one in a setting, Helm rendered an empty file of settings: toYaml returns nothing instead of an error."""
    values: dict[str, Any] = {"annotator": {"enabled": True}}
    text = f"a{character}b"
    if path == ("extender",):
        _with_value(values, (*path, "extraEnv"), [{"name": "A", "value": text}])
    elif path == ("agents", "telemetry"):
        _with_value(values, (*path, "settings"), {"allowed_metrics": text})
    else:
        _with_value(values, (*path, "settings"), {"prometheus_user": text})
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    completed = helm.run("template", "nodewise", CHART, "--values", file)
    assert completed.returncode == 1
    assert "found a control character or a Unicode line separator in a value" in completed.stderr


def _switches(default: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each value with a default."""
    for key, value in default.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from _switches(value, (*path, key))


def test_null_removes_no_default(helm: Helm, tmp_path: Path) -> None:
    """`admissionPolicies: {enabled: null}` left out the admission policies without a word."""
    default = yaml.safe_load((CHART / "values.yaml").read_text())
    leaves = [path for path in _switches(default) if not isinstance(_at(default, path), dict)]
    values: dict[str, Any] = {}
    for path in leaves:
        _with_value(values, path, None)
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    completed = helm.run("template", "nodewise", CHART, "--values", file)
    assert completed.returncode == 1
    missing = dict(re.findall(r"- at '([^']*)': missing propert(?:y|ies) (.*)", completed.stderr))
    for path in leaves:
        inside = "".join(f"/{key}" for key in path[:-1])
        # labels have no fixed keys
        if path[-2:-1] not in {("labels",), ("nodeSelector",)} and "resources" not in path:
            assert f"'{path[-1]}'" in missing[inside], completed.stderr


def _at(values: dict[str, Any], path: tuple[str, ...]) -> Any:
    for key in path:
        values = values[key]
    return values


def _with_value(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values[path[-1]] = value


WRONG: Final = [
    {
        "": ["admissionpolicies.enabled=false", "replicas=3"],
        "settings": [
            "client_name={evil}",
            "health_address=0.0.0.0",
            "port=9001",
            "prometheus_pasword=x",
            "sync_periode=5s",
        ],
        "settings/sync_period": ["soon"],
        "admissionPolicies": ["enable=false"],
        "admissionPolicies/enabled": ["no thanks"],
        "agents": ["gpus.enabled=true"],
        "agents/gpu/enabled": ["maybe"],
        "agents/gpu/settings/bind_errors": ["loud"],
        "agents/safe/settings/utilization": ["101"],
        "annotator/settings/what": ["everything"],
        "cpu/webhook/failurePolicy": ["Perhaps"],
        "extender/podDisruptionBudget/maxUnavailable": ["all"],
        "extender/replicas": ["0"],
        "image/digest": ["sha256:12"],
        "image/pullPolicy": ["Sometimes"],
        "name": ["Node_Wise"],
        "podAdmission/mode": ["refuse"],
        "service/port": ["99999"],
        "tls/certManager/duration": ["soon"],
        "tls/renewal/schedule": ["sometimes"],
        "tls/renewal/args/0": ["restarted"],
    },
    {"admissionPolicies": ["false"], "extender/replicas": ["-1"], "service/port": ["65536"]},
    {"extender/replicas": ["1.5"]},
    {"extender/replicas": ["2000000000"]},
]
"""Wrong values by their place, which are set together; those with `=` are keys that the place does not have."""


@pytest.mark.parametrize("wrong", WRONG, ids=["all", "others", "a fraction", "too many"])
def test_wrong_values_are_refused_with_their_key(helm: Helm, wrong: dict[str, list[str]]) -> None:
    options = []
    for place, values in wrong.items():
        path = place.replace("/0", "[0]").replace("/", ".")
        options += [
            f"--set={f'{path}.'.lstrip('.') if '=' in value else f'{path}='}{value}" for value in values
        ]
    completed = helm.run("template", "nodewise", CHART, *options)
    assert completed.returncode == 1
    assert "values don't meet the specifications of the schema" in completed.stderr
    for place, values in wrong.items():
        at = f"- at '{place and '/'}{place}': "
        lines = [line.strip() for line in completed.stderr.splitlines() if line.strip().startswith(at)]
        unknown = [value.partition("=")[0].partition(".")[0] for value in values if "=" in value]
        assert lines, at
        if unknown:
            [line] = [line for line in lines if "additional properties" in line]
            assert sorted(re.findall("'([^'/]+)'", line.removeprefix(at))) == unknown


WEBHOOK: Final = "cpu.enabled=true,cpu.webhook.enabled=true"


@pytest.mark.parametrize(
    ("version", "values", "message"),
    [
        ("1.37", "agents.telemetry.settings.advertise_resource=a/b'] + ['c=1", "expected NAME=AMOUNT"),
        (
            "1.29.3",
            "name=nodewise",
            "found admissionPolicies.enabled: true on Kubernetes v1.29.3, expected 1.30 or later",
        ),
        (
            "1.29.3",
            "cpu.enabled=true,admissionPolicies.enabled=false",
            "cpu.enabled: true on Kubernetes v1.29.3; expected 1.30 or later",
        ),
        ("1.35.4", "podAdmission.addResource=true", "on Kubernetes v1.35.4, expected 1.36 or later"),
        ("1.36", "podAdmission.addResource=true,podAdmission.resource=", "expected the resource of"),
        ("1.36", "podAdmission.addResource=true,nativeMode.enabled=true", "expected one of the two values"),
        ("1.35.4", "nativeMode.enabled=true", "on Kubernetes v1.35.4, expected 1.36 or later"),
        ("1.36", "nativeMode.enabled=true,agents.telemetry.enabled=false", "expected the agent whose"),
        (
            "1.37",
            f"{WEBHOOK},cpu.webhook.caBundle=QQ==,cpu.setup.enabled=true,cpu.setup.hosts={{node1}}",
            "cpu.webhook.enabled: true beside cpu.setup.hosts; expected one of the two values",
        ),
        ("1.37", WEBHOOK, "cpu.webhook.caBundle: empty; expected"),
        (
            "1.37",
            f"{TLS},tls.renewal.enabled=true",
            "tls.renewal.enabled: true beside tls.certManager.enabled; expected one of the two values",
        ),
    ],
)
def test_values_without_effect_are_refused_with_the_reason(
    helm: Helm, version: str, values: str, message: str
) -> None:
    completed = helm.run("template", "nodewise", CHART, f"--kube-version={version}", "--set", values)
    assert completed.returncode == 1
    assert message in completed.stderr


def test_comma_in_a_name_starts_no_other_argument(helm: Helm) -> None:
    values = "nativeMode.enabled=false,tls.clientName=a\\,--any-client"
    assert "- --client-name=a,--any-client\n" in helm.said("template", "nodewise", CHART, "--set", values)


def test_the_longest_release_name_and_any_namespace_render(helm: Helm, tmp_path: Path) -> None:
    """Names of objects do not contain the release, and no name or label is longer than Kubernetes permits."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(EVERYTHING[0] | {"name": "n" * 40}))
    text = helm.said("template", "r" * 53, CHART, "--namespace", "kube-system", "--values", file)
    manifests = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    for manifest in manifests:
        assert len(manifest["metadata"]["name"]) <= 63 or "admission" in manifest["apiVersion"]
        assert all(len(label) <= 63 for label in manifest["metadata"].get("labels", {}).values())
    pods = [manifest for manifest in manifests if manifest["kind"] in ("Deployment", "DaemonSet")]
    assert len(pods) >= 4


@pytest.mark.parametrize("base", EVERYTHING, ids=["cert-manager", "native"])
@pytest.mark.parametrize("name", ["y", "null", "1e3", "0x1"])
def test_names_that_yaml_reads_as_other_types_stay_texts(
    helm: Helm, tmp_path: Path, name: str, base: dict[str, Any]
) -> None:
    names = [
        ("name",),
        ("scheduler", "name"),
        ("cpu", "namespace"),
        ("tls", "secretName"),
        ("tls", "clientName"),
    ]
    paths = [path for path in names if path in _accepting(name)]

    def documents(own: str) -> list[str]:
        file = tmp_path / "values.yaml"
        file.write_text(json.dumps(_values(base, dict.fromkeys(paths, own))))
        text = helm.said("template", own, CHART, "--namespace", own, "--values", file)
        parts = object_files.split_documents(text.encode(), "chart")
        return [json.dumps(_opened(json.loads(part)), sort_keys=True) for _, part in parts]

    assert documents(name) == [text.replace(_TEXT, name) for text in documents(_TEXT)]


def test_notes_show_no_settings(helm_program: Path, plane: ControlPlane, tmp_path: Path) -> None:
    """A password in a wrong place is not printed by `helm install`."""
    helm = Helm(helm_program, plane.admin.kubeconfig, tmp_path)
    file = tmp_path / "values.yaml"
    secret = {"prometheus_url": ["https://user:hunter2@prometheus"], "prometheus_user": "hunter2"}
    secret |= {"prometheus_header": ["X-Scope-OrgID=hunter2"]}
    extra = [{"name": "PASSWORD", "value": "hunter2"}]
    file.write_text(yaml.safe_dump({"settings": secret, "extender": {"extraEnv": extra}}))
    output = helm.said("install", "nodewise", CHART, "--values", file, "--dry-run=client")
    assert "hunter2" not in output.partition("\nNOTES:\n")[2]


@pytest.mark.parametrize(
    ("component", "values"),
    [
        ("nodewise", {}),
        ("nodewise-controller", {"nativeMode": {"enabled": True}}),
        ("nodewise-annotator", {"annotator": {"enabled": True}}),
    ],
)
def test_header_of_a_tenant_comes_from_a_secret(
    helm: Helm, tmp_path: Path, component: str, values: dict[str, Any]
) -> None:
    """Each program that reads Prometheus has the setting, and the Secret with the file that it names."""
    volume = {"name": "tenant", "secret": {"secretName": "mimir-tenant"}}
    mount = {"name": "tenant", "mountPath": "/etc/nodewise/tenant", "readOnly": True}
    volumes = {"extraVolumes": [volume], "extraVolumeMounts": [mount]}
    header = ["X-Scope-OrgID=/etc/nodewise/tenant/id"]
    settings = {"prometheus_url": ["http://mimir/prometheus"], "prometheus_header_file": header}
    chart_values = values | {"settings": settings, "extender": volumes}
    chart_values["annotator"] = values.get("annotator", {}) | volumes
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(chart_values))
    rendered = yaml.safe_load_all(helm.said("template", "nodewise", CHART, "--values", file, "--set", TLS))
    by_kind = {(item["kind"], item["metadata"]["name"]): item for item in rendered if item}
    pod = by_kind["Deployment", component]["spec"]["template"]["spec"]
    assert volume in pod["volumes"]
    assert mount in pod["containers"][0]["volumeMounts"]
    [config] = by_kind["ConfigMap", component]["data"].values()
    assert yaml.safe_load(config)["prometheus_header_file"] == header
