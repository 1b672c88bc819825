"""Cases in tables of YAML files beside the tests: each row is a mapping with the name of the case and its values."""

from pathlib import Path
from typing import Any

import pytest
import yaml


def cases(file: str, table: str) -> pytest.MarkDecorator:
    """Run a test for each row of a table; the keys of a row besides `case` are arguments of the test."""
    rows: list[dict[str, Any]] = yaml.load((Path(__file__).parent / file).read_text(), yaml.CSafeLoader)[
        table
    ]
    names = [name for name in rows[0] if name != "case"]
    values = [pytest.param(*(row[name] for name in names), id=str(row["case"])) for row in rows]
    return pytest.mark.parametrize(names, values)
