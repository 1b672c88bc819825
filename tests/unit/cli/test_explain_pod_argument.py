"""The argument POD of `nodewise explain`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from nodewise.base.errors import BadSettings
from nodewise.cli import explain
from nodewise.cli.explain import parse_pod_argument
from nodewise.kube.resource_kinds import NAMESPACES
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi


@pytest.mark.parametrize(
    ("text", "option", "expected"),
    [
        ("web-1", "", ("", "web-1")),
        ("web-1", "shop", ("shop", "web-1")),
        ("pod/web-1", "shop", ("shop", "web-1")),
        ("pods/web-1", "", ("", "web-1")),
        ("po/web-1", "", ("", "web-1")),
        ("Pod/web-1", "", ("", "web-1")),
        ("shop/web-1", "", ("shop", "web-1")),
        ("shop/web-1", "shop", ("shop", "web-1")),
        ("po", "", ("", "po")),
    ],
)
def test_forms(text: str, option: str, expected: tuple[str, str]) -> None:
    assert parse_pod_argument(text, option) == expected


@pytest.mark.parametrize("kind", ["deployment", "deployments", "deploy", "rs", "StatefulSet", "ds", "job"])
def test_owner_of_pods_is_no_namespace(kind: str) -> None:
    with pytest.raises(BadSettings, match=f"POD: '{kind}/web'; expected a pod") as raised:
        parse_pod_argument(f"{kind}/web", "shop")
    assert f"kubectl describe {kind}/web shows its selector" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "option"),
    [("", ""), ("shop/", ""), ("/web", ""), ("pod/", ""), ("pod/shop/web", ""), ("shop/web", "other")],
)
def test_invalid_forms(text: str, option: str) -> None:
    with pytest.raises(BadSettings, match="NAME, pod/NAME or NAMESPACE/NAME, and one namespace"):
        parse_pod_argument(text, option)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["web-1"],
            "pod default/web-1 does not exist (default is the namespace of the context, -n names another one)",
        ),
        (["web-1", "-n", "default"], "pod default/web-1 does not exist"),
        (["default/web-1"], "pod default/web-1 does not exist"),
    ],
)
def test_a_missing_pod_in_the_namespace_of_the_context(
    tmp_path: Path, arguments: list[str], line: str
) -> None:
    api = FakeApi()
    api.put(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
    with in_memory_api_http_server.serving(api) as server:
        kubeconfig = str(server.kubeconfig(tmp_path))
        result = CliRunner().invoke(explain.command, [*arguments, "--kubeconfig", kubeconfig])
    assert result.stdout.splitlines()[0] == line
