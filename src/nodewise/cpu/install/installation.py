"""Puts a ready folder with the program on a host, from where containers mount it.

Standard library only.

Each version is in a folder of its own, named by what is in it, and `cmk` is a link to the program of one of them,
which is swapped in one step: whoever starts it meanwhile has the old version or the new one, whole. A folder is
written under another name first, so what has the right name is complete. The program names the loader by the path
that it has in containers (`mount`).
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from nodewise import trusted_files
from nodewise.cpu.install.elf_paths import relocated
from nodewise.cpu.kernel_files import WHITE_SPACE, read_text
from nodewise.errors import BadInput, NodewiseError, Problem, Refused

PROGRAM: Final = "cmk"
LIBRARIES: Final = "lib"
"""The folder beside the program that holds Python, the libraries and the loader."""
_VERSION: Final = f".{PROGRAM}-"
_UNFINISHED: Final = ".part"
_LOCK: Final = f".{PROGRAM}.lock"
_CHUNK_BYTES: Final = 1 << 20
_SETTLING_S: Final = 0.2
"""Between the swap of the link and the look at who runs what: the kernel is then through with starting the old one."""


class InstallResult(NamedTuple):
    """What has been done."""

    program: Path
    """The link."""
    version: str
    """The name of the folder."""
    changed: bool
    removed: tuple[str, ...]
    """Versions that nobody ran any more."""
    kept: tuple[str, ...]
    """Older versions that are still run, or of which that is not known."""


def install(folder: Path, into: Path, mount: Path, proc: Path | None) -> InstallResult:
    """Installs the program of a ready folder, or changes nothing if it is what is there.

    `proc` shows the processes of the host; without it no older version is removed. BadInput if the folder is not
    ready to be installed, or if others than root can write to it or to the host's; Refused if the host's folder cannot
    be written: the old version then is as it was.
    """
    trusted_files.check_tree(folder)
    trusted_files.check_folder(into)
    loader = _loader(folder)
    version = _VERSION + _digest(folder, str(mount))
    try:
        into.mkdir(mode=0o755, parents=True, exist_ok=True)
        with _alone(into):
            for path in into.glob(f"{_VERSION}*{_UNFINISHED}"):
                _remove(path)
            changed = _placed(folder, into / version, mount / version / LIBRARIES / loader)
            changed |= _linked(into, version)
            removed, kept = _cleared(into, version, proc)
    except OSError as error:
        problem = Problem(str(error.filename or into), error.strerror or str(error), "")
        raise Refused(
            "cannot install the program", [problem], remedy="what was there is untouched"
        ) from error
    return InstallResult(into / PROGRAM, version, changed, removed, kept)


def remove(into: Path) -> bool:
    """Takes the program away, with all its versions; False if there is none. Who runs one goes on with it.

    Refused if the folder cannot be written to.
    """
    link = into / PROGRAM
    trusted_files.check_folder(into)
    try:
        if not link.is_symlink() and not link.exists() and not list(into.glob(f"{_VERSION}*")):
            return False
        with _alone(into):
            link.unlink(missing_ok=True)
            for path in into.glob(f"{_VERSION}*"):
                _remove(path)
        (into / _LOCK).unlink(missing_ok=True)
    except OSError as error:
        problem = Problem(str(error.filename or into), error.strerror or str(error), "")
        raise Refused("cannot remove the program", [problem]) from error
    return True


def _loader(folder: Path) -> str:
    """The file name of the loader in a ready folder."""
    libraries = folder / LIBRARIES
    names = sorted(path.name for path in libraries.glob("ld-linux*.so.*")) + sorted(
        path.name for path in libraries.glob("ld64.so.*")
    )
    if not (folder / PROGRAM).is_file() or len(names) != 1:
        wanted = (
            f"the program {PROGRAM}, and beside it {LIBRARIES} with one loader: what `install --build` makes"
        )
        raise BadInput("no program to install", [Problem(str(folder), "not a ready folder", wanted)])
    return names[0]


def _digest(folder: Path, mount: str) -> str:
    """Of all files with their names and whether they can be run; the paths in the program count as `mount`."""
    digest = hashlib.sha256(mount.encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()):
        name = path.relative_to(folder).as_posix()
        kind = f"-> {path.readlink()}" if path.is_symlink() else str(os.access(path, os.X_OK))
        digest.update(f"\0{name}\0{kind}\0".encode())
        if path.is_symlink():
            continue
        if name == PROGRAM:
            digest.update(relocated(path.read_bytes(), "", ""))
            continue
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()[:16]


@contextmanager
def _alone(into: Path) -> Iterator[None]:
    """Nobody else installs there meanwhile; the kernel takes the lock back from who dies."""
    lock = os.open(into / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _placed(folder: Path, target: Path, loader: Path) -> bool:
    """Whether the version had to be written; one that is damaged is put aside."""
    mount = str(loader.parent.parent.parent)
    if target.is_dir():
        if _is_whole(target, mount):
            return False
        target.rename(target.with_name(f"{target.name}-damaged-{time.time_ns()}{_UNFINISHED}"))
    unfinished = target.with_name(target.name + _UNFINISHED)
    try:
        _copied(folder, unfinished)
        program = unfinished / PROGRAM
        _write(program, relocated(program.read_bytes(), str(loader), str(loader.parent)), runs=True)
        for path in (unfinished, *(path for path in unfinished.rglob("*") if not path.is_symlink())):
            _flush(path)
        unfinished.rename(target)
        _flush(target.parent)
    except BaseException:
        _remove(unfinished)
        raise
    return True


def _is_whole(target: Path, mount: str) -> bool:
    try:
        trusted_files.check_tree(target)
        return target.name == _VERSION + _digest(target, mount)
    except (OSError, NodewiseError):
        return False


def _copied(folder: Path, target: Path) -> None:
    """Readable for everybody, whoever copies: containers run as any user."""
    target.mkdir()
    target.chmod(0o755)
    for path in sorted(folder.iterdir()):
        copy = target / path.name
        if path.is_symlink():
            copy.symlink_to(path.readlink())
        elif path.is_dir():
            _copied(path, copy)
        else:
            shutil.copyfile(path, copy)
            copy.chmod(0o755 if os.access(path, os.X_OK) else 0o644)


def _write(path: Path, content: bytes, *, runs: bool) -> None:
    path.write_bytes(content)
    path.chmod(0o755 if runs else 0o644)


def _flush(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _linked(into: Path, version: str) -> bool:
    """Whether the link had to be changed. It is relative, for the folder has another path in containers."""
    link, wanted = into / PROGRAM, f"{version}/{PROGRAM}"
    if link.is_symlink() and str(link.readlink()) == wanted:
        return False
    fresh = into / f"{_VERSION}link{_UNFINISHED}"
    fresh.symlink_to(wanted)
    try:
        fresh.replace(link)
    except OSError:
        fresh.unlink()
        raise
    _flush(into)
    return True


def _cleared(into: Path, version: str, proc: Path | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The older versions that were removed, and those that were not."""
    older = sorted(path.name for path in into.glob(f"{_VERSION}*") if path.name != version)
    if not older or proc is None:
        return (), tuple(older)
    time.sleep(_SETTLING_S)
    running = _running(proc)
    if running is None:
        return (), tuple(older)
    removed = [name for name in older if _identity(into / name / PROGRAM) not in running]
    for name in removed:
        _remove(into / name)
    return tuple(removed), tuple(name for name in older if name not in removed)


def _running(proc: Path) -> frozenset[tuple[int, int]] | None:
    """Device and inode of every program that runs: paths would be those of containers.

    None if there is one of our name whose program is not shown.
    """
    inodes: set[tuple[int, int]] = set()
    for path in proc.iterdir():
        if not path.name.isdecimal():
            continue
        try:
            status = (path / "exe").stat()
        except PermissionError:
            if _name(path) == PROGRAM:
                return None
        except OSError:
            continue  # it has ended, or is the kernel's own
        else:
            inodes.add((status.st_dev, status.st_ino))
    return frozenset(inodes)


def _name(process: Path) -> str:
    """What the kernel calls it, which everybody may read."""
    try:
        return read_text(process / "comm").strip(WHITE_SPACE)
    except OSError:
        return ""


def _identity(path: Path) -> tuple[int, int] | None:
    """None if it is not there."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
