"""The program that is installed on hosts contains no numpy."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["numpy"] = None
import importlib, pkgutil
import nodewise_cpu.cli, nodewise_cpu.cmk
for module in pkgutil.iter_modules(nodewise_cpu.cli.__path__):
    if module.name not in {"agent", "cluster_init", "webhook"}:
        importlib.import_module(f"nodewise_cpu.cli.{module.name}")
"""


def test_its_commands_are_imported_without_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
