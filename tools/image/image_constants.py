"""Properties of the image: user, paths, names and labels. The Containerfile has the same."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

NAME: Final = "nodewise"
UID: Final = 10001
USER: Final = f"{UID}:{UID}"
"""Numeric, so that the kubelet can verify that it is not root."""
HOME: Final = "/home/nodewise"
ENTRYPOINT: Final = ("/usr/local/bin/nodewise",)
COMMAND: Final = ("--help",)
PORT: Final = "9001/tcp"
ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "NODEWISE_IMAGE": "1",  # makes `nodewise configure` check which folders are mounted from the host
}
LABELS: Final = {
    "org.opencontainers.image.title": NAME,
    "org.opencontainers.image.description": "Platform-aware scheduling for Kubernetes",
    "org.opencontainers.image.licenses": "Apache-2.0",
}
"""Static labels; version, created, and revision if known, are added."""
PLUGINS: Final = tuple(ROOT / f"packages/nodewise-{name}" for name in ("cpu", "scorers"))
"""The folders of nodewise's other distributions."""
EXTRAS: Final = ("risk", "cri", "traces")
"""Extras of nodewise. Not `install`, whose output is in the image, nor `plots`, which is for workstations."""

SCRIPTS: Final = {"/cmk/cmk.py": "nodewise_cpu.cmk"}
"""Programs besides the wheel's entry points: CMK's pods use this path."""
READY: Final = "/usr/share/nodewise/cmk"
"""The program that `nodewise cpu install` copies to hosts: `<sys.prefix>/share/nodewise/cmk`."""
SBOM: Final = "/usr/share/sbom/nodewise.cdx.json"
TEMPLATES: Final = {
    "/telemetry-aware-scheduling/deploy/extender-configuration/scheduler-config.yaml": "telemetry",
    "/telemetry-aware-scheduling/deploy/extender-configuration/scheduler-config-tas+gas.yaml": "telemetry,gpu",
    "/gpu-aware-scheduling/deploy/extender-configuration/scheduler-config.yaml": "gpu",
    "/gpu-aware-scheduling/deploy/extender-configuration/scheduler-config-tas+gas.yaml": "telemetry,gpu",
}
"""Agents by template path; the paths are those of the older configurator's image."""

FOLDERS: Final = ("1-debian", "2-wheels", "3-nodewise", "4-program", "5-list")
"""Names of the layers as folders, which the Containerfile copies: rarely changed ones first."""
LARGEST_BYTES: Final = 180_000_000
"""Maximum compressed size of all layers."""
EPOCH_S: Final = 315532800
"""1980-01-01, the time of all files without SOURCE_DATE_EPOCH."""

MACHINES: Final[Mapping[str, str]] = {"amd64": "x86_64", "arm64": "aarch64"}
"""The kernel's and the wheels' names of architectures, by OCI's and Debian's names."""


def architecture() -> str:
    """OCI's name of this machine's architecture."""
    machine = platform.machine()
    return next((name for name, kernel_name in MACHINES.items() if kernel_name == machine), machine)


def machine(architecture: str) -> str:
    """The kernel's name of an architecture."""
    return MACHINES.get(architecture, architecture)
