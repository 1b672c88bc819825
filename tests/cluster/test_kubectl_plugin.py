"""The kubectl plugin, installed by krew."""

import os
import subprocess
from pathlib import Path

import pytest
from tools import kubectl_plugin
from tools.image import layers

import nodewise
from tests.cluster import program_cache

pytestmark = pytest.mark.cluster

URL = "https://example.org/team/nodewise"


def run(*command: str | Path, **variables: str | Path) -> str:
    environment = {"PATH": "/usr/bin:/bin", **{name: str(value) for name, value in variables.items()}}
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def install(archive: Path, folder: Path) -> Path:
    """krew's folder of programs after it has checked the manifest and installed the plugin."""
    krew = program_cache.krew_folder()
    manifest = folder / kubectl_plugin.TEMPLATE.name
    manifest.write_text(kubectl_plugin.manifest([archive], URL))
    run(krew / "validate-krew-manifest", "-manifest", manifest, "-skip-install", HOME=folder)
    root = folder / "krew"
    output = run(
        krew / "krew", "install", "--manifest", manifest, "--archive", archive, KREW_ROOT=root, HOME=folder
    )
    (caveat,) = (line.strip(" |") for line in output.splitlines() if "ln -s" in line)
    run("/bin/sh", "-c", caveat, KREW_ROOT=root)
    return root / "bin"


def test_krew_installs_an_archive_by_the_manifest(tmp_path: Path) -> None:
    content = tmp_path / "content"
    (content / "program").mkdir(parents=True)
    (content / "LICENSE").write_text("a license")
    script = content / "kubectl-nodewise"
    script.write_text('#!/bin/sh\necho "${0##*/}: $*"\n')
    script.chmod(0o755)
    archive = tmp_path / f"kubectl-nodewise-{nodewise.__version__}-linux-amd64.tar.gz"
    layers.make("", content, archive, 0)
    programs = install(archive, tmp_path)
    kubectl = program_cache.folder() / "kubectl"
    path = f"{programs}:/usr/bin:/bin"
    assert run(kubectl, "nodewise", "explain", "web", PATH=path) == "kubectl-nodewise: explain web\n"
    completions = run(kubectl, "__complete", "nodewise", "expl", PATH=path)
    assert completions.startswith("kubectl_complete-nodewise: expl\n")


@pytest.mark.long
def test_the_installed_plugin_needs_neither_python_nor_libraries(tmp_path: Path) -> None:
    archive = kubectl_plugin.build(tmp_path)
    assert archive.stat().st_size < kubectl_plugin.LARGEST_BYTES
    kubectl_plugin.check(archive)
    programs = install(archive, tmp_path)
    kubectl = program_cache.folder() / "kubectl"
    path = f"{programs}:/usr/bin:/bin"
    assert run(kubectl, "nodewise", "--version", PATH=path) == f"nodewise {nodewise.__version__}\n"
    assert "explain\tExplain why" in run(kubectl, "__complete", "nodewise", "expl", PATH=path)
    program = Path(os.path.realpath(programs / "kubectl-nodewise")).with_name("program")
    assert not list(program.glob("lib/libreadline*")), "of another license"
    assert (program.with_name("licenses") / "scipy").is_dir()
    (loader,) = program.glob("lib/ld-linux*")
    for library in [program / "nodewise", *program.rglob("*.so*")]:
        if library == loader:
            continue
        listed = run(loader, "--library-path", program / "lib", "--list", library)
        outside = [line for line in listed.splitlines() if "=> /" in line and str(program) not in line]
        assert outside == [], library
