"""Imports structlog without rich, which takes a tenth of the start-up time and is used only for pretty tracebacks."""

import sys

__all__ = ["structlog"]

_rich = sys.modules.get("rich")
if _rich is None:
    sys.modules["rich"] = None  # type: ignore[assignment]  # makes `import rich` fail
try:
    import structlog
finally:
    if _rich is None:
        del sys.modules["rich"]
