"""The choice of the kubeconfig, and the errors for invalid ones."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodewise.base.errors import BadSettings
from nodewise.kube import kubeconfig


def config(**changes: Any) -> dict[str, Any]:
    whole = {
        "clusters": [{"name": "c", "cluster": {"server": "https://host:6443"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "current-context": "x",
    }
    return whole | changes


def write_config(folder: Path, content: Any, name: str = "config") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def load_context(path: Path, context: str = "") -> kubeconfig.KubeconfigContext:
    return kubeconfig.load_context(str(path), context, {})


def test_the_current_context_is_taken(tmp_path: Path) -> None:
    kubeconfig_context = load_context(write_config(tmp_path, config()))
    actual = (kubeconfig_context.name, kubeconfig_context.cluster["server"], kubeconfig_context.user["token"])
    assert actual == ("x", "https://host:6443", "t")
    assert kubeconfig_context.context["namespace"] == "ns"


def test_another_context_can_be_named(tmp_path: Path) -> None:
    contexts = [*config()["contexts"], {"name": "y", "context": {"cluster": "c"}}]
    assert load_context(write_config(tmp_path, config(contexts=contexts)), "y").user == {}


WRONG = [
    pytest.param("a: [", "", "YAML of kind Config", id="no YAML"),
    pytest.param("- a", "", "YAML of kind Config", id="a list"),
    pytest.param("", "", "YAML of kind Config", id="empty"),
    pytest.param("\x00", "", "YAML of kind Config", id="binary"),
    pytest.param(
        config(clusters={"c": {}}), "", "clusters: {'c': {}}; expected a list", id="clusters no list"
    ),
    pytest.param(
        config(users=[{"user": {}}]), "", "users: {'user': {}}; expected entries with a name", id="no name"
    ),
    pytest.param(
        config(users=[{"name": "u", "user": 3}]),
        "",
        "user u: 3; expected a mapping",
        id="a user of wrong type",
    ),
    pytest.param(
        config(), "y", "context: there is none named 'y'; expected one of 'x'", id="no such context"
    ),
    pytest.param(
        config(clusters=[]),
        "",
        "cluster: there is none named 'c'; expected clusters, but the file has none",
        id="no such cluster",
    ),
    pytest.param(
        config(users=[{"name": "v", "user": {}}]),
        "",
        "user: there is none named 'u'; expected one of 'v'",
        id="no such user",
    ),
    pytest.param(
        config(**{"current-context": ""}),
        "",
        "current-context: not set; expected one of 'x' (give one with --context)",
        id="no current context",
    ),
    pytest.param(
        config(clusters=[{"name": "c", "cluster": {}}]),
        "",
        "cluster c: server: not set; expected https://host:port",
        id="no server",
    ),
]


@pytest.mark.parametrize(("content", "context", "words"), WRONG)
def test_error_names_the_file_and_the_field(tmp_path: Path, content: Any, context: str, words: str) -> None:
    path = write_config(tmp_path, content)
    with pytest.raises(BadSettings) as raised:
        load_context(path, context)
    assert f"kubeconfig {path}" in str(raised.value)
    assert words in str(raised.value)


def test_a_file_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as raised:
        load_context(tmp_path / "none")
    assert str(raised.value) == (
        f"cannot connect to an API server: --kubeconfig: there is no file {tmp_path / 'none'}; "
        "expected a kubeconfig file (give a kubeconfig with --kubeconfig, or set KUBECONFIG)"
    )
    with pytest.raises(BadSettings, match="is a folder"):
        load_context(tmp_path)


@pytest.mark.parametrize(("option", "named"), [("", "~/.kube/config"), ("~no-such-user/config",) * 2])
def test_home_of_an_unknown_user_is_reported(
    option: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on OpenShift, which runs containers as users without an entry in /etc/passwd."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1000650000)
    with pytest.raises(BadSettings, match=f"there is no file {named}; expected a kubeconfig file"):
        kubeconfig.load_context(option, "", {})


def test_without_any_hint_the_home_folder_is_looked_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BadSettings, match=r"\.kube/config"):
        kubeconfig.load_context("", "", {})
    (tmp_path / ".kube").mkdir()
    write_config(tmp_path / ".kube", config())
    assert kubeconfig.load_context("", "", {}).name == "x"


def test_several_files_are_merged_and_the_first_to_name_a_thing_counts(tmp_path: Path) -> None:
    first = write_config(
        tmp_path, {"current-context": "x", "users": [{"name": "u", "user": {"token": "first"}}]}, "1"
    )
    second = write_config(tmp_path, config(**{"current-context": "other"}), "2")
    environ = {"KUBECONFIG": os.pathsep.join([str(first), str(tmp_path / "none"), str(second)])}
    kubeconfig_context = kubeconfig.load_context("", "", environ)
    actual = (kubeconfig_context.name, kubeconfig_context.user["token"], kubeconfig_context.cluster["server"])
    assert actual == ("x", "first", "https://host:6443")
    assert kubeconfig_context.source == f"{first}{os.pathsep}{second}"


def test_an_environment_that_names_only_missing_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="KUBECONFIG: there is no file"):
        kubeconfig.load_context("", "", {"KUBECONFIG": str(tmp_path / "none")})


def test_relative_paths_are_meant_from_the_files_folder(tmp_path: Path) -> None:
    cluster = {"server": "https://h", "certificate-authority": "pki/ca.crt"}
    user = {
        "client-certificate": "pki/u.crt",
        "client-key": "/abs/u.key",
        "tokenFile": "token",
        "exec": {"command": "bin/plugin"},
    }
    content = config(clusters=[{"name": "c", "cluster": cluster}], users=[{"name": "u", "user": user}])
    kubeconfig_context = load_context(write_config(tmp_path, content))
    assert kubeconfig_context.cluster["certificate-authority"] == str(tmp_path / "pki/ca.crt")
    assert kubeconfig_context.user["client-certificate"] == str(tmp_path / "pki/u.crt")
    assert kubeconfig_context.user["client-key"] == "/abs/u.key"
    assert kubeconfig_context.user["tokenFile"] == str(tmp_path / "token")
    assert kubeconfig_context.user["exec"]["command"] == str(tmp_path / "bin/plugin")


def test_a_plugin_without_a_slash_is_looked_for_on_the_path(tmp_path: Path) -> None:
    content = config(users=[{"name": "u", "user": {"exec": {"command": "aws"}}}])
    assert load_context(write_config(tmp_path, content)).user["exec"]["command"] == "aws"


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("system\n")
    return tmp_path


def test_pod_uses_its_service_account_and_environment(account: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    kubeconfig_context = kubeconfig.context_from_file_or_pod("", "", environ, account)
    expected = {"server": "https://10.0.0.1:443", "certificate-authority": str(account / "ca.crt")}
    assert kubeconfig_context.cluster == expected
    assert kubeconfig_context.user == {"tokenFile": str(account / "token")}
    assert kubeconfig_context.context["namespace"] == "system"


def test_an_ipv6_address_stands_in_brackets(account: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert kubeconfig.in_cluster_context(environ, account).cluster["server"] == "https://[fd00::1]:443"


def test_a_file_that_is_named_wins_over_the_pods(account: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    path = write_config(account, config())
    assert kubeconfig.context_from_file_or_pod(str(path), "", environ, account).source == str(path)
    actual = kubeconfig.context_from_file_or_pod("", "", environ | {"KUBECONFIG": str(path)}, account).name
    assert actual == "in-cluster"


@pytest.mark.parametrize("environ", [{}, {"KUBERNETES_SERVICE_HOST": "h"}])
def test_outside_a_pod_kubectls_file_is_taken(environ: dict[str, str], tmp_path: Path) -> None:
    path = write_config(tmp_path, config())
    kubeconfig_context = kubeconfig.context_from_file_or_pod(
        "", "", environ | {"KUBECONFIG": str(path)}, tmp_path / "no account"
    )
    assert kubeconfig_context.source == str(path)
