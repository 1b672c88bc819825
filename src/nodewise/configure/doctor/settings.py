"""What a running `nodewise extender` was told: its flags, variables and settings file, as pods show them."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nodewise.configure.doctor import workloads
from nodewise.configure.doctor.facts import Container
from nodewise.configure.doctor.objects import fields
from nodewise.errors import UNREADABLE, BadInput
from nodewise.kube import documents

PREFIX: Final = "NODEWISE_"
_LARGEST: Final = 2**20


def of(container: Container, file: bytes = b"") -> dict[str, str]:
    """Settings by their names in a settings file: a flag wins over a variable, that over the file."""
    variables = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in container.environment.items()
        if name.startswith(PREFIX)
    }
    flags = {
        name: ",".join(filter(None, given)) or "true" for name, given in workloads.flags(container).items()
    }
    return {**of_file(file), **variables, **flags}


def of_file(given: bytes) -> dict[str, str]:
    """The top level of a settings file; what cannot be read says nothing."""
    try:
        found = [msgspec.json.decode(one) for _, one in documents.documents(given[:_LARGEST], "settings")]
    except (BadInput, *UNREADABLE):
        return {}
    given_ = fields(found[0]) if found else {}
    own = [fields(value) for value in given_.values()]  # sections of agents
    whole = {name: value for section in [*own, given_] for name, value in section.items()}
    return {
        name.replace("-", "_"): told for name, value in whole.items() if (told := _told(value)) is not None
    }


def _told(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list):
        return ",".join(one for one in value if isinstance(one, str))
    return None


def config_path(container: Container) -> str:
    """Where its settings file is; empty for none."""
    return workloads.flag(container, "config") or container.environment.get(f"{PREFIX}CONFIG", "")


def is_extender(container: Container) -> bool:
    """Whether it runs `nodewise extender`."""
    return workloads.runs(container, "nodewise") and "extender" in container.words


def options(settings: Mapping[str, str], name: str) -> list[str]:
    return [one.strip() for one in settings.get(name, "").split(",") if one.strip()]
