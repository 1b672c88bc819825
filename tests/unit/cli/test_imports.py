"""Commands import only the modules that they use."""

import json
import subprocess
import sys

import pytest

_PROGRAM = """
import json, sys
from importlib import import_module
from nodewise.cli import main
main.command.get_command(None, sys.argv[1]).make_context("nodewise", [])
for module in sys.argv[2:]:
    import_module(module)
print(json.dumps(sorted(sys.modules)))
"""
_AGENT_OF_CONTROLLER = ("nodewise.policies.agent", "nodewise.policies.state", "nodewise.policies.controller")


def _imported_modules(command: str, *others: str) -> list[str]:
    arguments = [sys.executable, "-c", _PROGRAM, command, *others]
    run = subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=60)
    modules: list[str] = json.loads(run.stdout)
    return modules


@pytest.mark.parametrize(
    ("command", "agent", "limit"),
    [("controller", (), 125), ("controller", _AGENT_OF_CONTROLLER, 160), ("extender", (), 170)],
    ids=["command line of controller", "running controller", "command line of extender"],
)
def test_number_of_imported_modules(command: str, agent: tuple[str, ...], limit: int) -> None:
    modules = _imported_modules(command, *agent)
    assert len([name for name in modules if name.startswith("nodewise")]) < limit


@pytest.mark.parametrize(
    "library", ["aiohttp", "cryptography", "grpc", "numpy.random", "opentelemetry", "rich"]
)
def test_controller_does_not_load_library(library: str) -> None:
    """Each takes 2 to 10 MiB of memory. Client certificates and `--prometheus-ca` load cryptography."""
    assert library not in _imported_modules("controller", *_AGENT_OF_CONTROLLER)


def test_declaring_options_imports_no_terminal_output() -> None:
    program = "import sys; from nodewise.cli import options_from_settings; print('rich' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout == "False\n"


def test_declaring_options_of_agents_imports_no_computation() -> None:
    modules = _imported_modules("extender")
    computation = (".gpu.agent", ".gpu.state", ".policies.agent", ".policies.state", ".controller")
    assert not [name for name in modules if name.endswith(computation)]
