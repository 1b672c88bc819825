"""Installs the bundled program on a host, in a folder that containers mount.

Standard library only.

Each version has a folder of its own, named by the digest of its content. `cmk` is a link to the program of one version,
and is replaced atomically: a process that starts meanwhile gets the old version or the new one. A folder is written
under another name first, so a folder with the final name is complete. The program contains the path of the loader in
containers (`mount`).
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, NodewiseError, Refused, shown
from nodewise_cpu.kernel_file_reader import WHITE_SPACE, read_text

LONGEST_PATH: Final = 255
"""The longest path of the loader and of the libraries in the program, in bytes."""
_ELF: Final = b"\x7fELF\x02"  # the first bytes of 64-bit executables
_TAGS: Final = {"loader": b"<nodewise:loader>", "libraries": b"<nodewise:libraries>"}
"""The end of the space for each path, by which it is found in the program. The path ends at the first zero byte."""


def reserved_path(name: str) -> str:
    """The path of the `loader` or the `libraries` by which patchelf makes space for others."""
    return "/".ljust(LONGEST_PATH + 1, "x") + _TAGS[name].decode()


def relocate(program: bytes, loader: str, libraries: str) -> bytes:
    """The program with other paths. BadInput if it is not an executable with space for them."""
    if not program.startswith(_ELF):
        raise _unsupported_program_error("executable", shown(program[:8]), "a 64-bit ELF executable")
    for name, path in (("loader", loader), ("libraries", libraries)):
        text = path.encode()
        if len(text) > LONGEST_PATH:
            raise _unsupported_program_error(
                f"path of the {name}", shown(path), f"at most {LONGEST_PATH} bytes"
            )
        before, tag, after = program.partition(_TAGS[name])
        if not tag or tag in after or len(before) <= LONGEST_PATH:
            wanted = "a program that `install --build` made"
            raise _unsupported_program_error("executable", "no room for paths", wanted)
        program = before[: -LONGEST_PATH - 1] + text.ljust(LONGEST_PATH + 1, b"\0") + tag + after
    return program


def _unsupported_program_error(field: str, seen: str, wanted: str) -> BadInput:
    return BadInput.of("cannot relocate the program", field, seen, wanted)


PROGRAM: Final = "cmk"
LIBRARIES: Final = "lib"
"""The folder beside the program, with Python, the libraries and the loader."""
_VERSION: Final = f".{PROGRAM}-"
_UNFINISHED: Final = ".part"
_LOCK: Final = f".{PROGRAM}.lock"
_CHUNK_BYTES: Final = 1 << 20
_SETTLING_S: Final = 0.2
"""The pause between the replacement of the link and the search for processes: a start of the old version is over then.
"""


class InstallResult(NamedTuple):
    program: Path
    """The link."""
    version: str
    """The name of the folder."""
    changed: bool
    removed: tuple[str, ...]
    """Versions that were removed because no process ran them."""
    kept: tuple[str, ...]
    """Older versions that are in use, or of which that is unknown."""


def install(folder: Path, into: Path, mount: Path, proc: Path | None) -> InstallResult:
    """Install the program of a bundle; nothing changes if it is installed already.

    `proc` shows the host's processes; without it no older version is removed. BadInput if the bundle is incomplete, or
    if users other than root can write to it or to the host's folder; Refused if the host's folder cannot be written:
    then the old version is unchanged.
    """
    trusted_files.check_folder_tree_trust(folder)
    trusted_files.check_folder(into)
    loader = _find_loader_name(folder)
    version = _VERSION + _bundle_digest(folder, str(mount))
    try:
        into.mkdir(mode=0o755, parents=True, exist_ok=True)
        with _hold_installation_lock(into):
            for path in into.glob(f"{_VERSION}*{_UNFINISHED}"):
                _remove_tree(path)
            changed = _place_version(folder, into / version, mount / version / LIBRARIES / loader)
            changed |= _update_version_link(into, version)
            removed, kept = _remove_unused_versions(into, version, proc)
    except OSError as error:
        raise Refused.of(
            "cannot install the program",
            str(error.filename or into),
            error.strerror or str(error),
            remedy="what was there is untouched",
        ) from error
    return InstallResult(into / PROGRAM, version, changed, removed, kept)


def remove(into: Path) -> bool:
    """Remove the program with all its versions; False if there is none. Running processes are not affected.

    Refused if the folder cannot be written.
    """
    link = into / PROGRAM
    trusted_files.check_folder(into)
    try:
        if not link.is_symlink() and not link.exists() and not list(into.glob(f"{_VERSION}*")):
            return False
        with _hold_installation_lock(into):
            link.unlink(missing_ok=True)
            for path in into.glob(f"{_VERSION}*"):
                _remove_tree(path)
        (into / _LOCK).unlink(missing_ok=True)
    except OSError as error:
        raise Refused.of(
            "cannot remove the program", str(error.filename or into), error.strerror or str(error)
        ) from error
    return True


def _find_loader_name(folder: Path) -> str:
    loaders = (*(folder / LIBRARIES).glob("ld-linux*.so.*"), *(folder / LIBRARIES).glob("ld64.so.*"))
    names = [path.name for path in loaders]
    if not (folder / PROGRAM).is_file() or len(names) != 1:
        wanted = (
            f"the program {PROGRAM}, and beside it {LIBRARIES} with one loader: what `install --build` makes"
        )
        raise BadInput.of("no program to install", str(folder), "not a ready folder", wanted)
    return names[0]


def _bundle_digest(folder: Path, mount: str) -> str:
    """The digest of all files with their names and modes. The paths in the program count as `mount`."""
    digest = hashlib.sha256(mount.encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()):
        name = path.relative_to(folder).as_posix()
        kind = f"-> {path.readlink()}" if path.is_symlink() else str(os.access(path, os.X_OK))
        digest.update(f"\0{name}\0{kind}\0".encode())
        if path.is_symlink():
            continue
        if name == PROGRAM:
            digest.update(relocate(path.read_bytes(), "", ""))
            continue
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()[:16]


@contextmanager
def _hold_installation_lock(into: Path) -> Iterator[None]:
    """Hold the lock against concurrent installations. The kernel releases it when its owner ends."""
    lock = os.open(into / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _place_version(folder: Path, target: Path, loader: Path) -> bool:
    """Place the version. Returns whether it was written; a damaged one is put aside."""
    mount = str(loader.parent.parent.parent)
    if target.is_dir():
        if _is_version_intact(target, mount):
            return False
        target.rename(target.with_name(f"{target.name}-damaged-{time.time_ns()}{_UNFINISHED}"))
    unfinished = target.with_name(target.name + _UNFINISHED)
    try:
        _copy_bundle_files(folder, unfinished)
        program = unfinished / PROGRAM
        program.write_bytes(relocate(program.read_bytes(), str(loader), str(loader.parent)))
        for path in (unfinished, *(path for path in unfinished.rglob("*") if not path.is_symlink())):
            _fsync_path(path)
        unfinished.rename(target)
        _fsync_path(target.parent)
    except BaseException:
        _remove_tree(unfinished)
        raise
    return True


def _is_version_intact(target: Path, mount: str) -> bool:
    try:
        trusted_files.check_folder_tree_trust(target)
        return target.name == _VERSION + _bundle_digest(target, mount)
    except (OSError, NodewiseError):
        return False


def _copy_bundle_files(folder: Path, target: Path) -> None:
    """Copy the files, readable for everybody: containers run as any user."""
    target.mkdir()
    target.chmod(0o755)
    for path in sorted(folder.iterdir()):
        copy = target / path.name
        if path.is_symlink():
            copy.symlink_to(path.readlink())
        elif path.is_dir():
            _copy_bundle_files(path, copy)
        else:
            shutil.copyfile(path, copy)
            copy.chmod(0o755 if os.access(path, os.X_OK) else 0o644)


def _fsync_path(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _update_version_link(into: Path, version: str) -> bool:
    """Update the link, and return whether it changed. It is relative: containers have the folder at another path."""
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
    _fsync_path(into)
    return True


def _remove_unused_versions(
    into: Path, version: str, proc: Path | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Remove unused older versions. Returns the removed and the kept ones."""
    older = sorted(path.name for path in into.glob(f"{_VERSION}*") if path.name != version)
    if not older or proc is None:
        return (), tuple(older)
    time.sleep(_SETTLING_S)
    running = _find_running_program_inodes(proc)
    if running is None:
        return (), tuple(older)
    removed = []
    for name in older:
        program = None
        with suppress(FileNotFoundError):
            status = (into / name / PROGRAM).stat()
            program = (status.st_dev, status.st_ino)
        if program not in running:
            removed.append(name)
            _remove_tree(into / name)
    return tuple(removed), tuple(name for name in older if name not in removed)


def _find_running_program_inodes(proc: Path) -> frozenset[tuple[int, int]] | None:
    """Device and inode of every running program; paths would be those of containers.

    None if the program of a process with our name cannot be read.
    """
    inodes: set[tuple[int, int]] = set()
    for path in proc.iterdir():
        if not path.name.isdecimal():
            continue
        try:
            status = (path / "exe").stat()
        except PermissionError:
            with suppress(OSError):
                if read_text(path / "comm").strip(WHITE_SPACE) == PROGRAM:
                    return None
        except OSError:
            continue  # the process has ended, or is a kernel thread
        else:
            inodes.add((status.st_dev, status.st_ino))
    return frozenset(inodes)


def _remove_tree(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
