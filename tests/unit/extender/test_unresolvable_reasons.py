"""Every reason of nodewise tells whether evicting pods can cure it."""

import importlib
import pkgutil
from collections.abc import Iterator

import nodewise


def classes() -> Iterator[type]:
    for module_info in pkgutil.walk_packages(nodewise.__path__, "nodewise."):
        if ".cpu." in module_info.name or ".__main__" in module_info.name or ".package" in module_info.name:
            continue
        module = importlib.import_module(module_info.name)
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield value


def test_each_reason_declares_it() -> None:
    reasons = {
        value
        for value in classes()
        if all(hasattr(value, name) for name in ("is_failure", "text", "remedy"))
        and value.__name__ != "Reason"
        and not value.__subclasses__()
    }
    assert len(reasons) > 20
    only_of_bind = {"RequestsNothing", "NotBound"}
    undeclared = {value.__name__ for value in reasons if not hasattr(value, "is_unresolvable")}
    assert undeclared == only_of_bind
