"""Checks of the Helm chart that do not need Helm."""

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from click.testing import CliRunner
from tools import helm_chart_generator, release

import nodewise
from nodewise import agents
from nodewise.cli import main, options_from_settings
from nodewise.cli.extender_options import setting_groups
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe.metrics_registry import METRICS, PREFIX

ROOT = Path(__file__).parents[2]
CHART = ROOT / helm_chart_generator.CHART
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.load((CHART / "values.yaml").read_text(), yaml.CSafeLoader)


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_it_is_of_this_version() -> None:
    about = yaml.load((CHART / "Chart.yaml").read_text(), yaml.CSafeLoader)
    assert about["appVersion"] == about["version"] == nodewise.__version__


class TestArtifactHub:
    """The released Chart.yaml follows Artifact Hub's rules for annotations of charts, which `ah lint` checks
    (github.com/artifacthub/hub, docs/helm_annotations.md): a version with an invalid value is not listed.
    """

    ABOUT: ClassVar[dict[str, Any]] = release.chart_metadata(
        yaml.load((CHART / "Chart.yaml").read_text(), yaml.CSafeLoader), "https://example.org/x/nodewise"
    )
    ANNOTATIONS: ClassVar[dict[str, str]] = {
        name.removeprefix("artifacthub.io/"): value for name, value in ABOUT["annotations"].items()
    }

    def test_fields_that_it_shows_are_set(self) -> None:
        fields = (
            "description",
            "keywords",
            "home",
            "sources",
            "icon",
            "maintainers",
            "appVersion",
            "kubeVersion",
        )
        assert [name for name in fields if not self.ABOUT.get(name)] == []
        assert re.fullmatch(r"https://\S+\.(svg|png)", self.ABOUT["icon"])
        assert all(maintainer["name"] for maintainer in self.ABOUT["maintainers"])
        assert (CHART / "README.md").read_text().count("\n# nodewise\n") == 1

    def test_annotations_are_strings_that_it_reads(self) -> None:
        assert all(isinstance(value, str) for value in self.ABOUT["annotations"].values())
        assert self.ANNOTATIONS.keys() == {"license", "operator", "crds", "crdsExamples", "links"}
        assert self.ANNOTATIONS["license"] == "Apache-2.0", "an identifier of SPDX, that of pyproject.toml"
        assert self.ANNOTATIONS["operator"] in ("true", "false")
        links = yaml.load(self.ANNOTATIONS["links"], yaml.CSafeLoader)
        assert [link.keys() for link in links] == [{"name", "url"}] * len(links)

    def test_all_definitions_are_listed(self) -> None:
        listed = yaml.load(self.ANNOTATIONS["crds"], yaml.CSafeLoader)
        texts = [path.read_text() for path in sorted((CHART / "crds").glob("*.yaml"))]
        shipped = [crd for text in texts for crd in yaml.load_all(text, yaml.CSafeLoader) if crd]
        assert {crd["name"]: (crd["kind"], crd["version"]) for crd in listed} == {
            crd["metadata"]["name"]: (crd["spec"]["names"]["kind"], crd["spec"]["versions"][0]["name"])
            for crd in shipped
        }
        assert all(crd["displayName"] and crd["description"] for crd in listed)

    def test_examples_are_valid_policies(self, tmp_path: Path) -> None:
        examples = yaml.load(self.ANNOTATIONS["crdsExamples"], yaml.CSafeLoader)
        assert {example["kind"] for example in examples} == {"PlacementPolicy", "ClusterPlacementPolicy"}
        file = tmp_path / "examples.yaml"
        file.write_text(yaml.safe_dump_all(examples))
        done = CliRunner().invoke(main.command, ["policy", "lint", str(file)])
        assert (done.exit_code, done.exception) == (0, None), done.output


def test_derived_values_of_the_chart_equal_their_sources() -> None:
    assert [
        str(path) for path, text in helm_chart_generator.parts().items() if path.read_text() != text
    ] == [], "run `make chart`"


def test_every_value_is_described_and_no_other_is_allowed() -> None:
    assert sorted(_undescribed(SCHEMA, "")) == []
    assert sorted(_open(SCHEMA, "")) == ["affinity", "global"]


def _undescribed(schema: dict[str, Any], path: str) -> list[str]:
    undescribed = []
    for name, value in schema.get("properties", {}).items():
        undescribed += [] if value.get("description") else [f"{path}.{name}"]
        undescribed += _undescribed(value, f"{path}.{name}")
    return undescribed


def _open(schema: dict[str, Any], name: str) -> list[str]:
    """The names of objects whose schema accepts any key and any value."""
    names = [name] if schema.get("type") == "object" and "additionalProperties" not in schema else []
    return names + [
        inner_name for key, value in schema.get("properties", {}).items() for inner_name in _open(value, key)
    ]


def test_the_schema_knows_exactly_the_values_that_there_are() -> None:
    assert (
        set(_paths(SCHEMA)) - {("global",)} - _of_references()
        == set(_given(VALUES, SCHEMA)) - _of_references()
    )


def _paths(schema: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = schema.get("properties", {})
    return (
        [inner_path for key, value in inner.items() for inner_path in _paths(value, (*path, key))]
        if inner
        else [path]
    )


_WITH_RESOURCES = [
    ("extender",),
    ("scheduler",),
    ("annotator",),
    ("tls", "renewal"),
    ("cpu", "agent"),
    ("cpu", "webhook"),
]


def _of_references() -> set[tuple[str, ...]]:
    """The optional paths of the schema, for which values.yaml need not contain a default."""
    part = ("tls", "certManager", "issuerRef")
    return {part, *((*part, name) for name in ("name", "kind", "group"))} | {
        (*where, "resources", kind) for where in _WITH_RESOURCES for kind in ("requests", "limits")
    }


def _given(values: Any, schema: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(values, dict) or "properties" not in schema or not values:
        return [path]
    return [
        inner_path
        for key, value in values.items()
        for inner_path in _given(value, schema["properties"].get(key, {}), (*path, key))
    ]


def test_there_is_one_switch_for_each_agent() -> None:
    names = {kind.name for kind in agents.built_in_agent_kinds()}
    assert set(VALUES["agents"]) == names
    assert [name for name in names if set(VALUES["agents"][name]) != {"enabled", "settings"}] == []


@pytest.mark.parametrize("values", helm_chart_generator.combinations(), ids=lambda path: path.stem)
def test_the_program_takes_the_settings_of_each_combination(values: Path, tmp_path: Path) -> None:
    settings = yaml.load((ROOT / values).read_text(), yaml.CSafeLoader)
    sections = {
        name: agent["settings"] for name, agent in settings.get("agents", {}).items() if agent.get("settings")
    }
    file = tmp_path / "nodewise.yaml"
    file.write_text(yaml.safe_dump({**settings.get("settings", {}), **sections}))
    options_from_settings.read_config_file(str(file), setting_groups(), agents.built_in_agent_kinds())


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_show_metrics_that_there_are_with_labels_that_they_have(path: Path) -> None:
    board = json.loads(path.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {name for text in expressions for name in re.findall(rf"{PREFIX}\w+", text)}
    assert used
    assert used - {PREFIX + name for name in _series()} == set()
    for text in expressions:
        known = {label for name in re.findall(rf"{PREFIX}(\w+)", text) for label in _series()[name]}
        grouped = {
            label.strip() for group in re.findall(r"by \(([^)]*)\)", text) for label in group.split(",")
        }
        assert grouped - known - {"pod", "le"} == set(), text


def _series() -> dict[str, tuple[str, ...]]:
    """The labels of each series of /metrics."""
    labels = {name: metric.labels for name, metric in METRICS.items()}
    for name, metric in METRICS.items():
        if metric.buckets:
            labels |= {f"{name}_{part}": metric.labels for part in ("bucket", "sum", "count")}
    return labels


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").glob("*.yaml")), ids=lambda path: path.stem)
def test_nothing_of_other_services_reaches_the_settings_of_a_manifest_s_pods(path: Path) -> None:
    """A Service named nodewise sets NODEWISE_PORT, which is a setting. A test with Helm checks those of the chart."""
    for manifest in yaml.load_all(path.read_text(), yaml.CSafeLoader):
        spec = manifest.get("spec", {}) if manifest else {}
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        pod = spec.get("template", {}).get("spec", spec)
        images = [container["image"] for container in _containers(pod)]
        if any(image.startswith("nodewise:") for image in images):
            assert pod.get("enableServiceLinks") is False, manifest["metadata"]["name"]


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [container for kind in ("initContainers", "containers") for container in pod.get(kind, ())]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_each_panel_of_a_dashboard_has_a_description(path: Path) -> None:
    panels = [panel for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"]
    assert [panel["title"] for panel in panels if not panel["description"].endswith(".")] == []


def test_dashboards_have_names_of_their_own() -> None:
    boards = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert (
        len({board["uid"] for board in boards})
        == len({board["title"] for board in boards})
        == len(boards)
        == 4
    )


def test_the_adapter_queries_the_node_labels_of_exporters() -> None:
    stack = yaml.load((ROOT / "deploy/metrics/kube-prometheus-stack.yaml").read_text(), yaml.CSafeLoader)
    (to,) = stack["prometheus-node-exporter"]["prometheus"]["monitor"]["relabelings"]
    (rule,) = yaml.load((ROOT / "deploy/metrics/prometheus-adapter.yaml").read_text(), yaml.CSafeLoader)[
        "rules"
    ]["custom"]
    assert rule["resources"]["overrides"] == {to["targetLabel"]: {"resource": "node"}}
    direct = yaml.load((CHART / "values/values-prometheus.yaml").read_text(), yaml.CSafeLoader)["settings"]
    assert "prometheus_node_label" not in direct
    assert to["targetLabel"] in PrometheusOptions().prometheus_node_label


def test_the_picture_of_a_dashboard_has_its_panels() -> None:
    picture = (ROOT / "docs/pictures/dashboard.svg").read_text()
    board = json.loads((CHART / "dashboards/decisions.json").read_text())
    titles = [board["title"], *(panel["title"] for panel in board["panels"])]
    assert [title for title in titles if f">{title}<" not in picture] == [], "run `make pictures`"
    assert "not a screenshot of Grafana" in picture
