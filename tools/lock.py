"""Lock the dependencies: `uv lock`, with the package index's addresses taken out.

The lock keeps names, versions and hashes. Where the files come from is the business of the machine that
installs them (a mirror, a proxy, the public index), so no address belongs in the repository.
Called by `make lock`; the argument is the `uv` to use, further arguments go to `uv lock`.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

LOCK = Path("uv.lock")


def without_addresses(text: str) -> str:
    """Replace each file's URL by its name, and the index's URL by a word."""
    text = re.sub(r'url = "https?://[^"]*/([^"/]+)"', r'filename = "\1"', text)
    return re.sub(r'registry = "https?://[^"]*"', 'registry = "index"', text)


def main(uv: str, *arguments: str) -> None:
    # uv refuses a lock without addresses, so it makes a new one beside a copy of the project's file.
    with tempfile.TemporaryDirectory() as folder:
        for name in ("pyproject.toml", "README.md", "src/nodewise/__init__.py"):
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(name).read_bytes())
        subprocess.run([uv, "lock", "--directory", folder, *arguments], check=True)
        LOCK.write_text(without_addresses(Path(folder, "uv.lock").read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
