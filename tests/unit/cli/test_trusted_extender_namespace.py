"""The extender's own namespace, whose policies are trusted without a label."""

import pytest

from nodewise import agents
from nodewise.cli import server_components
from nodewise.cli.server_components import ServerConfig
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.policies.options import TelemetryOptions

KINDS = [agents.load("telemetry"), agents.load("gpu")]


@pytest.mark.parametrize(
    ("flag", "connected", "own"),
    [
        ("", "nodewise", "nodewise"),
        ("", "default", ""),
        ("default", "default", "default"),
        ("nodewise", "default", "nodewise"),
        ("", "", ""),
    ],
)
def test_the_fallback_namespace_is_not_trusted(flag: str, connected: str, own: str) -> None:
    options = {kind.name: kind.options() for kind in KINDS}
    placed = server_components.set_namespace_of_agents(
        ServerConfig({KubeOptions: KubeOptions(namespace=flag)}, KINDS, options), connected
    )
    assert placed.agent_options == options | {"telemetry": TelemetryOptions(own_namespace=own)}
