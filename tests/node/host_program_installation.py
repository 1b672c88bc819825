"""The program that is installed on hosts, built once for the current sources and lock file.

folder = host_program_installation.install(tmp_path / "opt-bin")   # mount it at /opt/bin; it contains `cmk`
"""

import fcntl
from pathlib import Path

from tools.image import digests

from nodewise_cpu import bundle, installation
from nodewise_cpu.cli.install import bundled_modules
from tests.cluster import go_toolchain

MOUNT = Path("/opt/bin")
_KEPT = 4  # the number of builds in the cache; older ones are removed


def ready() -> Path:
    """The bundle: the result of `nodewise cpu install --build`."""
    home = go_toolchain.cache() / "program"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = home / digests.of_sources()
        if not folder.is_dir():
            bundle.build(folder, bundled_modules())
        folder.touch()
        go_toolchain.tidy((path for path in home.iterdir() if path.is_dir()), _KEPT)
        return folder


def install(into: Path, mount: Path = MOUNT) -> Path:
    """The folder with the program, installed for containers that mount it at `mount`."""
    installation.install(ready(), into, mount, None)
    return into
