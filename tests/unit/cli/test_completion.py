"""Shell completion: the scripts, names from the cluster, and the plugin of kubectl."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from nodewise.base.errors import Unavailable
from nodewise.cli import completion, main
from nodewise.cli.main import command, run
from nodewise.kube import api_client_creation

PODS = {"web": ["shop-1", "shop-2"], "default": ["one"]}


class FakeApi:
    namespace = "default"

    async def get(self, path: str, params: dict[str, str], timeout_s: float) -> bytes:
        names = [*PODS, "kube-system"] if path == "/api/v1/namespaces" else PODS[path.split("/")[4]]
        return json.dumps({"items": [{"metadata": {"name": name}} for name in names]}).encode()

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell: str) -> None:
    result = CliRunner().invoke(command, ["completion", shell])
    assert f"_NODEWISE_COMPLETE={shell}_complete" in result.stdout
    assert CliRunner().invoke(command, ["completion", "csh"]).exit_code == 2


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("nodewise agents show te", ["telemetry"]),
        ("nodewise decide --agents gpu,te", ["gpu,telemetry"]),
        ("nodewise explain o", ["one"]),
        ("nodewise explain -n web sh", ["shop-1", "shop-2"]),
        ("nodewise explain web/", ["web/shop-1", "web/shop-2"]),
        ("nodewise explain ", ["one"]),
        ("nodewise explain pod/", ["pod/one"]),
        ("nodewise explain -n web pod/shop-2", ["pod/shop-2"]),
        ("nodewise explain -n w", ["web"]),
        ("nodewise doctor -n ku", ["kube-system"]),
        ("nodewise completion z", ["zsh"]),
        ("nodewise policy new --preset gpu", ["gpu-ecc", "gpu-xid"]),
        ("nodewise policy library con", ["conntrack"]),
        ("nodewise extender --agents gpu,te", ["gpu,telemetry"]),
        ("nodewise configure --agents gp", ["gpu"]),
        ("nodewise configure manifests rbac po", ["pod-admission", "policy-fields", "policy-roles"]),
    ],
)
def test_names_are_completed(
    words: str, names: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api_client_creation, "connect", lambda *_: FakeApi())
    assert offered(words, monkeypatch, capsys) == [f"plain,{name}" for name in names]


def test_a_cluster_that_does_not_answer_gives_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> FakeApi:
        raise Unavailable("no answer")

    monkeypatch.setattr(api_client_creation, "connect", connect)
    assert plugin(["explain", ""], monkeypatch) == [":4"]


def test_the_shell_does_not_wait_for_a_cluster_that_hangs() -> None:
    """The event loop cannot end while a thread of it waits, as for the name of a host that no server resolves."""
    program = """
import asyncio, threading
from nodewise.cli import completion
from nodewise.kube import api_client_creation
from nodewise.kube import api_client_creation

class Hangs:
    namespace = "default"
    async def get(self, *_, **__):
        await asyncio.to_thread(threading.Event().wait)

completion._LIMIT_S = 0.05
api_client_creation.connect = lambda *_: Hangs()
completion.run_for_kubectl()
"""
    command = [sys.executable, "-c", program, "explain", ""]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "words",
    [
        "nodewise policy lint exam",
        "nodewise policy convert exam",
        "nodewise policy test exam",
        "nodewise policy diff old.yaml exam",
        "nodewise policy backtest exam",
        "nodewise decide exam",
        "nodewise decide --policy exam",
        "nodewise explain --kubeconfig exam",
        "nodewise extender --cert exam",
        "nodewise cpu install --from exam",
    ],
)
def test_the_shell_completes_files(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered(words, monkeypatch, capsys) in (["file,exam"], ["dir,exam"])


def offered(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The completions of a command line, each with its type."""
    monkeypatch.setenv("_NODEWISE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        run([], name="nodewise")
    return capsys.readouterr().out.splitlines()


def plugin(words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-nodewise", *words])
    lines: list[str] = []
    monkeypatch.setattr(completion.click, "echo", lines.append)
    with pytest.raises(SystemExit):
        completion.run_for_kubectl()
    return lines


def test_kubectl_completes_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_client_creation, "connect", lambda *_: FakeApi())
    assert plugin(["explain", "-n", "web", "shop-"], monkeypatch) == ["shop-1", "shop-2", ":4"]
    assert plugin(["expl"], monkeypatch)[0].startswith("explain\t")


def test_the_plugin_is_the_same_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-nodewise", "--version"])
    with pytest.raises(SystemExit) as ended:
        main.run_as_kubectl_plugin()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("nodewise ")
    monkeypatch.setattr(sys, "argv", ["kubectl-nodewise", "explain", "--help"])
    with pytest.raises(SystemExit):
        main.run_as_kubectl_plugin()
    assert "Usage: kubectl nodewise explain" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("nodewise de", {"decide", "demo", "devices"}),
        ("nodewise cpu reco", {"reconcile", "reconfigure", "reconfigure_setup"}),
        ("nodewise decide --output ", {"table", "wide", "json", "yaml"}),
        ("nodewise explain --n", {"--namespace", "--nodes", "--nodewise-namespace"}),
    ],
)
def test_commands_and_options_are_completed(
    words: str, names: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {line.partition(",")[2] for line in offered(words, monkeypatch, capsys)} == names
