"""Programs in containers of workloads import the standard library and few modules of nodewise."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nodewise_cpu
from nodewise_cpu import cli

FOLDER = Path(nodewise_cpu.__file__).parent
LEAN = sorted(
    ".".join(path.relative_to(FOLDER).with_suffix("").parts)
    for path in FOLDER.rglob("*.py")
    if re.search(r"^Standard library only", path.read_text(), re.MULTILINE)
)
ROOMS = {f"nodewise_cpu.{path.parent.name}" for path in FOLDER.glob("*/__init__.py")}
ALLOWED = {
    "nodewise",
    "nodewise.base",
    "nodewise.base.clock",
    "nodewise.base.errors",
    "nodewise.base.trusted_files",
    "nodewise_cpu",
    "nodewise.kube",
    "nodewise.kube.api_server_interface",
    *ROOMS,
}
PROGRAM = """
import json, sys
before = set(sys.modules)
import nodewise_cpu.{module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_imported_modules_exist() -> None:
    assert "cpu_set_formats" in LEAN


@pytest.mark.parametrize("module", LEAN)
def test_workload_modules_import_only_the_standard_library(module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)], capture_output=True, text=True, check=True
    )
    loaded = json.loads(ran.stdout)
    foreign = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign - ALLOWED == {f"nodewise_cpu.{module}" for module in LEAN} & foreign
    assert "asyncio" not in loaded


def test_isolate_with_a_config_map_imports_pyyaml_and_no_larger_library() -> None:
    program = PROGRAM.format(module="workload.service_account_client")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(ran.stdout)}
    assert not loaded & {"asyncio", "click", "cryptography", "httpx2", "msgspec"}


def test_commands_of_the_installed_program_need_no_numpy() -> None:
    """The program that `nodewise cpu install` installs contains no numpy."""
    modules = ", ".join(sorted({path.partition(":")[0] for path, _ in cli.COMMANDS.values()}))
    program = f"import sys, {modules}; print('numpy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
