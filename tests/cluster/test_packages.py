"""The wheels and the source distributions of nodewise's distributions in an empty environment."""

import subprocess
import sys
from pathlib import Path

import pytest

import nodewise
from nodewise.install import platform_manifests

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    for distribution in (ROOT, *sorted(ROOT.glob("packages/*"))):
        _run(sys.executable, "-m", "hatchling", "build", "--directory", folder, folder=distribution)
    return folder


def _run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _error(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.mark.parametrize("suffix", ["whl", "tar.gz"])
def test_it_installs_into_an_empty_environment_and_decides(
    packages: Path, tmp_path: Path, suffix: str
) -> None:
    (package,) = packages.glob(f"nodewise-*.{suffix}")
    uv = Path(sys.executable).with_name("uv")
    environment = tmp_path / "environment"
    python = environment / "bin/python"
    _run(uv, "venv", "--quiet", "--python", sys.executable, environment, folder=tmp_path)
    _run(uv, "pip", "install", "--quiet", "--python", python, package, folder=tmp_path)
    _run(uv, "pip", "check", "--python", python, folder=tmp_path)
    program = environment / "bin/nodewise"
    native = _run(program, "configure", "--mode=native", "--kubernetes-version=1.36", folder=tmp_path)
    assert "kind: MutatingAdmissionPolicy" in native
    parts = _run(program, "configure", "manifests", *platform_manifests.PARTS, folder=tmp_path)
    assert "nodewise-extender-pods" in parts
    assert _run(program, "--version", folder=tmp_path) == f"nodewise {nodewise.__version__}\n"
    (example,) = environment.glob("lib/python*/site-packages/nodewise/examples/health-metric")
    assert "rack1-a" in _run(program, "decide", example, folder=tmp_path)
    assert "TASPolicy" in _run(program, "policy", "lint", "--help", folder=tmp_path)
    assert "pip install 'nodewise[cpu]'" in _error(program, "cpu", "topology")
    assert "pip install 'nodewise[scorers]'" in _error(program, "annotate", "--once")
    assert "pip install 'nodewise[scorers]'" in _error(program, "decide", example, "--agents=telemetry,safe")

    plugins = [path for name in ("cpu", "scorers") for path in packages.glob(f"nodewise_{name}-*.{suffix}")]
    _run(uv, "pip", "install", "--quiet", "--python", python, *plugins, folder=tmp_path)
    _run(uv, "pip", "check", "--python", python, folder=tmp_path)
    assert "SOCKET" in _run(program, "cpu", "topology", folder=tmp_path)
    assert "isolate" in _run(environment / "bin/cmk", "--help", folder=tmp_path)
    assert "nodewise annotate" in _run(program, "annotate", "--help", folder=tmp_path)
    assert "rack1-a" in _run(program, "decide", example, "--agents=telemetry,congestion", folder=tmp_path)


def test_the_demo_runs_from_the_wheel(packages: Path, tmp_path: Path) -> None:
    (wheel,) = packages.glob("nodewise-*.whl")
    uv = Path(sys.executable).with_name("uv")
    run = [uv, "tool", "run", "--quiet", "--python", sys.executable, "--from", wheel, "nodewise", "demo"]
    assert "demo" in _run(*run, folder=tmp_path)
