"""What the bench is doing, on stderr."""

import sys


def told(text: str) -> None:
    """Progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
