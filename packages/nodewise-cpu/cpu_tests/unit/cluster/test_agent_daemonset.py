"""The generated DaemonSet equals the shipped one, and differs from customised ones."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodewise_cpu.cluster import api_server, node_setup_objects
from nodewise_cpu.cluster.node_setup_objects import SetupOptions

MANIFEST = Path(__file__).parents[5] / node_setup_objects.MANIFEST
NEWEST = api_server.TABLE[-1]
OPTIONS = SetupOptions(namespace=node_setup_objects.MANIFEST_NAMESPACE)


def shipped() -> Any:
    [daemon_set] = [
        manifest for manifest in yaml.safe_load_all(MANIFEST.read_text()) if manifest["kind"] == "DaemonSet"
    ]
    return daemon_set


def test_the_daemon_set_equals_the_shipped_one() -> None:
    assert node_setup_objects.agent_daemon_set(OPTIONS, NEWEST) == shipped()


def test_its_account_is_what_ships() -> None:
    accounts = [
        (manifest["metadata"]["name"], manifest["metadata"]["namespace"])
        for manifest in yaml.safe_load_all(MANIFEST.read_text())
        if manifest["kind"] == "ServiceAccount"
    ]
    assert accounts == [(node_setup_objects.AGENT, node_setup_objects.MANIFEST_NAMESPACE)]


def test_options_are_applied() -> None:
    made = node_setup_objects.agent_daemon_set(
        SetupOptions(image="i:2", pull_policy="Never", pull_secret="s", namespace="n"), NEWEST
    )
    spec = made["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("i:2", "Never")
    assert (spec["imagePullSecrets"], made["metadata"]["namespace"]) == ([{"name": "s"}], "n")
    assert container["args"][0] == "--namespace=n"


def test_an_older_api_server_lets_no_such_priority_into_the_namespace() -> None:
    older = node_setup_objects.agent_daemon_set(OPTIONS, api_server.features_of_kubernetes_version((1, 12)))
    assert "priorityClassName" not in older["spec"]["template"]["spec"]


def test_servers_that_do_not_know_the_field_of_app_armor_get_its_annotation() -> None:
    def made(*version: int) -> tuple[Any, Any]:
        template = node_setup_objects.agent_daemon_set(
            OPTIONS, api_server.features_of_kubernetes_version(version)
        )["spec"]["template"]
        (container,) = template["spec"]["containers"]
        return template["metadata"].get("annotations"), container["securityContext"].get("appArmorProfile")

    key = "container.apparmor.security.beta.kubernetes.io/agent"
    assert made(1, 29) == ({key: "unconfined"}, None)
    assert made(1, 30) == (None, {"type": "Unconfined"})


def test_the_shipped_daemon_set_with_another_image_is_not_customized() -> None:
    other = node_setup_objects.agent_daemon_set(
        OPTIONS._replace(image="i:2", pull_policy="Always", pull_secret="s"), NEWEST
    )
    assert not node_setup_objects.is_changed_by_users(shipped(), other)


def test_a_daemon_set_of_the_chart_is_customized() -> None:
    other = shipped()
    other["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
    assert node_setup_objects.is_changed_by_users(other, shipped())


def test_another_selector_is_customized() -> None:
    """The selector of a DaemonSet never changes."""
    other = shipped()
    other["spec"]["selector"] = {"matchLabels": {"app": "another"}}
    assert node_setup_objects.is_changed_by_users(other, shipped())


@pytest.mark.parametrize("part", ["args", "volumeMounts"])
def test_additions_are_customized_without_our_digest(part: str) -> None:
    wanted = shipped()
    changed = copy.deepcopy(wanted)
    more: dict[str, Any] = {
        "args": "--enforce=cgroup",
        "volumeMounts": {"name": "runtime", "mountPath": "/r"},
    }
    changed["spec"]["template"]["spec"]["containers"][0][part].append(more[part])
    assert node_setup_objects.is_changed_by_users(changed, wanted)
    assert node_setup_objects.is_changed_by_users(wanted, changed)
    changed["metadata"]["annotations"] = {node_setup_objects.MADE_FROM: "former"}
    assert not node_setup_objects.is_changed_by_users(changed, wanted)
