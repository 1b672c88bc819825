"""The corpus of hostile input: named cases in YAML with a compact notation for bodies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_CORPUS = Path(__file__).with_name("corpus")


def cases(name: str) -> dict[str, dict[str, Any]]:
    """The cases of a file by name. Raises ValueError if a name occurs twice."""
    listed = yaml.load((_CORPUS / f"{name}.yaml").read_bytes(), Loader=yaml.CSafeLoader)["cases"]
    cases = {case["name"]: case for case in listed}
    if len(cases) < len(listed):
        raise ValueError(f"{name}: two cases of one name")
    return cases


def data(content: Any) -> bytes:
    """The bytes of a body, which is a text or a list of parts."""
    return content.encode() if isinstance(content, str) else b"".join(_parts(content))


def _parts(parts: list[Any]) -> Iterator[bytes]:
    for part in parts:
        if isinstance(part, str):
            yield part.encode("latin-1") if "\xff" in part else part.encode()
        elif "hex" in part:
            yield bytes.fromhex(str(part["hex"]))
        elif "names" in part:
            value = part.get("value", "")
            joint = "" if value.endswith(",") else ","
            yield joint.join(f'"{part["form"] % number}"{value}' for number in range(part["names"])).encode()
        else:
            yield str(part["text"]).encode() * part["times"]
