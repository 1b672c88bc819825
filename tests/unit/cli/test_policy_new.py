"""`nodewise policy new` with metrics of files: the printed policy, questions, and messages about wrong flags."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from nodewise.cli import main, policy_new
from nodewise.policy_tools import policy_lint
from tests.unit.metrics import fake_prometheus
from tests.unit.metrics.fake_prometheus import PrometheusDouble

NODES = "".join(
    f"---\napiVersion: v1\nkind: Node\nmetadata: {{name: n{number}}}\n" for number in range(1, 12)
)
VALUES = "".join(f"n{number},disk_errors,{max(number - 8, 0)}\n" for number in range(1, 11))
SENSORS = "n1,temp,40\nn1,temp,90\nn2,temp,50\nn2,temp,55\n"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "nodes.yaml").write_text(NODES)
    (tmp_path / "metrics.csv").write_text(VALUES + SENSORS)
    return str(tmp_path)


def new(folder: str, *flags: str, answers: str = "") -> Result:
    command = policy_new.command
    return CliRunner().invoke(command, [folder, *flags], input=answers)


def add_pods(folder: str, *labels: str, namespace: str = "default", owner: str = "ReplicaSet") -> None:
    """Pods with one label each."""
    with (Path(folder) / "nodes.yaml").open("a") as file:
        for number, label in enumerate(labels):
            key, _, value = label.partition("=")
            metadata = {
                "name": f"{namespace}-{owner.lower()}-{number}",
                "namespace": namespace,
                "labels": {key: value, "pod-template-hash": "x"},
                "ownerReferences": [{"kind": owner, "apiVersion": "apps/v1", "name": "x", "uid": "x"}],
            }
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
            file.write(f"---\n{yaml.safe_dump(pod)}")


def printed(result: Result) -> Any:
    """The printed policy, which `policy lint` accepts."""
    assert result.exit_code == 0, result.output
    document = yaml.load(result.stdout, yaml.CSafeLoader)
    assert policy_lint.lint(msgspec.json.encode(document), document["kind"]) == []
    return document


def error(result: Result) -> str:
    assert result.stdout == ""
    return str(result.exception)


def test_a_policy_of_flags(folder: str) -> None:
    result = new(folder, "--metric=disk_errors", "--above=0", "-l", "app=web,tier=a", "-n", "shop")
    assert printed(result) == {
        "apiVersion": "nodewise.io/v1alpha1",
        "kind": "PlacementPolicy",
        "metadata": {"name": "avoid-disk-errors", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web", "tier": "a"}},
            "mode": "Shadow",
            "avoid": [{"metric": "disk_errors", "above": 0, "whenMissing": "Allow"}],
        },
    }
    assert "# disk_errors: 10 nodes with a value from source file, 1 without\n" in result.stdout
    assert "# minimum 0, median 0, 90th percentile 1, maximum 2\n" in result.stdout
    assert "# 2 of 11 nodes now: n10, n9\n" in result.stdout


def test_a_policy_that_pods_prefer(folder: str) -> None:
    spec = printed(new(folder, "--metric=disk_errors", "--above=0", "--enforcement=Preferred"))["spec"]
    assert spec["enforcement"] == "Preferred"


def test_a_policy_for_values_near_a_threshold_that_is_enforced(folder: str) -> None:
    spec = printed(
        new(folder, "--metric=disk_errors", "--above=2", "--for=90s", "--release=0.5", "--mode=Enforce")
    )
    assert "mode" not in spec["spec"]
    [rule] = spec["spec"]["avoid"]
    assert (rule["for"], rule["release"]) == ("1m30s", "0.5")
    [rule] = printed(new(folder, "--metric=disk_errors", "--above=2", "--keep-for=1h"))["spec"]["avoid"]
    assert rule["keepFor"] == "1h"
    assert "for" not in rule


def test_a_policy_of_the_whole_cluster(folder: str) -> None:
    document = printed(
        new(folder, "--metric=disk_errors", "--below=0.5", "--cluster-wide", "--name=x", "-n", "shop")
    )
    assert document["kind"] == "ClusterPlacementPolicy"
    assert document["metadata"] == {"name": "x"}
    assert document["spec"]["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}
    assert document["spec"]["podSelector"] == {}
    assert document["spec"]["avoid"] == [{"metric": "disk_errors", "below": "0.5", "whenMissing": "Allow"}]


def test_on_a_terminal_it_asks_and_proposes(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_new, "is_interactive", lambda: True)
    result = new(folder, answers="disk_errors\n{}\n\n\n")
    assert printed(result)["spec"]["avoid"][0]["above"] == 1
    assert "90th percentile 1, maximum 2" in result.stderr
    assert "Threshold [1]" in result.stderr
    below = new(folder, "--metric=disk_errors", "-l{}", answers="below\n0.2\n")
    assert printed(below)["spec"]["avoid"][0]["below"] == "0.2"


def test_on_a_terminal_all_pods_are_selected_only_if_the_answer_says_so(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_new, "is_interactive", lambda: True)
    flags = ("--metric=disk_errors", "--above=0")
    result = new(folder, *flags, answers="\nweb\n{}\n")
    assert printed(result)["spec"]["podSelector"] == {}
    assert "Error: found 'web', expected labels such as app=web,tier=batch" in result.stderr
    assert new(folder, *flags, answers="\n\n").exit_code == 1
    labelled = new(folder, *flags, answers="app=web, tier=a\n")
    assert printed(labelled)["spec"]["podSelector"] == {"matchLabels": {"app": "web", "tier": "a"}}


def test_on_a_terminal_the_label_of_most_pods_is_proposed(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_new, "is_interactive", lambda: True)
    add_pods(folder, "app=web", "app=db", "app=web", "tier=batch")
    add_pods(folder, *["app=logs"] * 3, owner="DaemonSet")
    add_pods(folder, *["app.kubernetes.io/name=cart"] * 3, namespace="shop")
    flags = ("--metric=disk_errors", "--above=0")
    result = new(folder, *flags, answers="\n")
    assert printed(result)["spec"]["podSelector"] == {"matchLabels": {"app": "web"}}
    assert "with numbers of pods: app=web (2), app=db (1)\n" in result.stderr
    shop = printed(new(folder, *flags, "-nshop", answers="\n"))
    assert shop["spec"]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "cart"}}
    assert "[" not in new(folder, *flags, "--cluster-wide", answers="{}\n").stderr


def test_without_a_terminal_and_a_selector_it_says_that_all_pods_are_selected(folder: str) -> None:
    flags = ("--metric=disk_errors", "--above=0")
    result = new(folder, *flags)
    assert printed(result)["spec"]["podSelector"] == {}
    assert result.stderr == "nodewise: no --selector: the policy selects all pods of the namespace\n"
    wide = new(folder, *flags, "--cluster-wide")
    assert "selects all pods of the selected namespaces" in wide.stderr
    for selector in ("-l{}", "-lapp=web"):
        assert new(folder, *flags, selector).stderr == ""


def test_without_a_terminal_it_names_the_flags(folder: str) -> None:
    assert "--metric: no value; expected the name of a metric" in error(new(folder))
    message = error(new(folder, "--metric=disk_errors"))
    assert "--above: no value; expected a threshold (or --below), for example --above 1" in message


def test_misspelt_metric_suggests_similar_ones(folder: str) -> None:
    message = error(new(folder, "--metric=disk_error", "--above=0"))
    assert "expected a metric of nodes, such as disk_errors" in message


def test_suggested_metric_of_prometheus_has_series(tmp_path: Path) -> None:
    (tmp_path / "nodes.yaml").write_text(NODES)
    series = {'fan_speed{node="n1"}': ("1", 400.0), 'fan_speeds{node="n1"}': "1"}
    with fake_prometheus.run_prometheus(PrometheusDouble(series)) as prometheus:
        flags = (
            "--metric=fan_sped",
            "--above=0",
            "--metrics=prometheus",
            f"--prometheus-url={prometheus.url}",
        )
        message = error(new(str(tmp_path), *flags))
    assert message.strip().endswith("expected a metric of nodes, such as fan_speeds")


def test_several_values_of_one_node_need_an_aggregation(folder: str) -> None:
    message = error(new(folder, "--metric=temp", "--above=80"))
    assert "--aggregate: 11 nodes, none with a value; n1: 2 values of one node differ" in message
    document = printed(new(folder, "--metric=temp", "--above=80", "--aggregate=max"))
    assert document["spec"]["avoid"][0]["aggregate"] == "max"
    wrong = new(folder, "--metric=temp", "--above=80", "--aggregate=median")
    assert "'median' is not one of 'max', 'min', 'sum', 'avg'." in wrong.output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--above=hot"], "--above: 'hot'; expected a Kubernetes quantity"),
        (["--above=1", "--below=2"], "--below: '2'; expected only one of --above and --below"),
        (["--above=1", "--selector=web"], "--selector: 'web'; expected labels such as app=web"),
        (["--above=1", "--name=No Name"], "metadata.name"),
        (["--above=1", "--selector=app=a b"], "spec.podSelector.matchLabels"),
        (["--above=1", "--release=cool"], "--release: 'cool'; expected a Kubernetes quantity"),
        (["--above=1", "--release=2"], "spec.avoid[0].release: 2; expected a value below 1"),
        (["--above=1", "--release=0", "--keep-for=1m"], "spec.avoid[0]: release and keepFor together"),
        (["--above=1", "--for=9000d"], "spec.avoid[0].for: '216000h'; expected a duration"),
    ],
)
def test_wrong_flags(folder: str, flags: list[str], message: str) -> None:
    assert message in error(new(folder, "--metric=disk_errors", *flags))


def test_misspelt_preset_names_the_flag_and_the_closest_one(folder: str) -> None:
    message = error(new(folder, "--preset=memory-presure"))
    assert "--preset" in message
    assert 'did you mean "memory-pressure"?' in message


def test_a_rule_of_a_preset_without_values_is_said_to_reject_every_node(folder: str) -> None:
    result = new(folder, "--preset=temperature", "-l", "app=web")
    assert "while no node has a value, the rule rejects every node" in result.stderr
    warning = "# Warning: no node has a value of "
    assert warning in result.stdout


def test_names_of_nodes_are_escaped(tmp_path: Path) -> None:
    evil = "a\x1b[31m,disk_errors,9\n"
    (tmp_path / "metrics.csv").write_text(VALUES + evil)
    result = new(str(tmp_path), "--metric=disk_errors", "--above=0")
    assert printed(result)["spec"]["avoid"][0]["metric"] == "disk_errors"
    assert "a\\x1b[31m" in result.stdout


def test_it_is_a_command_of_policy() -> None:
    assert "Print a policy with a threshold" in CliRunner().invoke(main.command, ["policy", "--help"]).output


@pytest.mark.parametrize(
    ("flags", "branches", "mutants"),
    [
        (["--metric=disk_errors", "--above=0", "-l", "app=web", "-n", "shop"], 3, 7),
        (["--metric=disk_errors", "--below=0.5", "--cluster-wide"], 3, 7),
        (["--metric=temp", "--aggregate=max", "--above=80"], 3, 7),
        (["--metric=disk_errors", "--above=1", "--enforcement=Preferred"], 3, 7),
        (["--metric=disk_errors", "--above=1", "--enforcement=Preferred", "--for=2m", "--keep-for=1m"], 5, 9),
        (["--metric=disk_errors", "--above=1", "--mode=Shadow", "--for=30s"], 4, 8),
        (["--metric=temp", "--aggregate=max", "--below=50", "--for=150s", "--release=52"], 5, 9),
        (["--metric=disk_errors", "--above=0", "--release=-3"], 4, 8),
        (["--metric=disk_errors", "--above=0", "--keep-for=90s"], 4, 8),
    ],
)
def test_a_folder_with_tests_that_pass_and_detect_every_mutant(
    folder: str, tmp_path: Path, flags: list[str], branches: int, mutants: int
) -> None:
    made = tmp_path / "made"
    result = new(folder, *flags, "--folder", str(made))
    assert result.stdout.splitlines() == [f"{made}/policy.yaml", f"{made}/tests/suite.yaml"]
    tested = CliRunner().invoke(main.command, ["policy", "test", str(made), "--mutate", "--coverage"])
    assert "1 test, none failed" in tested.stdout
    assert f"coverage: tests reach {branches} of {branches} branches" in tested.stdout
    assert f"mutants: tests detect {mutants} of {mutants} (100 %)" in tested.stdout
    assert "File exists; expected a new file" in error(new(folder, *flags, "--folder", str(made)))
