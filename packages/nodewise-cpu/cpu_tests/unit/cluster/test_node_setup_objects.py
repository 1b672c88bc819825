"""The generated pods: values that a shell would interpret are never part of a command."""

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nodewise.base.errors import BadSettings
from nodewise_cpu import cli
from nodewise_cpu.cli import cmk_flags
from nodewise_cpu.cluster import api_server, node_setup_objects, object_writer
from nodewise_cpu.cluster.node_setup_objects import SetupOptions
from nodewise_cpu.cluster.object_writer import PodWatch
from nodewise_cpu.pool_planning import PoolOptions
from nodewise_cpu.workload import isolate

NEWEST = api_server.TABLE[-1]
PLAIN = re.compile(r"[A-Za-z0-9 _./:=,-]*", re.ASCII)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["packed", "cmk-namespace", "/opt/bin", "3,5-7", "a;b", "$(id)", "`id`", "a b", "-1", "x\n"]
    ),
)


@given(modes=st.tuples(TEXTS, TEXTS), cores=TEXTS, namespace=TEXTS, folder=TEXTS, node=TEXTS)
def test_commands_are_plain_words_or_the_options_are_refused(
    modes: tuple[str, str], cores: str, namespace: str, folder: str, node: str
) -> None:
    options = SetupOptions(PoolOptions(4, 1, *modes, cores), namespace=namespace, install_dir=folder)
    try:
        node_setup_objects.check(options)
        node_setup_objects.check_node_name(node)
    except BadSettings:
        return
    made = [
        node_setup_objects.preparation_pod(node_setup_objects.ONCE, node, options, NEWEST),
        node_setup_objects.reconfiguration_pod(node, options),
    ]
    made.append(
        node_setup_objects.daemon_set(node_setup_objects.ALWAYS, node, options, NEWEST)["spec"]["template"]
    )
    for pod in made:
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            [line] = container["args"]
            assert PLAIN.fullmatch(line), line
            assert shlex.split(line) == line.split(" ")


@pytest.mark.parametrize("option", ["cmk-img", "pull-secret", "saname", "namespace", "install-dir"])
def test_a_value_that_cannot_be_is_named_with_its_option(option: str) -> None:
    fields = {"cmk-img": "image", "pull-secret": "pull_secret", "saname": "service_account"}
    field = fields.get(option, option.replace("-", "_"))
    values: dict[str, Any] = {field: "a; reboot"}
    with pytest.raises(BadSettings, match=f"--{option}: 'a; reboot'"):
        node_setup_objects.check(SetupOptions(**values))


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(BadSettings) as caught:
        node_setup_objects.check(
            SetupOptions(PoolOptions(exclusive_mode="a b"), namespace="A", pull_policy="Sometimes")
        )
    expected = ["--namespace", "--exclusive-mode", "--cmk-img-pol"]
    assert [problem.field for problem in caught.value.problems] == expected


def test_the_order_of_commands_is_not_that_of_their_list() -> None:
    made = node_setup_objects.preparation_pod(("init", "discover", "install"), "n", SetupOptions(), NEWEST)
    assert made["metadata"]["name"] == "cmk-init-discover-install-pod-n"
    assert [container["name"] for container in made["spec"]["initContainers"]] == ["init", "install"]
    assert [container["name"] for container in made["spec"]["containers"]] == ["discover"]


@given(st.text("abc-.", min_size=1, max_size=300))
def test_labels_are_short_enough_and_differ(name: str) -> None:
    assert len(node_setup_objects.label(name)) <= 63
    assert node_setup_objects.label(name) != node_setup_objects.label(name + "x")


def pod(restarts: int, *, is_ready: bool, uid: str = "u1") -> dict[str, Any]:
    container = {"name": "main", "ready": is_ready, "restartCount": restarts}
    state = {"running": {}} if is_ready else {"waiting": {"reason": "CrashLoopBackOff"}}
    return {
        "metadata": {"name": "p", "uid": uid, "annotations": {node_setup_objects.MADE_FROM: "wanted"}},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Running", "containerStatuses": [container | {"state": state}]},
    }


def test_a_restarted_pod_has_to_run_steadily_again() -> None:
    watched = PodWatch()
    assert not watched.steady([pod(0, is_ready=True)], "wanted", 0).is_done
    assert not watched.steady([pod(1, is_ready=False)], "wanted", 2).is_done
    assert not watched.steady([pod(1, is_ready=True)], "wanted", 4).is_done
    assert watched.steady([pod(1, is_ready=True)], "wanted", 4 + object_writer.SETTLED_S).is_done


def test_a_pod_of_an_older_template_does_not_count() -> None:
    old = pod(0, is_ready=True)
    old["metadata"]["annotations"] = {node_setup_objects.MADE_FROM: "former"}
    watched = PodWatch()
    assert [watched.steady([old], "wanted", now).is_done for now in (0, 10)] == [False, False]


@pytest.mark.parametrize("name", node_setup_objects.ALLOWED)
def test_the_commands_of_containers_are_valid(name: str) -> None:
    options = SetupOptions(PoolOptions(2, 1, "packed", "spread", "3,5-7"), namespace="cmk-ns", taint=False)
    if name in node_setup_objects.ONCE:
        [container] = node_setup_objects.preparation_pod([name], "n1", options, NEWEST)["spec"]["containers"]
    else:
        made = node_setup_objects.daemon_set([name], "n1", options, NEWEST)
        [container] = made["spec"]["template"]["spec"]["containers"]
    program, *words = shlex.split(container["args"][0])
    if words[0] == "isolate":
        parsed = isolate.parse_isolate_arguments(words[1:])
        assert (parsed.command[0], parsed.pool, parsed.namespace) == (program, "infra", "cmk-ns")
        words = list(parsed.command[1:])
    parse_command_line(words)


@pytest.mark.parametrize("checks", [False, True])
def test_the_commands_of_reconfiguration_pods_are_valid(checks: bool) -> None:
    made = node_setup_objects.reconfiguration_pod("n1", SetupOptions(), checks=checks)
    _, *words = shlex.split(made["spec"]["containers"][0]["args"][0])
    parameters = parse_command_line(words)
    expected = (checks, "n1", 4)
    assert (parameters["check"], parameters["node_name"], parameters["num_exclusive_cores"]) == expected


def parse_command_line(words: list[str]) -> dict[str, Any]:
    """The options with which the script `cmk` runs the command; raises usage errors."""
    name, *options = cmk_flags.translate_command_line(words)
    command = cli.command.get_command(click.Context(cli.command), name)
    assert command is not None
    return command.make_context(name, options).params


def test_the_container_that_installs_is_root_whoever_the_images_user_is() -> None:
    [container] = node_setup_objects.preparation_pod(["install"], "n1", SetupOptions(), NEWEST)["spec"][
        "containers"
    ]
    assert container["securityContext"]["runAsUser"] == 0


MANIFEST = Path(__file__).parents[5] / node_setup_objects.MANIFEST

OPTIONS = SetupOptions(namespace=node_setup_objects.MANIFEST_NAMESPACE)


def shipped() -> Any:
    [daemon_set] = [
        manifest
        for manifest in yaml.load_all(MANIFEST.read_text(), yaml.CSafeLoader)
        if manifest["kind"] == "DaemonSet"
    ]
    return daemon_set


def test_the_daemon_set_equals_the_shipped_one() -> None:
    assert node_setup_objects.agent_daemon_set(OPTIONS, NEWEST) == shipped()


def test_service_account_equals_manifest() -> None:
    accounts = [
        (manifest["metadata"]["name"], manifest["metadata"]["namespace"])
        for manifest in yaml.load_all(MANIFEST.read_text(), yaml.CSafeLoader)
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


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("metadata", {"labels": {"app.kubernetes.io/managed-by": "Helm"}}),
        ("spec", {"selector": {"matchLabels": {"app": "another"}}}),
    ],
    ids=["chart", "selector"],
)
def test_daemon_set_of_the_chart_or_with_another_selector_is_customized(
    part: str, value: dict[str, Any]
) -> None:
    other = shipped()
    other[part] |= value
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
