"""The archive: an OCI image layout in one tar file, with a manifest.json for tools that read only docker archives."""

import contextlib
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from tools.image import image_constants
from tools.image.layers import Layer

_MEDIA: Final = "application/vnd.oci.image"


class ImageIdentity(NamedTuple):
    """Version, time, architecture and revision of the image."""

    version: str
    time_s: int
    architecture: str
    revision: str = ""


def reference(version: str) -> str:
    """The full reference of the image, as container runtimes write it."""
    return f"docker.io/library/{image_constants.NAME}:{version}"


def write(file: Path, layers: Sequence[Layer], identity: ImageIdentity) -> str:
    """Write the archive. Return the digest of the manifest, which registries use."""
    config = _json(_config(layers, identity))
    manifest = _json(_manifest(layers, config))
    digest = _digest(manifest)
    small = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(_index(_platform_descriptor(manifest, identity), identity)),
        "manifest.json": _json(_docker_manifest(layers, config, identity)),
        _blob(digest): manifest,
        _blob(_digest(config)): config,
    }
    large = {_blob(layer.digest): layer.file for layer in layers}
    with _open(file, identity.time_s) as archive:
        _add(archive, small, identity.time_s)
        for name, path in sorted(large.items()):
            with path.open("rb") as content:
                archive.addfile(_entry(name, path.stat().st_size, identity.time_s), content)
    return digest


def combine(file: Path, archives: Sequence[Path], identity: ImageIdentity) -> str:
    """Write one archive of the images of several architectures. Return the digest of their index, which registries use.

    Tools that read only docker archives find the first image.
    """
    with contextlib.ExitStack() as stack, _open(file, identity.time_s) as combined:
        parts = [stack.enter_context(tarfile.open(archive)) for archive in archives]
        images = [json.loads(_read(part, "index.json"))["manifests"][0] for part in parts]
        for image in images:
            del image["annotations"]  # the name is that of the index
        media = f"{_MEDIA}.index.v1+json"
        index = _json({"schemaVersion": 2, "mediaType": media, "manifests": images})
        digest = _digest(index)
        small = {
            "oci-layout": _read(parts[0], "oci-layout"),
            "index.json": _json(_index(_descriptor(media, digest, len(index)), identity)),
            "manifest.json": _read(parts[0], "manifest.json"),
            _blob(digest): index,
        }
        _add(combined, small, identity.time_s)
        blobs = {member.name: (part, member) for part in parts for member in part if member.isfile()}
        for name, (part, member) in sorted(blobs.items()):
            if name.startswith("blobs/"):
                combined.addfile(_entry(name, member.size, identity.time_s), part.extractfile(member))
    return digest


def archive_digest(file: Path) -> str:
    """The digest of an archive's image, or of the index of its images, as `write` and `combine` return it."""
    with tarfile.open(file) as archive:
        return str(json.loads(_read(archive, "index.json"))["manifests"][0]["digest"])


@contextlib.contextmanager
def _open(file: Path, time_s: int) -> Iterator[tarfile.TarFile]:
    """A new archive with its folders."""
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for folder in ("blobs", "blobs/sha256"):
            entry = _entry(folder, 0, time_s)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        yield archive


def _add(archive: tarfile.TarFile, files: Mapping[str, bytes], time_s: int) -> None:
    for name, data in sorted(files.items()):
        archive.addfile(_entry(name, len(data), time_s), io.BytesIO(data))


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    return content.read() if content else b""


def _entry(name: str, size_bytes: int, time_s: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size_bytes, 0o644, time_s
    return entry


def labels(identity: ImageIdentity) -> Mapping[str, str]:
    """All labels of the image."""
    labels = {
        **image_constants.LABELS,
        "org.opencontainers.image.version": identity.version,
        "org.opencontainers.image.created": _time(identity),
    }
    return labels | ({"org.opencontainers.image.revision": identity.revision} if identity.revision else {})


def _config(layers: Sequence[Layer], identity: ImageIdentity) -> dict[str, Any]:
    created = _time(identity)
    return {
        "created": created,
        "architecture": identity.architecture,
        "os": "linux",
        "config": {
            "User": image_constants.USER,
            "ExposedPorts": {image_constants.PORT: {}},
            "Env": [f"{name}={value}" for name, value in image_constants.ENVIRONMENT.items()],
            "Entrypoint": list(image_constants.ENTRYPOINT),
            "Cmd": list(image_constants.COMMAND),
            "WorkingDir": "/",
            "Labels": labels(identity),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": created, "created_by": f"tools.image: {layer.title}"} for layer in layers],
    }


def _manifest(layers: Sequence[Layer], config: bytes) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": _descriptor(f"{_MEDIA}.config.v1+json", _digest(config), len(config)),
        "layers": [
            _descriptor(f"{_MEDIA}.layer.v1.tar+gzip", layer.digest, layer.size_bytes) for layer in layers
        ],
    }


def _platform_descriptor(manifest: bytes, identity: ImageIdentity) -> dict[str, Any]:
    platform = {"architecture": identity.architecture, "os": "linux"}
    return _descriptor(f"{_MEDIA}.manifest.v1+json", _digest(manifest), len(manifest)) | {
        "platform": platform
    }


def _index(descriptor: dict[str, Any], identity: ImageIdentity) -> dict[str, Any]:
    """The index of the archive, which names its only image, or the index of its images."""
    names = {
        "io.containerd.image.name": reference(identity.version),
        "org.opencontainers.image.ref.name": identity.version,
    }
    entry = {**descriptor, "annotations": names}
    return {"schemaVersion": 2, "mediaType": f"{_MEDIA}.index.v1+json", "manifests": [entry]}


def _docker_manifest(layers: Sequence[Layer], config: bytes, identity: ImageIdentity) -> list[dict[str, Any]]:
    return [
        {
            "Config": _blob(_digest(config)),
            "RepoTags": [f"{image_constants.NAME}:{identity.version}"],
            "Layers": [_blob(layer.digest) for layer in layers],
        }
    ]


def _descriptor(media: str, digest: str, size_bytes: int) -> dict[str, Any]:
    return {"mediaType": media, "digest": digest, "size": size_bytes}


def _time(identity: ImageIdentity) -> str:
    return datetime.fromtimestamp(identity.time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
