"""Layers: a folder as a tar archive whose bytes depend on nothing but names, contents and what may be executed."""

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

_MODES: Final = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}
_LEVEL: Final = 9
_CHUNK_BYTES: Final = 1 << 20


class Layer(NamedTuple):
    """A layer as a file."""

    title: str
    file: Path
    digest: str
    """Of the compressed bytes, `sha256:…`."""
    diff_id: str
    """Of what is in them."""
    size_bytes: int


class _Counted(io.RawIOBase):
    """Passes bytes on, and has their digest and number."""

    def __init__(self, out: IO[bytes]) -> None:
        self.out, self.found, self.size_bytes = out, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        snapshot = bytes(data)  # type: ignore[call-overload]
        self.found.update(snapshot)
        self.size_bytes += len(snapshot)
        self.out.write(snapshot)
        return len(snapshot)

    @property
    def digest(self) -> str:
        return f"sha256:{self.found.hexdigest()}"


def make(title: str, folder: Path, file: Path, time_s: int) -> Layer:
    """Writes the folder as a layer: all of root's, all of one time, in the order of names."""
    with file.open("wb") as out:
        packed = _Counted(out)
        with gzip.GzipFile("", "wb", _LEVEL, packed, mtime=0) as zipped:
            plain = _Counted(zipped)
            _write(folder, plain, time_s)
    return Layer(title, file, packed.digest, plain.digest, packed.size_bytes)


def diff_id(folder: Path, time_s: int) -> str:
    """The `diff_id` that the folder has as a layer."""
    with Path(os.devnull).open("wb") as out:
        plain = _Counted(out)
        _write(folder, plain, time_s)
    return plain.digest


def set_modes(folder: Path) -> None:
    """Gives a folder on the disk the modes that it has as a layer."""
    for path in _walked(folder):
        if not path.is_symlink():
            path.chmod(_entry(path, path.relative_to(folder).as_posix(), 0).mode)


def _write(folder: Path, out: _Counted, time_s: int) -> None:
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK_BYTES) as archive:
        for path in _walked(folder):
            entry = _entry(path, path.relative_to(folder).as_posix(), time_s)
            if entry.isreg():
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)


def _walked(folder: Path) -> Iterator[Path]:
    """Folders before what is in them; links are not followed."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walked(path)


def _entry(path: Path, name: str, time_s: int) -> tarfile.TarInfo:
    """Whatever the umask and the user were: anybody may read, and no bit gives another user's rights."""
    entry = tarfile.TarInfo(name)
    entry.mtime = time_s
    if path.is_symlink():
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
    elif path.is_dir():
        entry.type, entry.mode = tarfile.DIRTYPE, _MODES.get(name, 0o755)
    else:
        status = path.stat()
        entry.size, entry.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
    return entry
