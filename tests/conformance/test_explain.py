"""`nodewise explain` from the command line, with a real extender on files."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodewise.cli import demo
from nodewise.cli.demo import ExtenderProcess
from tests import forked_commands, plain_http
from tests.conformance.test_command_output_and_exit_codes import EXAMPLE, ROOT, run

Json = dict[str, Any]
POD = "health-metric-demo/demo-app-1"
NODES = ["rack1-a", "rack1-b", "rack2-a"]


def pod(name: str = "demo-app-1", **labels: str) -> Json:
    metadata = {
        "name": name,
        "namespace": "health-metric-demo",
        "uid": f"uid-of-{name}",
        "labels": {"app": "demo-app"} | labels,
    }
    return {"metadata": metadata, "spec": {}}


def ask(served: ExtenderProcess, verb: str, nodes: list[str], pod: Json) -> Any:
    """Send a request in the form of kube-scheduler."""
    body = {"Pod": pod, "NodeNames": nodes}
    return plain_http.post(f"{served.url}/scheduler/{verb}", json=body).json()


@pytest.fixture(scope="module")
def extender() -> Iterator[ExtenderProcess]:
    """An extender that decided about two pods: one was placed, the other's policy does not exist."""
    with demo.extender([f"--objects-from={ROOT / EXAMPLE}"]) as served:
        served.wait_ready()
        left = ask(served, "filter", NODES, pod())["NodeNames"]
        ask(served, "prioritize", left, pod())
        ask(served, "filter", NODES, pod("lost", app="other", **{"telemetry-policy": "absent"}))
        yield served


def explain(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("explain", *arguments)


def test_the_text_has_each_node_and_changes_of_the_decision(extender: ExtenderProcess) -> None:
    done = explain(POD, "--server", extender.health_url)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stdout.startswith(f"{POD} at its last attempt: 2 of the 3 nodes asked about pass\n")
    assert ["rack1-a", "10", "health_metric", "0", "-"] in lines
    assert ["rack2-a", "10", "health_metric", "0", "-"] in lines
    assert done.stdout.endswith("  health_metric above: 1 more node passes at 2 instead of 0\n")


def test_namespace_as_an_option(extender: ExtenderProcess) -> None:
    done = explain("demo-app-1", "-n", "health-metric-demo", "--server", extender.health_url, "-o", "wide")
    assert done.returncode == 0
    assert "health_metric Ascending (ranks)" in done.stdout


def test_json_contains_the_whole_attempt(extender: ExtenderProcess) -> None:
    report = json.loads(explain(POD, "--server", extender.health_url, "-o", "json").stdout)
    expected = ["pod", "state", "gone", "replicas", "tries", "since", "attempt", "warning", "why_none"]
    assert list(report) == expected
    assert (report["pod"], report["state"], report["tries"], report["why_none"]) == (POD, None, 1, None)
    assert report["replicas"][0]["replica"] == extender.health_url
    assert (report["replicas"][0]["found"], report["replicas"][0]["error"]) == (2, None)
    attempt = report["attempt"]
    assert (attempt["asked"], attempt["passing"], attempt["calls"]) == (3, 2, ["filter", "prioritize"])
    assert attempt["nodes"][-1] == {
        "node": "rack1-b",
        "passes": False,
        "score": None,
        "reasons": [
            {
                "agent": "telemetry",
                "reason": "placement policy health-metric-demo/healthy-disks: health_metric above 0",
            }
        ],
        "measured": [
            {
                "metric": "health_metric",
                "operator": "above",
                "target": 0,
                "value": 2,
                "state": "fresh",
                "age_s": None,
                "rejects": True,
                "policy": "placement policy health-metric-demo/healthy-disks",
            }
        ],
    }
    (change,) = attempt["changes"]
    assert (change["operator"], change["target"], change["alone"]) == ("above", 0, 1)
    assert change["more"] == [{"target": 2, "nodes": 1}]


def test_watch_prints_a_document_for_each_change_until_it_is_interrupted(extender: ExtenderProcess) -> None:
    about = pod("watched")
    ask(extender, "filter", NODES[:1], about)
    command = [
        forked_commands.NODEWISE,
        "explain",
        "health-metric-demo/watched",
        "--server",
        extender.health_url,
    ]
    with subprocess.Popen(
        [*command, "--watch", "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as watching:
        assert watching.stdout
        assert watching.stderr
        before = json.loads(watching.stdout.readline())
        ask(extender, "filter", NODES, about)
        after = json.loads(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        rest, messages = watching.stdout.read(), watching.stderr.read()
    assert [report["attempt"]["asked"] for report in (before, after)] == [1, len(NODES)]
    assert (watching.returncode, rest, messages.strip()) == (130, b"", b"")


def test_a_missing_policy_is_reported_with_its_remedy(extender: ExtenderProcess) -> None:
    done = explain("health-metric-demo/lost", "--server", extender.health_url)
    assert done.returncode == 0
    assert "3      nodewise: policy health-metric-demo/absent does not exist" in done.stdout
    assert "  create TASPolicy health-metric-demo/absent, or correct the pod's label" in done.stdout


def test_no_decision_is_exit_3_with_reasons(extender: ExtenderProcess) -> None:
    done = explain("web/other", "--server", extender.health_url)
    assert done.returncode == 3
    assert done.stdout.startswith("web/other: 1 replica asked, none has a decision\n")
    assert "managedResources" in done.stdout
    again = explain("web/other", "--server", extender.health_url, "-o", "json")
    assert again.returncode == 3
    report = json.loads(again.stdout)
    assert report["attempt"] is None
    assert report["why_none"]


def test_a_replica_that_is_down_is_named_and_the_others_answer(extender: ExtenderProcess) -> None:
    down = "http://127.0.0.1:1"
    done = explain(POD, "--server", down, "--server", extender.health_url, "-o", "json")
    assert done.returncode == 0
    assert f"nodewise: {down} is left out: no answer" in done.stderr
    assert [bool(replica["error"]) for replica in json.loads(done.stdout)["replicas"]] == [True, False]
    alone = explain(POD, "--server", down)
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "no replica of nodewise answers" in alone.stderr


def test_a_port_without_decisions_differs_from_one_that_is_down(extender: ExtenderProcess) -> None:
    done = explain(POD, "--server", extender.url)
    assert done.returncode == 1
    assert "HTTP status 404" in done.stderr
    assert "admin port" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["a", "--server", "127.0.0.1:9002"],
            2,
            "'127.0.0.1:9002'; expected a URL such as http://127.0.0.1:9002",
        ),
        (["a", "--server", "http://"], 2, "--server: 'http://'; expected a URL"),
        (["a", "--server", "http://h:no"], 2, "--server: 'http://h:no'; expected a URL"),
        (["a/b", "-n", "c", "--server", "http://x"], 2, "one namespace"),
        (["a/", "--server", "http://x"], 2, "NAME, pod/NAME or NAMESPACE/NAME"),
        (["a", "--kubeconfig", "/nowhere"], 2, "or name a replica's admin port with --server"),
        ([], 2, "POD"),
    ],
)
def test_usage(arguments: list[str], code: int, message: str) -> None:
    done = explain(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


def test_a_page_of_another_version_is_an_error_of_that_replica(tmp_path: Path) -> None:
    """This occurs during a rolling update of the replicas."""
    import http.server
    import threading

    class Old(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"decisions": [{"verb": "filter"}]}')

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Old) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = explain("a", "--server", f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert done.returncode == 1
    assert "the form of this version" in done.stderr


@pytest.fixture(scope="module")
def with_cards() -> Iterator[ExtenderProcess]:
    """An extender that decided about the waiting pod of the example."""
    with demo.extender([f"--objects-from={ROOT / 'examples/gpu-cards'}", "--agents=gpu"]) as served:
        served.wait_ready()
        resources = {"requests": {"gpu.intel.com/i915": "1", "gpu.intel.com/memory.max": "5G"}}
        spec = {"containers": [{"name": "serve", "resources": resources}]}
        pod = {"metadata": {"name": "model-3", "namespace": "gpu-demo", "uid": "3"}, "spec": spec}
        ask(served, "filter", ["two-cards", "four-linked", "no-cards"], pod)
        yield served


def test_gpu_resource_and_shortage_are_shown(with_cards: ExtenderProcess) -> None:
    done = explain("gpu-demo/model-3", "--server", with_cards.health_url)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line for line in done.stdout.splitlines() if line.startswith(("two-cards", "four-linked"))]
    assert rows[0].split() == ["four-linked", "-", "-", "serve:", "card1", "-"]
    assert "card0 has 3G gpu.intel.com/memory.max left, 5G wanted: 2G too little" in rows[1]
    page = plain_http.get(f"{with_cards.health_url}/decisions?pod=model-3").json()
    assert page["decisions"][0]["details"]["four-linked"] == {"gpu": "serve: card1"}
    report = json.loads(explain("gpu-demo/model-3", "--server", with_cards.health_url, "-o", "json").stdout)
    assert report["attempt"]["nodes"][0]["details"] == {"gpu": "serve: card1"}
