"""`nodewise configure render-scheduler`, from the command line to the YAML."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nodewise.base.errors import BadSettings
from nodewise.cli import configure

ROOT = Path(__file__).parents[3]
LOCAL = "--url=http://127.0.0.1:9001"


def render(*arguments: str) -> tuple[dict[str, Any], str]:
    """The configuration and standard error."""
    completed = CliRunner().invoke(configure.command, ["render-scheduler", *arguments], standalone_mode=False)
    if completed.exception:
        raise completed.exception
    return yaml.safe_load(completed.stdout), completed.stderr


def test_verbs_of_an_entry_are_those_of_its_agents() -> None:
    config, output = render(LOCAL, "--one-entry-per-agent", "--agents=telemetry,gpu,safe,congestion")
    verbs = [{key for key in entry if key.endswith("Verb")} for entry in config["extenders"]]
    assert verbs == [
        {"filterVerb", "prioritizeVerb", "preemptVerb"},
        {"filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb"},
        {"prioritizeVerb"},
        {"prioritizeVerb"},
    ]
    assert output.startswith("nodewise: the filter of safe is not called")


def test_filtered_resources_follow_from_options_of_the_agent() -> None:
    for options in ([], ["--when-missing=reject"]):
        config, _ = render(LOCAL, "--agents=congestion", "--filter-all-pods", *options)
        assert ("filterVerb" in config["extenders"][0]) == bool(options)


def test_the_resources_are_those_of_the_profile() -> None:
    config, _ = render(LOCAL, "--agents=gpu", "--gpu-profile=generic", "--weights=3", "-o", "json")
    [entry] = config["extenders"]
    assert entry["managedResources"] == [{"name": "nvidia.com/gpu"}]
    assert entry["weight"] == 3


def test_a_file_of_the_extender_serves_here_too(tmp_path: Any) -> None:
    file = tmp_path / "nodewise.yaml"
    file.write_text(
        json.dumps(
            {
                "agents": "congestion",
                "cert": "server.crt",
                "weights": "congestion=2",
                "gpu": {"profile": "generic"},
            }
        )
    )
    config, _ = render(LOCAL, f"--config={file}")
    [entry] = config["extenders"]
    assert (entry["weight"], entry.get("prioritizeVerb"), "tlsConfig" in entry) == (10, "prioritize", False)


@pytest.mark.parametrize("weights", ["x", "safe=", "=3", "-1", "1.5", "3,4", "safe=1,safe=2"])
def test_weights_that_cannot_be_read_are_named(weights: str) -> None:
    with pytest.raises(BadSettings, match="--weights"):
        render(LOCAL, "--one-entry-per-agent", "--agents=safe", f"--weights={weights}")


def test_shipped_configuration_equals_the_printed_one(tmp_path: Any) -> None:
    documents = yaml.safe_load_all((ROOT / "deploy/scoring.yaml").read_text())
    data = next(document["data"] for document in documents if document["kind"] == "ConfigMap")
    file = tmp_path / "nodewise.yaml"
    file.write_text(data["nodewise.yaml"])
    arguments = [
        f"--config={file}",
        LOCAL,
        "--whole-nodes",
        "--filter-all-pods",
        "--scheduler-name=my-scheduler",
    ]
    completed = CliRunner().invoke(configure.command, ["render-scheduler", *arguments], standalone_mode=False)
    assert completed.stdout == data["scheduler.yaml"]
