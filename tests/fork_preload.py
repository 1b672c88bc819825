"""Imports every module of nodewise, and those that modules import when they are first used, in the process that
`tests.forked_commands` forks from. Garbage collections of the forks skip their objects.
"""

import contextlib
import gc
import importlib
import pkgutil

import nodewise
import nodewise_cpu
import nodewise_scorers

LATE = (
    "anyio._backends._asyncio",
    "prometheus_client",
    "rich.status",
    "scipy.special",
    "structlog",
    "uvloop",
)
for package in (nodewise, nodewise_cpu, nodewise_scorers):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
for name in LATE:
    importlib.import_module(name)
gc.collect()
gc.freeze()
