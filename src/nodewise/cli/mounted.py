"""`nodewise configure` in a container: whether the folders that it is to write to are the host's."""

import os
from pathlib import Path
from typing import Final

import click

from nodewise.cli.configure_options import ConfigureOptions
from nodewise.configure import mounts
from nodewise.errors import BadInput

_IN_IMAGE: Final = "NODEWISE_IMAGE"
"""The image of nodewise sets this variable."""
_MOUNTS: Final = Path("/proc/self/mountinfo")


def check(options: ConfigureOptions) -> None:
    """BadInput, in a container of our image, for folders that are gone with it: the scheduler would not start."""
    if not os.environ.get(_IN_IMAGE):
        return
    found = mounts.read(_MOUNTS.read_bytes().decode("utf-8", "surrogateescape"))
    folders = {flag: os.path.realpath(folder) for flag, folder in _folders(options).items()}
    if problems := mounts.lost(folders, found):
        raise BadInput("file check error", problems)
    for mount in mounts.elsewhere(folders.values(), found):
        text = f"{mount.point} is {mount.root} of its file system; the host has to have it as {mount.point}"
        click.echo(f"warning: {text}", err=True)


def _folders(options: ConfigureOptions) -> dict[str, str]:
    """What is written to, by flag."""
    found = {"-m": os.path.dirname(os.path.abspath(options.manifest)), "-d": options.config_dir}
    if options.backup_folder:
        found["-b"] = options.backup_folder
    if options.restore is None and not options.uninstall:
        found["--cert-dir"] = options.cert_dir
    return {flag: folder for flag, folder in found.items() if folder}
