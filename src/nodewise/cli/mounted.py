"""`nodewise configure` in a container: whether the folders that it is to write to are the host's."""

import os
from pathlib import Path
from typing import Any, Final

import click

from nodewise.configure import mounts
from nodewise.errors import BadInput

_IN_IMAGE: Final = "NODEWISE_IMAGE"
"""The image of nodewise sets this variable."""
_NONE: Final = "/dev/null"
_MOUNTS: Final = Path("/proc/self/mountinfo")


def check(given: dict[str, Any]) -> None:
    """BadInput, in a container of our image, for folders that are gone with it: the scheduler would not start."""
    if not os.environ.get(_IN_IMAGE):
        return
    found = mounts.read(_MOUNTS.read_bytes().decode("utf-8", "surrogateescape"))
    folders = {flag: os.path.realpath(folder) for flag, folder in _folders(given).items()}
    if problems := mounts.lost(folders, found):
        raise BadInput("file check error", problems)
    for mount in mounts.elsewhere(folders.values(), found):
        text = f"{mount.point} is {mount.root} of its file system; the host has to have it as {mount.point}"
        click.echo(f"warning: {text}", err=True)


def _folders(given: dict[str, Any]) -> dict[str, str]:
    """What is written to, by flag."""
    found = {"-m": os.path.dirname(os.path.abspath(given["manifest"])), "-d": given["config_dir"]}
    if not given["no_backup"] and given["backup_dir"] != _NONE:
        found["-b"] = given["backup_dir"]
    if given["restore"] is None and not given["uninstall"]:
        found["--cert-dir"] = given["cert_dir"]
    return {flag: folder for flag, folder in found.items() if folder}
