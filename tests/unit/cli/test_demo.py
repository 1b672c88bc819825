"""What `nodewise demo` prints at its end."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from nodewise.base.errors import Unavailable
from nodewise.cli import demo


@pytest.mark.parametrize("program", ["nodewise", "__main__.py"], ids=["script", "module"])
def test_the_suggested_command_can_be_pasted_in_any_folder(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_version() -> Any:
        raise Unavailable("no cluster")

    monkeypatch.setattr(demo, "_read_version", read_version)
    script = Path(sys.executable).with_name("nodewise")
    monkeypatch.setattr(sys, "argv", [str(script.with_name(program)), "demo"])
    for folder in (Path(demo.__file__).parents[3], tmp_path):
        monkeypatch.chdir(folder)
        with click.Context(demo.command, info_name="nodewise"):
            line = demo.suggest_next_command()
        done = subprocess.run(line, shell=True, check=False, capture_output=True, text=True, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
        assert "rack1-a" in done.stdout
