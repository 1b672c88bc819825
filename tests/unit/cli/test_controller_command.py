"""The settings of `nodewise controller`."""

from pathlib import Path

import pytest

from nodewise.cli import controller
from nodewise.cli.controller import ControllerKubeOptions
from nodewise.cli.options_from_settings import CommandLine
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.metrics.refresher import RefreshOptions


def parse(*arguments: str) -> CommandLine:
    return CommandLine(controller.command.make_context("controller", list(arguments)).params)


def test_more_writes_than_of_an_extender_are_allowed() -> None:
    kube = parse().settings(ControllerKubeOptions)
    assert (kube.kube_qps, kube.kube_burst) == (50.0, 200)
    assert kube.kube_qps > KubeOptions().kube_qps


def test_the_settings_file_of_an_extender_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "nodewise.yaml"
    file.write_text(
        "agents: telemetry,gpu\nport: 9001\nkube_qps: 30\nsync_period: 2s\ngpu: {placement: pack}\n"
        "telemetry: {max_age: 2m}\n"
    )
    command_line = parse(f"--config={file}")
    assert command_line.settings(ControllerKubeOptions).kube_qps == 30
    assert command_line.settings(RefreshOptions).sync_period_s == 2
    assert command_line.agent_options(controller.TELEMETRY).max_age_s == 120


@pytest.mark.parametrize(
    "flag", ["--port=9001", "--agents=gpu", "--cert=tls.crt", "--objects-from=nodes.yaml"]
)
def test_options_for_serving_and_for_other_agents_do_not_exist(flag: str) -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(flag)
