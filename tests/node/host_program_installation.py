"""The program that is installed on hosts, built once for the current sources and lock file.

folder = installed_program.install(tmp_path / "opt-bin")   # mount it at /opt/bin; it contains `cmk`
"""

import fcntl
import hashlib
import sys
from pathlib import Path

from nodewise_cpu import bundle, installation
from nodewise_cpu.cli.install import bundled_modules
from tests.cluster import go_toolchain

ROOT = Path(__file__).parents[2]
MOUNT = Path("/opt/bin")
_KEPT = 4  # the number of builds in the cache; older ones are removed


def ready() -> Path:
    """The bundle: the result of `nodewise cpu install --build`."""
    home = go_toolchain.cache() / "program"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = home / _digest()
        if not folder.is_dir():
            bundle.build(folder, bundled_modules())
        folder.touch()
        go_toolchain.tidy((path for path in home.iterdir() if path.is_dir()), _KEPT)
        return folder


def install(into: Path, mount: Path = MOUNT) -> Path:
    """The folder with the program, installed for containers that mount it at `mount`."""
    installation.install(ready(), into, mount, None)
    return into


def _digest() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in (
        *sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")]),
        ROOT / "uv.lock",
    ):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
