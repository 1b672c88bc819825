"""A container image with only busybox, as a file for `ctr images import`."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

NAME = "nodewise.test/busybox:1"
SLEEP = ["/bin/busybox", "sleep", "1000000000"]
"""The default command, so that the image can be the pod's sandbox image as well."""

PAUSE = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000000000 & wait; done"]
"""The same, but it ends at SIGTERM."""

NONE: Final[Mapping[str, str]] = {}

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def write(
    file: Path,
    busybox: Path,
    name: str = NAME,
    scripts: Mapping[str, str] = NONE,
    command: Sequence[str] = SLEEP,
) -> None:
    """Write the image. `busybox` is a static executable; `scripts` are shell programs by path."""
    _write(file, name, _layer(busybox.read_bytes(), scripts), {"Cmd": list(command), "Env": ["PATH=/bin"]})


def write_program(file: Path, program: Path, name: str) -> None:
    """Write an image with one static executable and nothing else."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add(archive, f"usr/local/bin/{program.name}", program.read_bytes(), mode=0o755)
    path = f"/usr/local/bin/{program.name}"
    _write(file, name, buffer.getvalue(), {"Entrypoint": [path], "Env": ["PATH=/usr/local/bin"]})


def _write(file: Path, name: str, layer: bytes, runs: Mapping[str, Any]) -> None:
    config = _json(
        {
            "architecture": _MACHINES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": runs,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    )
    manifest = _json([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}])
    with tarfile.open(file, "w") as archive:
        for path, content in {"layer.tar": layer, "config.json": config, "manifest.json": manifest}.items():
            _add(archive, path, content)


def _layer(busybox: bytes, scripts: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add(archive, "bin/busybox", busybox, mode=0o755)
        shell = tarfile.TarInfo("bin/sh")
        shell.type, shell.linkname = tarfile.SYMTYPE, "busybox"
        archive.addfile(shell)
        for path, script in scripts.items():
            _add(archive, path.lstrip("/"), f"#!/bin/sh\n{script}\n".encode(), mode=0o755)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
