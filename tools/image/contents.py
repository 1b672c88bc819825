"""What the image is to its users: its user, paths, names and labels. The Containerfile says the same."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

NAME: Final = "nodewise"
UID: Final = 10001
USER: Final = f"{UID}:{UID}"
"""In numbers, for the kubelet to see that it is not root."""
HOME: Final = "/home/nodewise"
ENTRYPOINT: Final = ("/usr/local/bin/nodewise",)
COMMAND: Final = ("--help",)
PORT: Final = "9001/tcp"
ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "NODEWISE_IMAGE": "1",  # `nodewise configure` then looks which folders are the host's
}
LABELS: Final = {
    "org.opencontainers.image.title": NAME,
    "org.opencontainers.image.description": "Platform-aware scheduling for Kubernetes",
    "org.opencontainers.image.licenses": "Apache-2.0",
}
"""Besides these: version, created, and revision where it is known."""
EXTRAS: Final = ("risk", "cri")
"""Of nodewise's wheel. Not `install`, whose folder is in the image ready-made, nor `plots`, which draws at a desk."""

SCRIPTS: Final = {"/cmk/cmk.py": "nodewise.cli.cmk"}
"""Programs besides those that the wheel names: CMK's pods call it so."""
READY: Final = "/usr/share/nodewise/cmk"
"""What `nodewise cpu install` puts on hosts: `<sys.prefix>/share/nodewise/cmk`."""
BILL: Final = "/usr/share/sbom/nodewise.cdx.json"
TEMPLATES: Final = {
    "/telemetry-aware-scheduling/deploy/extender-configuration/scheduler-config.yaml": "telemetry",
    "/telemetry-aware-scheduling/deploy/extender-configuration/scheduler-config-tas+gas.yaml": "telemetry,gpu",
    "/gpu-aware-scheduling/deploy/extender-configuration/scheduler-config.yaml": "gpu",
    "/gpu-aware-scheduling/deploy/extender-configuration/scheduler-config-tas+gas.yaml": "telemetry,gpu",
}
"""Where the older configurator's image has them, and for which agents."""

FOLDERS: Final = ("1-debian", "2-wheels", "3-nodewise", "4-program", "5-list")
"""The layers as folders, which the Containerfile copies: what changes seldom comes first."""
LARGEST_BYTES: Final = 180_000_000
"""Of all layers as they are transferred."""
EPOCH_S: Final = 315532800
"""1980-01-01, the time of all files unless SOURCE_DATE_EPOCH names another."""

_ARCHITECTURES: Final[Mapping[str, str]] = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture() -> str:
    """The machine's, in OCI's words."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)
