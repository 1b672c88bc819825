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
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, NodewiseError, Problem, Refused, shown
from nodewise_cpu.kernel_file_reader import WHITE_SPACE, read_text

LONGEST_PATH: Final = 255
"""The space in bytes that `bundle.build` reserves for a path, and so the longest path."""

_HEADER_BYTES: Final = 64
_MAGIC: Final = b"\x7fELF\x02"
"""The first bytes of 64-bit files; the next byte is the byte order, 1 for little-endian."""
_ORDERS: Final = {1: "<", 2: ">"}
_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_STRINGS, _RPATH = 5, 15


class _Segment(NamedTuple):
    """A program header (Elf64_Phdr)."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    stored: int
    memory: int
    alignment: int


def relocate(program: bytes, loader: str, libraries: str) -> bytes:
    """The program with other paths. BadInput if it is not an executable with space for them."""
    for what, path, at in zip(
        ("loader", "libraries"), (loader, libraries), _path_offsets(program), strict=True
    ):
        text = path.encode()
        if len(text) > LONGEST_PATH:
            wanted = f"at most {LONGEST_PATH} bytes"
            raise BadInput(
                "cannot relocate the program", [Problem(f"path of the {what}", shown(path), wanted)]
            )
        program = program[:at] + text.ljust(LONGEST_PATH, b"\0") + program[at + LONGEST_PATH :]
    return program


def _path_offsets(program: bytes) -> tuple[int, int]:
    """The offsets of the two paths, each with space behind it."""
    order = _ORDERS.get(program[5]) if len(program) >= _HEADER_BYTES and program.startswith(_MAGIC) else None
    if order is None:
        raise _unsupported_elf_error(shown(program[:8]), "a 64-bit ELF executable")
    segments: dict[int, list[_Segment]] = {_LOAD: [], _DYNAMIC: [], _INTERPRETER: []}
    entries: dict[int, int] = {}
    try:
        for segment in _read_program_headers(program, order):
            segments.setdefault(segment.kind, []).append(segment)
        for segment in segments[_DYNAMIC]:
            entries.update(_dynamic_entries(program, order, segment))
    except struct.error as error:
        raise _unsupported_elf_error("cut off", "a whole file") from error
    if not segments[_INTERPRETER] or not {_RPATH, _STRINGS} <= entries.keys():
        raise _unsupported_elf_error(
            "no path of a loader or of libraries", "a program that `install --build` made"
        )
    loader = segments[_INTERPRETER][0].offset
    libraries = _file_offset(entries[_STRINGS] + entries[_RPATH], segments[_LOAD])
    if libraries is None or not all(_has_reserved_space(program, at) for at in (loader, libraries)):
        raise _unsupported_elf_error("no room for paths", "a program that `install --build` made")
    return loader, libraries


def _file_offset(address: int, loaded: Iterable[_Segment]) -> int | None:
    """The offset in the file of what is loaded at an address; None if no segment contains the address."""
    for segment in loaded:
        if 0 <= address - segment.address < segment.stored:
            return segment.offset + address - segment.address
    return None


def _has_reserved_space(program: bytes, at: int) -> bool:
    """Whether there is a path, padded with zeros to the reserved space."""
    path, _, rest = program[at : at + LONGEST_PATH + 1].partition(b"\0")
    return len(path) + len(rest) == LONGEST_PATH and not rest.strip(b"\0")


def _read_program_headers(program: bytes, order: str) -> Iterator[_Segment]:
    (table,) = struct.unpack_from(f"{order}Q", program, 32)
    size, count = struct.unpack_from(f"{order}HH", program, 54)
    for number in range(count):
        yield _Segment(*struct.unpack_from(f"{order}IIQQQQQQ", program, table + number * size))


def _dynamic_entries(program: bytes, order: str, segment: _Segment) -> Iterator[tuple[int, int]]:
    """Tag and value of each entry of the dynamic section."""
    for at in range(segment.offset, segment.offset + segment.stored, 16):
        tag, value = struct.unpack_from(f"{order}QQ", program, at)
        if not tag:
            return
        yield tag, value


def _unsupported_elf_error(seen: str, wanted: str) -> BadInput:
    return BadInput("cannot relocate the program", [Problem("executable", seen, wanted)])


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
    """The result of an installation."""

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
        problem = Problem(str(error.filename or into), error.strerror or str(error), "")
        raise Refused(
            "cannot install the program", [problem], remedy="what was there is untouched"
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
        problem = Problem(str(error.filename or into), error.strerror or str(error), "")
        raise Refused("cannot remove the program", [problem]) from error
    return True


def _find_loader_name(folder: Path) -> str:
    """The file name of the loader in a bundle."""
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
        _write_and_flush(program, relocate(program.read_bytes(), str(loader), str(loader.parent)), runs=True)
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


def _write_and_flush(path: Path, content: bytes, *, runs: bool) -> None:
    path.write_bytes(content)
    path.chmod(0o755 if runs else 0o644)


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
    removed = [name for name in older if _device_and_inode(into / name / PROGRAM) not in running]
    for name in removed:
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
            if _process_name(path) == PROGRAM:
                return None
        except OSError:
            continue  # the process has ended, or is a kernel thread
        else:
            inodes.add((status.st_dev, status.st_ino))
    return frozenset(inodes)


def _process_name(process: Path) -> str:
    """The kernel's name of the process, which every user may read."""
    try:
        return read_text(process / "comm").strip(WHITE_SPACE)
    except OSError:
        return ""


def _device_and_inode(path: Path) -> tuple[int, int] | None:
    """Device and inode; None if the file does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _remove_tree(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
