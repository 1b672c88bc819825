"""The page about tests of policies, followed literally."""

import sys
from pathlib import Path

from tests import docs_page_code_blocks
from tests.docs_page_runner import plain_environment, reading

PAGE = docs_page_code_blocks.HOW_TO / "test-policies.md"


def test_testing_policies(tmp_path: Path) -> None:
    plain = plain_environment()
    environment = {**plain, "PATH": f"{Path(sys.executable).parent}:{plain['PATH']}"}
    with reading(tmp_path, environment) as reader:
        reader.follows(docs_page_code_blocks.section(PAGE, "## 1", "\n## Reference"))
        assert "<testsuite " in (tmp_path / "results.xml").read_text()
