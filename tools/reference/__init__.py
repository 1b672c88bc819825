"""Prints the reference pages of `docs/reference` from the program's own definitions.

`make docs` writes them; a test compares them, so that they never say anything else than the program does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.reference.alerts import alerts_page
from tools.reference.commands import COMMAND_PAGES
from tools.reference.custom_resources import definitions_page
from tools.reference.dashboards import dashboards_page
from tools.reference.log_events_and_metrics import observability_page
from tools.reference.ports_and_paths import serving_page
from tools.reference.settings import settings_page

FOLDER: Final = Path("docs/reference")
PAGES: Final[dict[str, Callable[[], str]]] = {
    **COMMAND_PAGES,
    "settings.md": settings_page,
    "observability.md": observability_page,
    "definitions.md": definitions_page,
    "serving.md": serving_page,
    "dashboards.md": dashboards_page,
    "alerts.md": alerts_page,
}


def write() -> None:
    """Write all pages, and delete those of removed commands."""
    for name, page in PAGES.items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page())
    for path in (FOLDER / "commands").glob("*.md"):
        if path.relative_to(FOLDER).as_posix() not in PAGES:
            path.unlink()
