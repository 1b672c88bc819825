"""`nodewise cpu install`: installs the program for containers on the host."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from nodewise.base.errors import BadSettings
from nodewise_cpu import bundle, cmk_names, installation
from nodewise_cpu.cli import COMMANDS, common_options
from nodewise_cpu.cli.common_options import ProcessOptions, option

_READY: Final = Path(sys.prefix) / "share" / "nodewise" / installation.PROGRAM
"""The path of the bundle in images."""
_ELSEWHERE: Final = frozenset({"agent", "cluster-init", "webhook"})
"""Commands that run from nodewise's image only; their libraries would double the program's size."""
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@dataclass(frozen=True, kw_only=True)
class InstallOptions(ProcessOptions):
    """Options of `install`."""

    install_dir: Path = option(
        "The host's folder, as mounted here.", cmk_names.DEFAULT_INSTALL_DIR, type=_FOLDER
    )
    mount_path: Path = option(
        "The path of that folder in containers. The program starts only there.",
        cmk_names.DEFAULT_INSTALL_DIR,
        type=_FOLDER,
    )
    ready: Path | None = option(
        "A bundle. Default: the image's, else one is built.",
        None,
        "--from",
        "ready",
        type=_FOLDER,
        metavar="DIR",
    )
    build_only: Path | None = option(
        "Only build a bundle there, for an image; needs nodewise[install].",
        None,
        "--build",
        "build_only",
        type=_FOLDER,
        metavar="DIR",
    )


def run(options: InstallOptions) -> None:
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
    if options.build_only is not None:
        click.echo(f"{bundle.build(options.build_only, bundled_modules())}: ready to be installed")
        return
    if not options.mount_path.is_absolute():
        raise BadSettings.of("cannot install", "--mount-path", str(options.mount_path), "an absolute path")
    try:
        proc = common_options.host_proc_path(options)
    except BadSettings:
        proc = None
    with _find_or_build_bundle(options.ready or _existing_bundle()) as folder:
        done = installation.install(folder, options.install_dir, options.mount_path, proc)
    click.echo(f"{done.program}: {'installed' if done.changed else 'already there'} ({done.version})")
    for version in done.removed:
        click.echo(f"{options.install_dir / version}: removed, no process uses it")
    for version in done.kept:
        click.echo(f"{options.install_dir / version}: kept, a process may still use it")


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
    paths = [path for name, (path, _) in COMMANDS.items() if name not in _ELSEWHERE]
    return list(dict.fromkeys(path.partition(":")[0] for path in paths))


def _existing_bundle() -> Path | None:
    """The existing bundle: the image's, or the one that this program runs from, unless it is the kubectl plugin."""
    own = Path(sys.executable).resolve().parent
    is_bundle = getattr(sys, "frozen", False) and (own / installation.PROGRAM).is_file()
    return own if is_bundle else _READY if _READY.is_dir() else None


command = common_options.create_click_command("install", run, InstallOptions)
