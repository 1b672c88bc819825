"""Exit codes of all commands."""

from collections.abc import Mapping
from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
"""Invalid usage or settings."""
NO: Final = 3
"""Done, with a negative answer."""

MEANING: Final[Mapping[int, str]] = {
    DONE: "success; if the command answers a question, the answer is positive",
    FAILED: "failure; stderr has the reason",
    USAGE: "the command line or a setting is invalid; stderr names it",
    NO: "a negative answer: a pod that fits on no node, a policy with problems, a change that is due",
    130: "ended by SIGINT",
}
"""The meaning of each code, as the reference page prints it."""
