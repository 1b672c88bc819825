"""Exit codes of every command."""

from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
"""Usage or settings."""
NO: Final = 3
"""Done, and the answer is no."""
