"""The page about the library of policies: its commands, its table, and its examples of hook and action."""

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from nodewise.policy_tools import library, policy_library
from tests import docs_page_code_blocks
from tests.docs_page_code_blocks import ROOT
from tests.docs_page_runner import plain_environment, reading

PAGE = docs_page_code_blocks.HOW_TO / "policy-library.md"


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    plain = plain_environment()
    environment = {**plain, "PATH": f"{Path(sys.executable).parent}:{plain['PATH']}"}
    with reading(tmp_path, environment) as reader:
        reader.follows(docs_page_code_blocks.section(PAGE, "## Write", "\n## Check policies at"))


def test_the_table_is_the_library() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (.*) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    presets = {name: policy_library.load(name) for name in library.preset_names()}
    assert rows == [(name, preset.subject, preset.exporter) for name, preset in presets.items()]


def test_the_examples_use_existing_hooks_and_inputs() -> None:
    blocks = [block for block in docs_page_code_blocks.blocks(PAGE) if block.language == "yaml"]
    commit, workflow = (yaml.load(block.text, yaml.CSafeLoader) for block in blocks)
    hooks: Any = yaml.load((ROOT / ".pre-commit-hooks.yaml").read_text(), yaml.CSafeLoader)
    action: Any = yaml.load((ROOT / "action.yml").read_text(), yaml.CSafeLoader)
    assert commit["repos"][0]["hooks"] == [{"id": hook["id"]} for hook in hooks]
    [step] = [step for step in workflow["jobs"]["policies"]["steps"] if "nodewise" in step["uses"]]
    assert step["with"].keys() <= action["inputs"].keys()
    assert workflow["permissions"] == {"contents": "read"}
