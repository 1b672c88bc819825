"""Folders of tests that processes of other users have to read."""

from pathlib import Path

READ_AND_ENTER = 0o055


def let_other_users_read(folder: Path) -> None:
    """Let all users list and enter this folder, and enter those above it; other permissions stay, as of `/tmp`."""
    for path in (folder, *folder.parents):
        mode = path.stat().st_mode
        if mode & READ_AND_ENTER != READ_AND_ENTER:
            path.chmod(mode | READ_AND_ENTER)
