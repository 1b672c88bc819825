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
    DONE: "done; where the command answers a question, the answer is yes",
    FAILED: "it could not be done, or could not be looked at; stderr says why",
    USAGE: "the command line or a setting is wrong; stderr names it",
    NO: "done, and the answer is no: a pod that fits nowhere, a policy with problems, a change that is due",
    130: "ended by SIGINT",
}
"""The meaning of each code, as the reference page prints it."""
