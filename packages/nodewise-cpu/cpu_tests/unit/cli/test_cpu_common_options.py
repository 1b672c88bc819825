"""Options of the CPU manager's commands: the node, the host's processes and the timeout of locks."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import click
import pytest
from tests import forked_commands

from nodewise.base.errors import BadSettings
from nodewise.cli import options_from_settings
from nodewise.kube.resource_kinds import PODS
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise.server.options import AdminOptions
from nodewise_cpu import cli
from nodewise_cpu.cli import COMMANDS, common_options
from nodewise_cpu.cli.common_options import NodeOptions, ProcessOptions
from nodewise_cpu.cluster.blocking_client import BlockingClient
from nodewise_cpu.node import other_cpu_managers

INSIDE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "web-1"}
UNNAMED = NodeOptions(kubeconfig="", namespace="default", node_name="")


@pytest.fixture
def api_client() -> Iterator[BlockingClient]:
    """Two pods with the same name in two namespaces, and one without a node."""
    fake = FakeApi()
    for namespace, node in (("ours", "node-1"), ("theirs", "node-2")):
        fake.put(PODS, {"metadata": {"name": "web-1", "namespace": namespace}, "spec": {"nodeName": node}})
    fake.put(PODS, {"metadata": {"name": "waiting", "namespace": "ours"}, "spec": {}})
    with BlockingClient(fake) as opened:
        yield opened


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "namespace").write_text("ours\n")
    return tmp_path


class TestNode:
    def test_is_the_configured_one(self, api_client: BlockingClient, account: Path) -> None:
        assert (
            common_options.resolve_node_name(replace(UNNAMED, node_name="named"), api_client, INSIDE, account)
            == "named"
        )

    def test_is_the_node_of_this_pod_in_its_namespace(
        self, api_client: BlockingClient, account: Path
    ) -> None:
        assert common_options.resolve_node_name(UNNAMED, api_client, INSIDE, account) == "node-1"

    @pytest.mark.parametrize(
        ("environ", "words"),
        [
            ({}, "this is no pod"),
            (INSIDE | {"HOSTNAME": "node-1"}, "pod node-1"),
            (INSIDE | {"HOSTNAME": "waiting"}, "on no node"),
        ],
    )
    def test_is_never_guessed(
        self, environ: Mapping[str, str], words: str, api_client: BlockingClient, account: Path
    ) -> None:
        with pytest.raises(BadSettings, match=rf"{words}.*--node-name"):
            common_options.resolve_node_name(UNNAMED, api_client, environ, account)

    def test_is_not_known_without_a_service_account(self, api_client: BlockingClient, tmp_path: Path) -> None:
        with pytest.raises(BadSettings, match=r"fieldPath: spec\.nodeName"):
            common_options.resolve_node_name(UNNAMED, api_client, INSIDE, tmp_path)


class TestPatience:
    def test_has_the_default_of_cmk(self) -> None:
        assert common_options.lock_timeout_from_environment({}) == 30
        assert common_options.lock_timeout_from_environment({"CMK_LOCK_TIMEOUT": "0.5"}) == 0.5

    @pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan", ""])
    def test_is_a_number_of_seconds(self, text: str) -> None:
        with pytest.raises(BadSettings, match="CMK_LOCK_TIMEOUT"):
            common_options.lock_timeout_from_environment({"CMK_LOCK_TIMEOUT": text})


def test_a_mount_that_was_named_is_the_hosts() -> None:
    assert common_options.host_proc_path(ProcessOptions(proc_fs="/host/proc")) == Path("/host/proc")


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"isolate", "reaffinitize"}))
def test_a_command_has_a_typed_field_for_each_parameter(name: str) -> None:
    """Commands of click's decorators have their parameters in their signature."""
    command = cli.command.get_command(click.Context(cli.command), name)
    assert command is not None
    assert command.callback is not None
    exposed = {parameter.name for parameter in command.params if parameter.expose_value}
    called = inspect.getclosurevars(command.callback).nonlocals.get("options")
    if called is None:
        return
    names = {field.name for field in dataclasses.fields(called)}
    admin = {
        parameter.name for parameter in options_from_settings.click_parameters(AdminOptions, has_file=False)
    }
    assert exposed == (names - {"admin"}) | (admin if "admin" in names else set())


def start(folder: Path, *options: str) -> tuple[int, str]:
    """The exit code and stderr of an agent that cannot start."""
    store = f"--conf-dir={folder / 'state'}"
    pools = ("--num-exclusive-cores=0", "--num-shared-cores=0")
    forked_commands.run([forked_commands.NODEWISE, "cpu", "init", store, *pools])
    done = forked_commands.run(
        [forked_commands.NODEWISE, "cpu", "agent", store, f"--socket={folder / 'socket'}", *options]
    )
    return done.returncode, done.stderr


def test_partitions_need_enforcement(tmp_path: Path) -> None:
    code, stderr = start(tmp_path, "--isolate=partition")
    assert (code, "--isolate: partition; expected --enforce cgroup" in stderr) == (2, True)


def test_host_is_the_root_of_the_first_process_or_the_copy_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "proc/1/root").mkdir(parents=True)
    assert other_cpu_managers.host_root(Path("/"), tmp_path / "proc") == tmp_path / "proc/1/root"
    assert other_cpu_managers.host_root(Path("/"), tmp_path / "none") == Path("/")
    assert other_cpu_managers.host_root(tmp_path, tmp_path / "proc") == tmp_path
