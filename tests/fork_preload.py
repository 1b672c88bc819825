"""Imports every module of nodewise, in the process that `tests.forked_commands` forks from."""

import contextlib
import importlib
import pkgutil

import nodewise

for module in pkgutil.walk_packages(nodewise.__path__, "nodewise."):
    if not module.name.endswith("__main__"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
