"""Builds another commit of this repository in a worktree of its own."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.progress_lines import report_progress_line

ROOT: Final = Path(__file__).parents[1]
_TARGETS: Final = (".venv/.run", "venv")
"""Targets of the Makefile that install the program, the cheapest first."""
_PROGRAM: Final = ".venv/bin/nodewise"


class BuildError(Exception):
    """A commit cannot be built."""


def describe(folder: Path) -> str:
    """The commit of a worktree and its subject, with a note if tracked files are changed."""
    changed = " with changes" if _git("status", "--porcelain", "--untracked-files=no", folder=folder) else ""
    return _git("log", "-1", "--format=%h %s", folder=folder) + changed


@contextlib.contextmanager
def built(commit: str, kept: Path | None) -> Iterator[Path]:
    """Build a commit and yield the folder of its worktree, which is removed after the block.

    `kept` is a folder that stays, and is used again if it contains that commit. BuildError if the build fails.
    """
    commit = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if kept:
        if not kept.exists():
            _git("worktree", "add", "--detach", "--force", str(kept.absolute()), commit)
        elif (existing := _git("rev-parse", "HEAD", folder=kept)) != commit:
            raise BuildError(f"{kept} contains commit {existing}, expected {commit}")
        _build(kept.absolute())
        yield kept.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as name:
        folder = Path(name, "before")
        _git("worktree", "add", "--detach", str(folder), commit)
        try:
            _build(folder)
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))


def program(folder: Path) -> Path:
    """The installed command of a worktree, with compiled modules. BuildError if it is missing.

    Without compiled modules, the first process would take longer and more memory.
    """
    command = folder / _PROGRAM
    if not command.exists():
        raise BuildError(f"{folder} has no {_PROGRAM}")
    compile_all = [command.with_name("python"), "-m", "compileall", "-q", "-x", r"/\.venv|/build/|/tests/"]
    subprocess.run([*compile_all, folder], stdout=sys.stderr, check=False)
    return command


def _build(folder: Path) -> None:
    report_progress_line(f"building {describe(folder)} in {folder}")
    ignored = ("PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in ignored}
    make = ["make", "--no-print-directory", "-C", str(folder), f"PYTHON={_base_python()}"]
    target = next((target for target in _TARGETS if _has_target(make, target, environment)), _TARGETS[-1])
    if subprocess.run([*make, target], stdout=sys.stderr, env=environment, check=False).returncode:
        raise BuildError(f"make {target} failed in {folder}")


def _has_target(make: list[str], target: str, environment: dict[str, str]) -> bool:
    dry_run = subprocess.run([*make, "-n", target], capture_output=True, env=environment, check=False)
    return dry_run.returncode == 0


def _base_python() -> Path:
    """The interpreter of this virtual environment, so that both states run on the same one."""
    return Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")


def _git(*words: str, folder: Path | None = None) -> str:
    ended = subprocess.run(["git", *words], cwd=folder or ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BuildError(f"git {' '.join(words)}: {ended.stderr.strip() or 'no such commit'}")
    return ended.stdout.strip()
