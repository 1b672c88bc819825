"""The page about building an agent, followed literally: its code blocks run in order.

pip installs the package into a new environment, which also has the packages of the environment of the tests.
"""

import os
import shutil
import sysconfig
import venv
from pathlib import Path

import pytest

from tests import docs_page_code_blocks
from tests.cluster import child_processes, skip_conditions
from tests.cluster.extender_process import NODEWISE
from tests.docs_page_runner import plain_environment, reading

PAGE = docs_page_code_blocks.LEARN / "build-an-agent.md"
SERVED = "127.0.0.1:9001"


def environment(folder: Path, port: int) -> dict[str, str]:
    """The environment variables of a new Python environment with the commands of the page. Its pip needs no network."""
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for name in ("nodewise", "pip", "pytest"):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {python} -m {name} "$@"\n')
        command.chmod(0o755)
    plain = plain_environment()
    return {
        **plain,
        "PATH": f"{folder / 'bin'}:{plain['PATH']}",
        "NODEWISE_PORT": str(port),
        "NODEWISE_HEALTH_PORT": "0",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def test_building_an_agent(tmp_path: Path) -> None:
    if not (shutil.which("bash") and shutil.which("curl")):
        skip_conditions.not_run("the page calls bash and curl: apt-get install bash curl")
    port = child_processes.free_port()
    served = f"127.0.0.1:{port}"
    answers = f"until curl -s -o {os.devnull} {served}; do kill -0 $! || break; sleep 0.1; done"
    instead = {SERVED: served, "--no-cluster --unsafe &\n": f"--no-cluster --unsafe &\n{answers}\n"}
    with reading(tmp_path, environment(tmp_path / "environment", port), instead) as reader:
        reader.follows(docs_page_code_blocks.blocks(PAGE))
        # the page says that the entry point comes from the metadata of the installed package
        output = reader.types(
            "python -c \"from importlib.metadata import entry_points as e; print(e(name='quiet'))\""
        )
        assert "nodewise_quiet:KIND" in output


def test_a_first_policy_as_far_as_it_needs_no_cluster(tmp_path: Path) -> None:
    page = docs_page_code_blocks.LEARN / "first-policy.md"
    blocks = docs_page_code_blocks.section(page, "## 1. Create nodes and metrics", "\n## 4. In the cluster")
    assert {block.language for block in blocks} == {"sh", "yaml", "console"}
    plain = plain_environment()
    with reading(tmp_path, {**plain, "PATH": f"{NODEWISE.parent}:{plain['PATH']}"}) as reader:
        reader.follows(blocks)


def test_the_page_has_all_kinds_of_blocks() -> None:
    """Otherwise the test above could pass without any blocks."""
    blocks = docs_page_code_blocks.blocks(PAGE)
    assert {block.language for block in blocks} == {"sh", "text", "python", "yaml"}
    assert PAGE.read_text().count("```") == 2 * len(blocks)
    assert len(blocks) > 10


def test_a_page_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for wrong, message in {
        "```sh\nfalse\n```\n": "failed: false",
        "```console\n$ echo one\ntwo\n```\n": "does not show 'two'",
        "```console\n$ false\n$ echo $?\n0\n```\n": "does not show '0'",
        "```sh\necho one\n```\n\n```text\ntwo\n```\n": "does not show 'two'",
        "```console\n$ echo took 5 s\ntook 5m\n```\n": "does not show 'took 5m'",
    }.items():
        page.write_text(wrong)
        with reading(tmp_path, plain_environment()) as reader, pytest.raises(AssertionError, match=message):
            reader.follows(docs_page_code_blocks.blocks(page))


def test_allowed_differences_from_the_output_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ echo NAME   AGE; echo pod-x 12m3s 2026-11-21T10:00:01Z 7\n"
        "NAME AGE\npod-…  5s 2026-01-01T00:00:00Z 7\n"
        "$ (exit 3)\n$ echo $?\n3\n```\n"
    )
    with reading(tmp_path, plain_environment()) as reader:
        reader.follows(docs_page_code_blocks.blocks(page))
