"""`nodewise configure --mode` warns about a version of Kubernetes that the tests do not run on."""

import json

import pytest
from click.testing import CliRunner

from nodewise.cli.configure import command, platform_modes

NEWER = "1.39 is newer than what was tried, 1.37"
OLDER = "1.32 is older than what was tried, 1.34"


@pytest.mark.parametrize(
    ("mode", "version", "warning"),
    [
        ("native", "v1.39.1", f"Kubernetes {NEWER}"),
        ("second-scheduler", "1.39", f"kube-scheduler {NEWER}"),
        ("second-scheduler", "1.32.7", f"kube-scheduler {OLDER}"),
        ("kubeadm", "1.39.0", f"kube-scheduler {NEWER}"),
        ("kind", "v1.32.0", f"kube-scheduler {OLDER}"),
        ("rke2", "1.39.0", f"kube-scheduler {NEWER}"),
    ],
)
def test_a_version_that_was_not_tried_is_a_warning(mode: str, version: str, warning: str) -> None:
    done = CliRunner().invoke(command, [f"--mode={mode}", f"--kubernetes-version={version}", *_address(mode)])
    assert done.exit_code == 0, done.stderr
    assert done.stderr.splitlines()[0] == f"warning: {warning}"
    assert warning not in done.stdout


@pytest.mark.parametrize("mode", ["native", "second-scheduler", "kubeadm", "k3s"])
@pytest.mark.parametrize("version", ["1.36", "v1.37.2"])
def test_a_tested_version_is_no_warning(mode: str, version: str) -> None:
    done = CliRunner().invoke(command, [f"--mode={mode}", f"--kubernetes-version={version}", *_address(mode)])
    assert done.exit_code == 0, done.stderr
    assert "warning" not in done.stderr


@pytest.mark.parametrize("mode", ["native", "second-scheduler"])
def test_the_version_that_the_cluster_states_is_compared(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def state_version() -> str:
        return "v1.39.2-gke.100"

    monkeypatch.setattr(platform_modes, "_cluster_kubernetes_version", state_version)
    done = CliRunner().invoke(command, [f"--mode={mode}", "--output=json"])
    assert done.exit_code == 0, done.stderr
    assert NEWER in done.stderr
    assert json.loads(done.stdout)["kind"] == "List"


def _address(mode: str) -> list[str]:
    """The flag that a mode without names of Services needs."""
    return ["--extender-url=https://10.96.7.7:9001"] if mode in ("k3s", "rke2") else []
