"""Compares what SVG files show.

The last digits of coordinates, and identifiers that are hashes of coordinates, depend on the instructions of the
processor on which a picture is drawn.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

_TOLERANCE: Final = 0.005  # of coordinates, in points: less than anyone can see
_NUMBER: Final = re.compile(r"(?<![\w.#])-?\d+(?:\.\d+)?(?:e-?\d+)?")
_HASH: Final = re.compile(r"\b[a-z][0-9a-f]{10}\b")  # an identifier that matplotlib derives from the content


def differences(left: Path, right: Path) -> list[str]:
    """The first difference of two files in elements, texts, or coordinates; empty if they show the same."""
    for left_part, right_part in itertools.zip_longest(_parts(left), _parts(right)):
        if left_part is None or right_part is None or not _is_equal(left_part, right_part):
            return [f"{left.name}: {left_part} instead of {right_part}"]
    return []


def _parts(path: Path) -> Iterator[str]:
    """The elements, attributes and texts, in order. Texts have no numbers that may differ."""
    order: defaultdict[str, str] = defaultdict(lambda: f"id-{len(order)}")
    for element in ET.fromstring(path.read_text()).iter():
        yield element.tag
        yield from ("text", *(element.text or "").split())
        for key, value in element.attrib.items():
            yield f"{key}: " + _HASH.sub(lambda match: order[match[0]], value)


def _is_equal(left: str, right: str) -> bool:
    if ": " not in left:
        return left == right
    if _NUMBER.sub("", left) != _NUMBER.sub("", right):
        return False
    pairs = zip(_NUMBER.findall(left), _NUMBER.findall(right), strict=True)
    return all(abs(float(a) - float(b)) <= _TOLERANCE for a, b in pairs)
