"""What `nodewise demo` prints at its end, and how it reaches its servers."""

import subprocess
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
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


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_requests_to_servers_of_the_demo_go_through_no_proxy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    responding = threading.Thread(target=server.handle_request)
    responding.start()
    with demo.loopback_client() as client:
        response = client.get(f"http://127.0.0.1:{server.server_port}/readyz")
    responding.join()
    server.server_close()
    assert response.status_code == HTTPStatus.NOT_IMPLEMENTED, "the server itself responded"
