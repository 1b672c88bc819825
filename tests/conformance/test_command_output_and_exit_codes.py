"""The commands from the command line: output and exit codes."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nodewise.agents.telemetry import KIND as TELEMETRY
from nodewise.kube.resource_kinds import NODES, PODS, Resource
from nodewise.policies.options import TelemetryOptions
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests import forked_commands
from tests.cluster.certificates import CertificateAuthority

ROOT = Path(__file__).parents[2]
NODEWISE = Path(sys.executable).parent / "nodewise"
EXAMPLE = "examples/health-metric"
TASPOLICY_EXAMPLE = "examples/taspolicy"
POLICY = "placement policy health-metric-demo/healthy-disks"


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return forked_commands.run([NODEWISE, *arguments], cwd=ROOT, input=stdin)


class TestDecide:
    def test_json_contains_decisions_and_reasons(self) -> None:
        done = run("decide", EXAMPLE, "-o", "json")
        assert done.returncode == 0
        assert done.stderr == ""
        decision = json.loads(done.stdout)["decisions"][0]
        members = "pod agents feasible scores rejected values error policies changes"
        assert list(decision) == members.split()
        assert decision["pod"] == "health-metric-demo/demo-app-1"
        assert decision["agents"] == ["telemetry"]
        assert decision["feasible"] == ["rack1-a", "rack2-a"]
        assert decision["scores"] == {"rack1-a": 10, "rack2-a": 10}
        text = f"{POLICY}: health_metric above 0"
        assert decision["rejected"] == {"rack1-b": [{"agent": "telemetry", "reason": text}]}
        assert decision["error"] is None
        assert decision["policies"] == {POLICY: {"agent": "telemetry", "rejected": ["rack1-b"]}}
        assert decision["values"][1] == {
            "node": "rack1-b",
            "metric": "health_metric",
            "value": 2,
            "target": 0,
            "operator": "above",
            "state": "fresh",
            "age_s": None,
            "policy": POLICY,
        }

    def test_forms_for_people(self) -> None:
        assert "2/3" in run("decide", EXAMPLE).stdout
        assert "health_metric=2" in run("decide", EXAMPLE, "-o", "wide").stdout
        assert "feasible:" in run("decide", EXAMPLE, "-o", "yaml").stdout

    def test_a_pod_that_fits_nowhere_is_exit_3(self, tmp_path: Path) -> None:
        table = tmp_path / "metrics.csv"
        table.write_text("".join(f"{node},health_metric,1\n" for node in ("rack1-a", "rack1-b", "rack2-a")))
        done = run("decide", *inputs(), str(table), "-o", "json")
        assert done.returncode == 3
        assert json.loads(done.stdout)["decisions"][0]["feasible"] == []

    def test_an_unknown_policy_is_exit_3_with_an_error(self) -> None:
        folder = TASPOLICY_EXAMPLE
        done = run("decide", f"{folder}/nodes.yaml", f"{folder}/pods.yaml", "-o", "json")
        assert done.returncode == 3
        error = "nodewise: policy taspolicy-demo/demo-policy does not exist"
        assert {decision["error"] for decision in json.loads(done.stdout)["decisions"]} == {error}

    def test_ages_count_from_the_newest_value(self, tmp_path: Path) -> None:
        table = tmp_path / "m.csv"
        table.write_text(
            "node,metric,value,timestamp\n"
            "rack1-a,health_metric,0,2026-11-21T10:00:00Z\nrack1-b,health_metric,1,2026-11-21T09:00:00Z\n"
        )
        done = run("decide", *inputs(), str(table), "-o", "json")
        states = {
            v["node"]: (v["state"], v["age_s"]) for v in json.loads(done.stdout)["decisions"][0]["values"]
        }
        expected = {"rack1-a": ("fresh", 0.0), "rack1-b": ("stale", 3600.0), "rack2-a": ("missing", None)}
        assert states == expected

    @pytest.mark.parametrize(
        ("words", "stdin", "message"),
        [
            ([f"{EXAMPLE}/policy.yaml"], "", "no Node; expected at least one"),
            (["nowhere.yaml"], "", "nowhere.yaml: No such file"),
            (["README.md"], "", "README.md"),
            ([EXAMPLE, "-"], "{}", "standard input"),
            ([EXAMPLE, "-n", "web"], "", "no Pod without spec.nodeName"),
        ],
    )
    def test_invalid_input_is_reported_in_one_line(self, words: list[str], stdin: str, message: str) -> None:
        done = run("decide", *words, stdin=stdin)
        assert (done.returncode, done.stdout) == (1, "")
        assert message in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("time", ["1969-12-31T23:59:59Z", "2106-02-07T06:28:16Z", "9999-12-31T00:00:00Z"])
    def test_a_time_that_states_of_nodes_cannot_have_is_an_error(self, tmp_path: Path, time: str) -> None:
        policy = (ROOT / EXAMPLE / "policy.yaml").read_text().replace("above: 0", "above: 0, for: 2m")
        file = tmp_path / "policy.yaml"
        file.write_text(policy)
        expected = "expected a time from 1970 to 2106, such as 2026-11-21T00:43:47Z\n"
        done = run("decide", EXAMPLE, "--policy", str(file), "--now", time)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"nodewise: --now: '{time}'; {expected}"
        metrics = tmp_path / "metrics.csv"
        metrics.write_text(f"rack1-a,power,1,{time}\n")
        for now in ([], ["--now", "2026-11-21T00:43:47Z"]):
            dated = run("decide", EXAMPLE, str(metrics), "--policy", str(file), *now)
            assert (dated.returncode, dated.stdout) == (1, "")
            field_and_value = f"the timestamp of power of node rack1-a: a time in the year {time[:4]}"
            assert dated.stderr == f"nodewise: metrics: {field_and_value}; {expected}"

    def test_a_misspelled_kind_is_a_warning(self, tmp_path: Path) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("{apiVersion: nodewise.io/v1alpha1, kind: PlacementPolcy, metadata: {name: p}}")
        other = tmp_path / "other.yaml"
        other.write_text("{apiVersion: v1, kind: Service, metadata: {name: s}}")
        done = run("decide", EXAMPLE, str(tmp_path))
        assert done.returncode == 0
        misspelled = (
            "an object of the unknown kind 'PlacementPolcy' is ignored; did you mean \"PlacementPolicy\"?"
        )
        assert done.stderr == f"nodewise: Warning: {policy}, document 1: {misspelled}\n"

    def test_objects_of_drivers_are_known_kinds_for_other_agents(self, tmp_path: Path) -> None:
        for kind in ("ResourceClaim", "ResourceClaimTemplate"):
            fields = (
                "spec: {spec: {devices: {}}}" if kind == "ResourceClaimTemplate" else "spec: {devices: {}}"
            )
            text = f"{{apiVersion: resource.k8s.io/v1, kind: {kind}, metadata: {{name: c}}, {fields}}}"
            (tmp_path / f"{kind}.yaml").write_text(text)
        for agents in (["--agents", "telemetry"], []):
            done = run("decide", EXAMPLE, str(tmp_path), *agents)
            assert (done.returncode, done.stderr) == (0, "")

    def test_a_misspelled_metric_is_reported_with_the_similar_name(self, tmp_path: Path) -> None:
        policy = (ROOT / EXAMPLE / "policy.yaml").read_text().replace("health_metric", "helth_metric")
        file = tmp_path / "policy.yaml"
        file.write_text(policy)
        done = run("decide", EXAMPLE, "--policy", str(file))
        assert 'metric helth_metric is not in these files; did you mean "health_metric"?' in done.stderr

    def test_a_policy_replaces_the_one_of_the_same_name(self, tmp_path: Path) -> None:
        done = run("decide", EXAMPLE, "--policy", str(stricter(tmp_path)), "-o", "json")
        assert done.returncode == 3
        assert {tuple(decision["feasible"]) for decision in json.loads(done.stdout)["decisions"]} == {()}

    def test_metrics_of_sources_come_after_those_of_files(self, tmp_path: Path) -> None:
        table = tmp_path / "m.csv"
        table.write_text("rack1-a,health_metric,2\nrack1-b,health_metric,0\nrack2-a,health_metric,0\n")
        source = f"--metrics=file:{table}"
        for files, feasible in ((inputs(), ["rack1-b", "rack2-a"]), ([EXAMPLE], ["rack1-a", "rack2-a"])):
            done = run("decide", *files, source, "-o", "json")
            assert json.loads(done.stdout)["decisions"][0]["feasible"] == feasible

    def test_the_settings_file_of_the_extender_is_accepted(self, tmp_path: Path) -> None:
        file, table = tmp_path / "nodewise.yaml", tmp_path / "m.csv"
        file.write_text("port: 8443\nwhen_missing: reject\nnamespace: elsewhere\n")
        table.write_text("rack1-a,health_metric,0\n")
        done = run("decide", *inputs(TASPOLICY_EXAMPLE), str(table), "--config", str(file), "-o", "json")
        assert json.loads(done.stdout)["decisions"][0]["feasible"] == ["rack1-a"]

    def test_agents_with_work_to_do_decide(self) -> None:
        """A pod that names a policy needs the telemetry agent even if the policy does not exist."""
        plain, carded = (
            {"spec": {}},
            {"spec": {"containers": [{"name": "c", "resources": {"limits": ONE_CARD}}]}},
        )
        named = {"metadata": {"labels": {"telemetry-policy": "absent"}}}
        for pod, agents, code in ((plain, [], 0), (carded, ["gpu"], 3), (named, ["telemetry"], 3)):
            done = run("decide", "-", "-o", "json", stdin=json.dumps(cluster_state(pod)))
            (decision,) = json.loads(done.stdout)["decisions"]
            assert (decision["agents"], done.returncode) == (agents, code)
        with_cards = {"metadata": {"labels": {"gpu.intel.com/gpu-numbers": "0"}}}
        done = run("decide", "-", "-o", "json", stdin=json.dumps(cluster_state(named, node=with_cards)))
        assert json.loads(done.stdout)["decisions"][0]["agents"] == ["telemetry", "gpu"]

    def test_gpus_of_the_best_node_and_of_the_closest_rejected_node(self) -> None:
        table = run("decide", "examples/gpu-cards").stdout.splitlines()
        assert table[0].split() == ["POD", "FITS", "BEST", "GETS", "WHY", "NOT", "ELSEWHERE"]
        assert table[1].startswith("gpu-demo/model-3  1/3   four-linked  serve: card1 ")
        assert "(two-cards: card0 has 3G gpu.intel.com/memory.max left, 5G wanted: 2G too little)" in table[1]
        assert "GETS" not in run("decide", EXAMPLE).stdout
        assert "DETAILS" not in run("decide", EXAMPLE, "-o", "wide").stdout

    def test_a_scoring_placement_shows_the_gpus_that_it_selects(self) -> None:
        done = run("decide", "examples/gpu-cards", "--gpu-placement", "spread", "-o", "json")
        details = {
            decision["pod"]: decision["details"]["four-linked"]
            for decision in json.loads(done.stdout)["decisions"]
        }
        assert details["gpu-demo/model-3"] == {"gpu": "serve: card1"}


ONE_CARD = {"gpu.intel.com/i915": "1"}


def cluster_state(pod: dict[str, Any], node: dict[str, Any] | None = None) -> dict[str, Any]:
    """A cluster with one node and one pending pod."""
    items = [("Node", "n", node or {}), ("Pod", "p", pod)]
    listed = [
        body | {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **body.get("metadata", {})}}
        for kind, name, body in items
    ]
    return {"apiVersion": "v1", "kind": "List", "items": listed}


def stricter(folder: Path) -> Path:
    """The example's policy with a rule that every node breaks."""
    policy = {
        "apiVersion": "nodewise.io/v1alpha1",
        "kind": "PlacementPolicy",
        "metadata": {"name": "healthy-disks", "namespace": "health-metric-demo"},
        "spec": {"podSelector": {}, "avoid": [{"metric": "health_metric", "below": 3}]},
    }
    file = folder / "stricter.json"
    file.write_text(json.dumps(policy))
    return file


def on(node: str, name: str, app: str = "demo-app", phase: str = "Running") -> dict[str, Any]:
    """A pod that is bound to a node. The policy of the example selects it by its label `app`."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "health-metric-demo", "labels": {"app": app}},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


class TestDecideRunning:
    """`--running`: pods on nodes that their policy rejects, and the nodes that they could move to."""

    def cluster_state(self, *pods: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(pods)})
        names = [f"{EXAMPLE}/{name}.yaml" for name in ("nodes", "policy", "metrics")]
        return run("decide", *names, "-", "--running", "-o", "json", stdin=listed)

    def test_a_pod_on_a_rejected_node_does_not_stay(self) -> None:
        done = self.cluster_state(on("rack1-b", "bad"), on("rack1-a", "good"))
        assert done.returncode == 3
        decisions = {
            decision["pod"].rpartition("/")[2]: decision for decision in json.loads(done.stdout)["decisions"]
        }
        assert list(decisions["bad"])[-2:] == ["node", "stays"]
        assert (decisions["bad"]["node"], decisions["bad"]["stays"]) == ("rack1-b", False)
        assert decisions["bad"]["feasible"] == ["rack1-a", "rack2-a"]
        assert (decisions["good"]["node"], decisions["good"]["stays"]) == ("rack1-a", True)

    def test_pods_on_accepted_nodes_stay(self) -> None:
        assert self.cluster_state(on("rack1-a", "good")).returncode == 0

    def test_finished_terminating_and_unselected_pods_are_left_out(self) -> None:
        leaving = on("rack1-b", "leaving")
        leaving["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
        plain = on("rack1-b", "plain")
        del plain["metadata"]["labels"]
        done = self.cluster_state(
            on("rack1-b", "done", phase="Succeeded"), leaving, plain, on("gone", "ghost")
        )
        assert done.returncode == 0
        assert [decision["pod"] for decision in json.loads(done.stdout)["decisions"]] == [
            "health-metric-demo/ghost"
        ]

    def test_a_pending_pod_has_no_node(self) -> None:
        done = run("decide", EXAMPLE, "--running", "-o", "json")
        assert {
            (decision["node"], decision["stays"]) for decision in json.loads(done.stdout)["decisions"]
        } == {(None, None)}

    def test_forms_for_people(self, tmp_path: Path) -> None:
        pods = tmp_path / "pods.json"
        listed = [on("rack1-b", "bad"), on("rack1-a", "good"), on("rack1-a", "free", app="other")]
        pods.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": listed}))
        command = ["decide", EXAMPLE, str(pods), "--running"]
        lines = run(*command).stdout.splitlines()
        assert lines[0].split()[:5] == ["POD", "NODE", "STAYS", "FITS", "BEST"]
        moving = next(line for line in lines if "/bad" in line)
        assert moving.split()[1:5] == ["rack1-b", "no", "2/3", "rack1-a"]
        assert moving.endswith("health_metric above 0")
        assert not any("/good" in line for line in lines)
        assert lines[-1] == (
            "pods: 4 waiting, 1 running where a policy rejects them, 1 where they may stay, "
            "1 that no policy judges"
        )
        assert "rack1-b" in run(*command, "-o", "wide").stdout
        assert "stays: false" in run(*command, "-o", "yaml").stdout


def inputs(folder: str = EXAMPLE) -> list[str]:
    return [f"{folder}/{name}.yaml" for name in ("nodes", "pods", "policy")]


class TestDecideCluster:
    """`--cluster` with an in-memory API server. tests/cluster/test_decide.py uses a real one."""

    def run(self, folder: Path, *resources: Resource, pods: Sequence[dict[str, Any]] = ()) -> Any:
        api = FakeApi(*resources)
        for name in ("a", "b"):
            api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        for pod in pods:
            api.put(PODS, pod)
        with in_memory_api_http_server.serving(api) as server:
            done = run("decide", "--cluster", "--kubeconfig", str(server.kubeconfig(folder)), "-o", "json")
            assert {verb for verb, _ in server.call(lambda served: served.calls)} == {"get"}
        return done

    def waiting(self, **metadata: Any) -> dict[str, Any]:
        pod = on("", "demo-app", phase="Pending")
        return pod | {"metadata": pod["metadata"] | metadata, "spec": {}}

    def test_a_cluster_without_the_definition_of_policies(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, pods=[self.waiting(labels={"telemetry-policy": "demo-policy"})])
        assert "the cluster knows no taspolicies.telemetry.intel.com" in done.stderr
        (decision,) = json.loads(done.stdout)["decisions"]
        assert decision["error"] == "nodewise: policy health-metric-demo/demo-policy does not exist"
        assert done.returncode == 3

    def test_a_pod_without_a_policy_fits_every_node(self, tmp_path: Path) -> None:
        kinds = (watched.resource for watched in TELEMETRY.watched(TelemetryOptions()))
        done = self.run(tmp_path, *kinds, pods=[self.waiting(labels={})])
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("nodewise: settings and metrics are those of this command")
        assert json.loads(done.stdout)["decisions"][0]["feasible"] == ["a", "b"]


class TestPolicyLint:
    def test_a_good_policy(self) -> None:
        done = run("policy", "lint", EXAMPLE)
        assert (done.returncode, done.stdout) == (0, "2 policies, no problem\n")

    def test_every_problem_is_named(self) -> None:
        rules = [{"metricname": "a:b", "operator": "Above", "target": "warm"}]
        policy = {
            "apiVersion": "telemetry.intel.com/v1alpha1",
            "kind": "TASPolicy",
            "metadata": {"name": "p"},
            "spec": {"strategies": {"dontschedule": {"rules": rules}}},
        }
        done = run("policy", "lint", "-", "-o", "json", stdin=json.dumps(policy))
        assert done.returncode == 3
        fields = [problem["field"] for problem in json.loads(done.stdout)["policies"][0]["problems"]]
        assert [field.rpartition(".")[2] for field in fields] == ["metricname", "operator", "target"]

    def test_a_problem_is_reported_with_file_line_and_the_closest_valid_name(self, tmp_path: Path) -> None:
        file = tmp_path / "policies.yaml"
        file.write_text(
            "kind: List\napiVersion: v1\nitems:\n"
            "- apiVersion: telemetry.intel.com/v1alpha1\n  kind: TASPolicy\n  metadata: {name: p}\n"
            "  spec:\n    strategies:\n      dontSchedule:\n        rules:\n"
            "        - metricname: m\n          operator: Equals\n          target: 0.8\n"
        )
        done = run("policy", "lint", str(file))
        assert done.returncode == 3
        first, second, count = done.stdout.splitlines()
        assert first.startswith(
            f"{file}:9: default/p: spec.strategies.dontSchedule: found an unknown strategy"
        )
        assert first.endswith('did you mean "dontschedule"?')
        assert (
            f"{file}:13: default/p: spec.strategies.dontSchedule.rules[0].target: found 0.8, expected"
            in second
        )
        assert count == "1 policy, 1 with problems"

    def test_all_kinds_of_policies_in_one_file(self, tmp_path: Path) -> None:
        file = tmp_path / "policies.yaml"
        file.write_text(
            "apiVersion: nodewise.io/v1alpha1\nkind: PlacementPolicy\nmetadata: {name: cool, namespace: web}\n"
            "spec:\n  podSelector: {}\n  avoid:\n  - metric: temp\n    above: 80\n    when_missing: Reject\n"
            "---\napiVersion: nodewise.io/v1alpha1\nkind: ClusterPlacementPolicy\n"
            "metadata: {name: wide, namespace: web}\n"
            "spec:\n  namespaceSelector: {}\n  podSelector:\n    matchLabels: {app: web}\n"
            "  avoid:\n  - all:\n    - {query: up, equals: 0}\n    - metric: load\n      above: 0.5\n"
        )
        done = run("policy", "lint", str(file), EXAMPLE)
        assert done.returncode == 3
        assert done.stdout.splitlines() == [
            (
                f"{file}:9: web/cool: spec.avoid[0].when_missing: found an unknown field, expected metric, aggregate, "
                "above, atLeast, below, atMost, equals, notEquals, between, maxAge, whenMissing, release, for, "
                'keepFor, all; did you mean "whenMissing"?'
            ),
            (
                f"{file}:13: wide: metadata.namespace: found 'web', expected none; a ClusterPlacementPolicy is not in "
                "a namespace, and namespaceSelector selects those of its pods"
            ),
            (
                f"{file}:22: wide: spec.avoid[0].all[1].above: found 0.5, expected an integer of 64 bits, "
                'or a text such as "0.5"'
            ),
            "4 policies, 2 with problems",
        ]


class TestPolicyConvert:
    def test_the_converted_policies_have_no_problem(self) -> None:
        done = run("policy", "convert", TASPOLICY_EXAMPLE)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("# Replaces a part of TASPolicy taspolicy-demo/demo-policy.\n")
        again = run("policy", "lint", "-", stdin=done.stdout)
        assert (again.returncode, again.stdout) == (0, "2 policies, no problem\n")

    def test_a_policy_that_cannot_be_converted_is_named_and_the_others_are_printed(
        self, tmp_path: Path
    ) -> None:
        file = tmp_path / "policies.yaml"
        head = "apiVersion: telemetry.intel.com/v1alpha1\nkind: TASPolicy\n"
        rules = "spec:\n  strategies:\n    dontschedule:\n      rules:\n      - metricname: m\n"
        file.write_text(
            f"{head}metadata: {{name: good}}\n{rules}        operator: LessThan\n        target: '0.5'\n"
            f"---\n{head}metadata: {{name: bad}}\n{rules}        operator: Under\n        target: 1\n"
        )
        done = run("policy", "convert", "--when-missing", "reject", str(file))
        assert done.returncode == 3
        assert done.stdout.endswith("  - metric: m\n    below: '0.5'\n    whenMissing: Reject\n")
        assert done.stdout.count("kind: ") == 1
        assert done.stderr.startswith(
            f"nodewise: not converted: {file}:20: default/bad: spec.strategies.dontschedule.rules[0].operator: "
            "found 'Under', expected LessThan or GreaterThan or Equals"
        )

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            (
                "lint",
                "no policy; expected at least one TASPolicy or PlacementPolicy or ClusterPlacementPolicy",
            ),
            ("convert", "no TASPolicy; expected at least one"),
        ],
    )
    def test_files_without_a_policy(self, tmp_path: Path, command: str, message: str) -> None:
        (tmp_path / "pod.yaml").write_text("{apiVersion: v1, kind: Pod, metadata: {name: p}}")
        done = run("policy", command, str(tmp_path))
        assert done.returncode == 1
        assert message in done.stderr


def test_agents_are_listed_and_shown() -> None:
    assert "telemetry" in run("agents", "list").stdout
    shown = json.loads(run("agents", "show", "telemetry", "-o", "json").stdout)
    kinds = ["taspolicies.telemetry.intel.com", "placementpolicies.nodewise.io"]
    assert shown["reads"] == [*kinds, "clusterplacementpolicies.nodewise.io", "namespaces"]


SERVE = ["extender", f"--objects-from={EXAMPLE}"]
NO_CERTIFICATE = [
    "--cert: is not given; expected the path of a PEM file; --key: ",
    "; --client-ca: is not given",
]
PLAIN_HTTP = ["--address: plain HTTP on 0.0.0.0", "--unsafe-address 0.0.0.0"]


class TestSettings:
    """An invalid setting ends the extender at once with exit code 2 and a message that names the remedy."""

    @pytest.mark.parametrize(
        ("words", "messages"),
        [
            (["decide"], ["expected files to decide from, or --cluster"]),
            (["decide", "--cluster", "--kubeconfig=/nowhere"], ["/nowhere"]),
            (["decide", EXAMPLE, "--allowed-metrics=node_("], ["--allowed-metrics", "a regular expression"]),
            (["agents", "show", "nope"], ["agents: NAME: 'nope'; expected one of telemetry"]),
            (["extender", "--cachePort=8111"], ["No such option"]),
            *(([*SERVE, f"-syncPeriod={value}"], ["--sync-period"]) for value in ("5", "0s", "-1s", "abc")),
            (["extender", "-kubeConfig=/nowhere/config"], ["/nowhere/config"]),
            ([*SERVE, "--agents=telemetry,warp"], ["'warp'"]),
            ([*SERVE, "--metrics=oracle"], ["auto, custom, resource, prometheus, file:PATH or otlp:FILE"]),
            ([*SERVE, "--port=0", "--health-port=0"], NO_CERTIFICATE),
            ([*SERVE, "--unsafe", "--address=0.0.0.0", "--port=0"], PLAIN_HTTP),
            *(
                ([*words, f"{option}={value}"], [f"Invalid value for '{option}': {value} is not more than 0"])
                for *words, option, value in (
                    ("extender", "--header-timeout", "0s"),
                    ("extender", "--keep-alive", "-1s"),
                    ("doctor", "--timeout", "0s"),
                    ("explain", "web", "--timeout", "-5s"),
                    ("certs", "--lifetime", "0d"),
                )
            ),
        ],
        ids=lambda column: column[-1],
    )
    def test_invalid_settings_end_the_command_with_a_message(
        self, words: list[str], messages: list[str]
    ) -> None:
        done = run(*words)
        assert done.returncode == 2
        assert [message for message in messages if message not in done.stderr] == []

    def test_an_invalid_variable_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NODEWISE_SYNC_PERIOD", "5")
        done = run("extender", "--objects-from", EXAMPLE)
        assert done.returncode == 2
        assert "Invalid value for 'NODEWISE_SYNC_PERIOD': invalid duration '5'" in done.stderr
        done = run("extender", "--objects-from", EXAMPLE, "--sync-period=6")
        assert "Invalid value for '--sync-period': invalid duration '6'" in done.stderr

    def test_unknown_key_of_the_file_names_the_nearest(self, tmp_path: Path) -> None:
        file = tmp_path / "nodewise.yaml"
        file.write_text("sync_perid: 5s\n")
        done = run("extender", "--config", str(file))
        assert done.returncode == 2
        assert "sync_perid: an unknown setting; expected sync_period" in done.stderr

    def test_certificate_that_does_not_match_its_key(self, tmp_path: Path) -> None:
        first, other = CertificateAuthority(tmp_path, "one"), CertificateAuthority(tmp_path, "other")
        cert, key = first.issue("a", "localhost").cert, other.issue("b", "localhost").key
        flags = [
            f"--cert={cert}",
            f"--key={key}",
            f"--client-ca={first.ca_file}",
            "--port=0",
            "--health-port=0",
        ]
        done = run(*SERVE, *flags)
        assert done.returncode == 2
        assert str(cert) in done.stderr
        assert str(key) in done.stderr

    @pytest.mark.parametrize("option", ["--port", "--health-port"])
    def test_a_port_in_use_is_reported_with_its_option(self, option: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            ports = {"--port": 0, "--health-port": 0, option: port}
            flags = [f"{name}={number}" for name, number in ports.items()]
            done = run("extender", "--objects-from", EXAMPLE, "--unsafe", *flags)
        assert done.returncode == 2
        assert f"{option}: {port} is in use on 127.0.0.1; expected a free port" in done.stderr


def test_the_demo_has_at_most_40_lines() -> None:
    done = run("demo")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    assert "\x1b" not in done.stdout
    assert f"rejected: {POLICY}: health_metric above 0" in done.stdout
    assert "0/3 nodes are available: 3 placement policy" in done.stdout
    assert "At 5,000 nodes" in done.stdout
    assert lines[-2] == "Next:"
    assert lines[-1].endswith("nodewise decide examples/health-metric -o wide")


def test_help_has_an_example_everywhere() -> None:
    for command in (["extender"], ["decide"], ["explain"], ["demo"], ["policy", "lint"], ["agents", "show"]):
        assert re.search("^  Examples?:$", run(*command, "--help").stdout, re.MULTILINE), command


class TestTrust:
    """Namespace objects in the files, or the flag, define which namespaces are trusted."""

    RULE: ClassVar = {"metricname": "health_metric", "query": "up", "operator": "Equals", "target": 2}
    POLICY: ClassVar = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": "demo-policy", "namespace": "taspolicy-demo"},
        "spec": {"strategies": {"dontschedule": {"rules": [RULE]}}},
    }

    def decided(self, trusted: str | None, *flags: str) -> dict[str, Any]:
        """The first decision of the example with a raw query; `trusted` is the value of the namespace's label."""
        listed = [self.POLICY]
        if trusted is not None:
            metadata = {"name": "taspolicy-demo", "labels": {"nodewise.io/trusted": trusted}}
            listed += [{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}]
        files = [f"{TASPOLICY_EXAMPLE}/{name}" for name in ("nodes.yaml", "pods.yaml", "metrics.csv")]
        objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": listed})
        done = run("decide", *files, "-", "-o", "json", *flags, stdin=objects)
        decision: dict[str, Any] = json.loads(done.stdout)["decisions"][0]
        return decision

    @pytest.mark.parametrize("trusted", [None, "false"])
    def test_a_query_without_trust_rejects_every_node(self, trusted: str | None) -> None:
        decision = self.decided(trusted)
        assert decision["feasible"] == []
        assert (
            "namespace taspolicy-demo is not trusted: rules with a query cannot be used" in decision["error"]
        )
        assert "kubectl label namespace taspolicy-demo nodewise.io/trusted=true" in decision["error"]

    @pytest.mark.parametrize(("trusted", "flags"), [("true", ()), (None, ("--trust-all-namespaces",))])
    def test_a_query_with_trust_is_evaluated(self, trusted: str | None, flags: tuple[str, ...]) -> None:
        assert self.decided(trusted, *flags)["feasible"] == ["rack1-a", "rack2-a"]

    def test_allowed_metrics_restrict_namespaces_without_trust(self) -> None:
        done = run("decide", TASPOLICY_EXAMPLE, "-o", "json", "--allowed-metrics", "cpu_usage")
        assert len(json.loads(done.stdout)["decisions"][0]["feasible"]) == 1, "the example is trusted"
        plain = {**self.POLICY, "spec": {"strategies": {"dontschedule": {"rules": [self.PLAIN]}}}}
        files = [f"{TASPOLICY_EXAMPLE}/{name}" for name in ("nodes.yaml", "pods.yaml", "metrics.csv")]
        done = run("decide", *files, "-", "-o", "json", "--allowed-metrics", "cpu", stdin=json.dumps(plain))
        assert (
            "health_metric is not one of --allowed-metrics"
            in json.loads(done.stdout)["decisions"][0]["error"]
        )

    PLAIN: ClassVar = {"metricname": "health_metric", "operator": "Equals", "target": 2}


class TestStandardStreams:
    @pytest.mark.parametrize(
        "words",
        [
            "--help",
            f"decide {EXAMPLE}",
            f"decide {EXAMPLE} -o json",
            f"policy convert {TASPOLICY_EXAMPLE}/policy.yaml",
        ],
    )
    def test_a_full_disk_is_reported_in_one_line(self, words: str) -> None:
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [NODEWISE, *words.split()],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                check=False,
            )
        assert (done.returncode, done.stderr) == (
            1,
            "nodewise: cannot write: No space left on device; expected space for the output\n",
        )

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
    def test_a_closed_stream_is_no_error(self, closed: str) -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" decide {EXAMPLE} {closed}', NODEWISE],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
