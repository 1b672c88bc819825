"""Progress messages on stderr."""

import sys


def report_progress_line(text: str) -> None:
    """Print a progress message."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
