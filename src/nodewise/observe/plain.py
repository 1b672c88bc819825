"""structlog without rich, which it imports for tracebacks that we do not print, and which takes a tenth of a start."""

import sys

__all__ = ["structlog"]

_rich = sys.modules.get("rich")
if _rich is None:
    sys.modules["rich"] = None  # type: ignore[assignment]  # how Python is told that there is none
try:
    import structlog
finally:
    if _rich is None:
        del sys.modules["rich"]
