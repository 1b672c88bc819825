"""`docs/differences.md` and the tables say the same."""

import re
from pathlib import Path

from tests.conformance.cmk import rows
from tests.conformance.cmk.rows import (
    ArgumentsRow,
    ClaimRow,
    ClusterRow,
    ContainerRow,
    DiscoverRow,
    InitRow,
    LineRow,
    ListRow,
    MaskRow,
    MovedRow,
    MoveRow,
    NameRow,
    PoolsRow,
    PublishRow,
    Row,
    StoryRow,
    SweepRow,
    VersionRow,
    WebhookHttpRow,
    WebhookRow,
    WordsRow,
)

PAGE = Path(__file__).parents[3] / "docs" / "differences.md"
HEADING = "\n## CPU Manager for Kubernetes"
TABLES: dict[str, type[Row]] = {
    "arguments": ArgumentsRow,
    "lists": ListRow,
    "masks": MaskRow,
    "lines": LineRow,
    "pools": PoolsRow,
    "isolate": ClaimRow,
    "words": WordsRow,
    "isolate_process": StoryRow,
    "reconcile": SweepRow,
    "reconfigure": MoveRow,
    "moving": MovedRow,
    "versions": VersionRow,
    "names": NameRow,
    "init": InitRow,
    "discover": DiscoverRow,
    "publish": PublishRow,
    "container": ContainerRow,
    "cluster": ClusterRow,
    "webhook": WebhookRow,
    "webhook_http": WebhookHttpRow,
    "webhook_process": StoryRow,
}


def tables() -> list[Row]:
    return [row for table, kind in TABLES.items() for row in rows.read(table, kind)]


def rows_of_page() -> list[int]:
    """The numbers in the first column of the page's tables of rows."""
    section = re.split(r"^## ", PAGE.read_text().partition(HEADING)[2], flags=re.MULTILINE)[0]
    cells = re.findall(r"^\| (\d+(?:, \d+)*) \|", section, re.MULTILINE)
    return [int(number) for cell in cells for number in cell.split(", ")]


def test_every_table_is_asked() -> None:
    assert {path.stem for path in Path(__file__).parent.glob("*.yaml")} == TABLES.keys()


def test_every_departure_stands_on_the_page_once() -> None:
    assert sorted(rows_of_page()) == sorted({row.number for row in tables() if row.differs})
