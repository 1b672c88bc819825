"""`nodewise cpu install`: installs the program for containers on the host."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from nodewise.base.errors import BadSettings, Problem
from nodewise_cpu import cmk_names
from nodewise_cpu.cli import COMMANDS, common_options
from nodewise_cpu.cli.common_options import ProcessOptions
from nodewise_cpu.install import bundle, installation

_READY: Final = Path(sys.prefix) / "share" / "nodewise" / installation.PROGRAM
"""The path of the bundle in images."""
_ELSEWHERE: Final = frozenset({"agent", "cluster-init", "webhook"})
"""Commands that run from nodewise's image only; their libraries would double the program's size."""
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.command(params=common_options.click_parameters("proc_fs"))
@click.option(
    "--install-dir",
    type=_FOLDER,
    default=cmk_names.DEFAULT_INSTALL_DIR,
    show_default=True,
    help="The host's folder, as mounted here.",
)
@click.option(
    "--mount-path",
    type=_FOLDER,
    default=cmk_names.DEFAULT_INSTALL_DIR,
    show_default=True,
    help="The path of that folder in containers. The program starts only there.",
)
@click.option(
    "--from",
    "ready",
    type=_FOLDER,
    metavar="DIR",
    help="A bundle. Default: the image's, else one is built.",
)
@click.option(
    "--build",
    "build_only",
    type=_FOLDER,
    metavar="DIR",
    help="Only build a bundle there, for an image; needs nodewise[install].",
)
def command(
    install_dir: Path, mount_path: Path, ready: Path | None, build_only: Path | None, proc_fs: str
) -> None:
    """Install `cmk` on the host: a program that containers of any image can run.

    The command is idempotent. Running processes keep their version, new ones get the new version at once, and unused
    versions are removed. Processes are looked for if --proc-fs, or /proc outside of containers, shows those of the
    host; otherwise older versions are kept.

    \b
    Examples:
      nodewise cpu install
      nodewise cpu install --build /usr/share/nodewise/cmk
      nodewise cpu install --install-dir /host/opt/bin \\
        --from /usr/share/nodewise/cmk

    \b
    Exit codes:
      0  installed
      1  it cannot be built, or not be written
      2  the command line or a setting is invalid
    """  # fmt: skip
    common_options.start_cmk_logging()
    if build_only is not None:
        click.echo(f"{bundle.build(build_only, bundled_modules())}: ready to be installed")
        return
    if not mount_path.is_absolute():
        raise BadSettings("cannot install", [Problem("--mount-path", str(mount_path), "an absolute path")])
    with _find_or_build_bundle(ready or _existing_bundle()) as folder:
        done = installation.install(folder, install_dir, mount_path, _host_proc_path(proc_fs))
    click.echo(f"{done.program}: {'installed' if done.changed else 'already there'} ({done.version})")
    for version in done.removed:
        click.echo(f"{install_dir / version}: removed, no process uses it")
    for version in done.kept:
        click.echo(f"{install_dir / version}: kept, a process may still use it")


@contextmanager
def _find_or_build_bundle(folder: Path | None) -> Iterator[Path]:
    """The existing bundle, or one that is built now, for which containers need a writable folder."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="nodewise-install-") as temporary:
        yield bundle.build(Path(temporary) / installation.PROGRAM, bundled_modules())


def bundled_modules() -> list[str]:
    """The modules that the program imports by name."""
    return [module for name, (module, _) in COMMANDS.items() if name not in _ELSEWHERE]


def _existing_bundle() -> Path | None:
    """The existing bundle: the image's, or the one that this program runs from, unless it is the kubectl plugin."""
    own = Path(sys.executable).resolve().parent
    is_bundle = getattr(sys, "frozen", False) and (own / installation.PROGRAM).is_file()
    return own if is_bundle else _READY if _READY.is_dir() else None


def _host_proc_path(proc_fs: str) -> Path | None:
    try:
        return common_options.host_proc_path(ProcessOptions(proc_fs=proc_fs))
    except BadSettings:
        return None
