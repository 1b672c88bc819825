from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from nodewise.base.errors import BadSettings
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise_cpu.webhook import https_server, pod_mutation
from nodewise_cpu.webhook.https_server import LiveMutations, ServerFile

SERVER = {"binding-address": "0.0.0.0", "port": 8443, "cert": "/c", "key": "/k", "mutations": "/m"}
EMPTY = "mutations: {}"


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_a_server_file(tmp_path: Path) -> None:
    file = written(tmp_path, server=yaml.safe_dump({"server": SERVER})) / "server.yaml"
    wanted = ServerFile(binding_address="0.0.0.0", port=8443, cert="/c", key="/k", mutations="/m")
    assert https_server.parse_server_settings(str(file)) == wanted


@pytest.mark.parametrize("pattern", ["", "/*.yaml", "/[12]*.yaml"])
def test_a_folder_and_a_pattern_are_merged_in_the_order_of_names(tmp_path: Path, pattern: str) -> None:
    later = {"server": {"port": "9443"}}
    written(tmp_path, **{"1": yaml.safe_dump({"server": SERVER}), "2": yaml.safe_dump(later)})
    (tmp_path / "other.txt").write_text("{")
    (tmp_path / ".hidden.yaml").write_text("{")
    assert https_server.parse_server_settings(f"{tmp_path}{pattern}").port == 9443


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["server: missing"]),
        ("server: 5", ["server: 5; expected a mapping"]),
        ("server: {port: 1}", [f"server.{key}: missing" for key in SERVER if key != "port"]),
        (yaml.safe_dump({"server": SERVER | {"port": "x"}}), ["server.port"]),
        ("server: {", ["document 1"]),
        ("a: 1\na: 2", ["twice"]),
        ("- 1", ["expected a mapping"]),
    ],
)
def test_invalid_server_files(tmp_path: Path, text: str, problems: list[str]) -> None:
    file = written(tmp_path, server=text) / "server.yaml"
    with pytest.raises(BadSettings) as caught:
        https_server.parse_server_settings(str(file))
    assert [problem for problem in problems if problem not in str(caught.value)] == []


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="No such file"):
        https_server.parse_server_settings(str(tmp_path / "none.yaml"))
    with pytest.raises(BadSettings, match=r"no \*.yaml there"):
        https_server.parse_server_settings(str(tmp_path))
    with pytest.raises(BadSettings, match="File name too long"):
        https_server.parse_server_settings(str(tmp_path / ("x" * 256)))


def test_the_mutations_that_we_come_with_can_be_read(tmp_path: Path) -> None:
    per_pod, per_container = pod_mutation.default_mutations()
    text = yaml.safe_dump({"mutations": {"perPod": per_pod, "perContainer": per_container}})
    held = https_server.read_webhook_config_files(str(written(tmp_path, mutations=text) / "mutations.yaml"))
    assert https_server.parse_mutations(held) == pod_mutation.default_mutations()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mutations: []", "mutations: []; expected perPod and perContainer"),
        ("{}", "mutations: missing"),
        ("mutations: {perPods: {}}", "mutations.perPods: unknown; expected perPod or perContainer"),
        ("mutations: {perPod: [1]}", "mutations.perPod: [1]; expected a mapping"),
        ("mutations: {perPod: {spec: x}}", "mutations.perPod.spec: 'x'; expected a mapping"),
        (
            "mutations: {perPod: {metadata: {labels: {a: 1}}}}",
            "metadata.labels.a: 1; expected a text in quotes",
        ),
        ("mutations: {perPod: {metadata: {annotations: {a: yes}}}}", "annotations.a: True; expected a text"),
        (
            "mutations: {perContainer: {resources: 5}}",
            "mutations.perContainer.resources: 5; expected a mapping",
        ),
        (
            "mutations: {perContainer: {env: [{name: A, value: 1}]}}",
            "env[0].value: 1; expected a text in quotes",
        ),
        ("mutations: {perContainer: {env: [A]}}", "env[0]: 'A'; expected a name, and a value"),
        ("mutations: {perContainer: {env: A}}", "env[0]: 'A'; expected a name, and a value"),
    ],
)
def test_invalid_mutations(tmp_path: Path, text: str, problem: str) -> None:
    file = written(tmp_path, mutations=text) / "mutations.yaml"
    with pytest.raises(BadSettings) as caught:
        https_server.parse_mutations(https_server.read_webhook_config_files(str(file)))
    assert problem in str(caught.value)
    assert str(file) in str(caught.value)


def test_an_invalid_file_is_an_error_until_it_is_valid_and_reported_once(tmp_path: Path) -> None:
    file = written(tmp_path, mutations="mutations: {perPod: {spec: {a: b}}}") / "mutations.yaml"
    live = LiveMutations(str(file), MetricsRegistry())
    with capture_logs() as logs:
        for text in ("{", "{", "mutations: {", EMPTY, EMPTY):
            file.write_text(text)
            if text == EMPTY:
                assert live() == ({}, {})
            else:
                with pytest.raises(BadSettings):
                    live()
    assert [line["event"] for line in logs] == ["cpu_mutations_failed"] * 2 + ["cpu_mutations_read"]


def test_a_file_that_was_away_is_taken_again(tmp_path: Path) -> None:
    file = written(tmp_path, mutations=EMPTY) / "mutations.yaml"
    live = LiveMutations(str(file), MetricsRegistry())
    file.unlink()
    with capture_logs() as logs:
        with pytest.raises(BadSettings, match="No such file"):
            live()
        file.write_text(EMPTY)
        live()
    assert [line["event"] for line in logs] == ["cpu_mutations_failed", "cpu_mutations_read"]
