"""The variables of the older annotators, as flags."""

from pathlib import Path

import pytest

from nodewise_scorers.cli import annotate


@pytest.mark.parametrize(
    ("environment", "flags"),
    [
        ({}, []),
        ({"PROM_IP": "10.0.0.9"}, ["--prometheus-url", "http://10.0.0.9:9090"]),
        ({"PROM_PORT": "80"}, ["--prometheus-url", "http://127.0.0.1:80"]),
        ({"PROM_IP": "fd00::7", "PROM_PORT": "80"}, ["--prometheus-url", "http://[fd00::7]:80"]),
        ({"NODE_EXP_PORT": "8445"}, ["--exporter-matchers", 'instance=~".*:8445"']),
        ({"ANNOTATE_FREQ": "60"}, ["--period", "60s"]),
        ({"ANNOTATE_FREQ": "120"}, ["--period", "120s"]),
        ({"USE_FORECAST": "True", "USE_REQ": "TRUE"}, ["--annotate-forecast", "--annotate-use-requests"]),
        ({"USE_FORECAST": "false", "USE_REQ": "False"}, []),
        ({"CLUSTER_CONF": "in-cluster"}, []),
        ({"CLUSTER_CONF": "out-of-cluster"}, []),
    ],
)
def test_a_variable_becomes_a_flag(environment: dict[str, str], flags: list[str]) -> None:
    assert annotate.translate_annotator_variables(environment, []) == flags


def test_out_of_the_cluster_the_old_file_is_taken_where_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kubectl.conf").write_text("")
    environment = {"CLUSTER_CONF": "out-of-cluster"}
    assert annotate.translate_annotator_variables(environment, []) == ["--kubeconfig", "kubectl.conf"]
    assert annotate.translate_annotator_variables(environment, ["--kubeconfig=other"]) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ANNOTATE_FREQ", "0"),
        ("ANNOTATE_FREQ", "30"),
        ("ANNOTATE_FREQ", "1.5"),
        ("ANNOTATE_FREQ", "often"),
        ("USE_FORECAST", "1"),
        ("USE_REQ", "yes"),
        ("CLUSTER_CONF", "somewhere"),
        ("NODE_EXP_PORT", "http"),
        ("NODE_EXP_PORT", '9100"} or up{a="'),
    ],
)
def test_an_invalid_value_is_logged_and_ignored(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(annotate.logs, "emit_later", lambda event, **fields: events.append((event, fields)))
    assert annotate.translate_annotator_variables({name: text}, []) == []
    [(event, fields)] = events
    assert (event, fields["variable"], fields["seen"]) == ("variable_ignored", name, text)
    assert fields["wanted"]


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [
        ({"ANNOTATE_FREQ": "90"}, ["--period", "2m"]),
        ({"ANNOTATE_FREQ": "90"}, ["--period=2m"]),
        ({"ANNOTATE_FREQ": "90", "NODEWISE_PERIOD": "2m"}, []),
        ({"PROM_IP": "a", "NODEWISE_PROMETHEUS_URL": "http://b"}, []),
        ({"USE_REQ": "true", "NODEWISE_ANNOTATE_USE_REQUESTS": "0"}, []),
    ],
)
def test_settings_of_nodewise_override_older_variables(
    environment: dict[str, str], arguments: list[str]
) -> None:
    assert annotate.translate_annotator_variables(environment, arguments) == []
