"""CEL selectors of DeviceClasses and ResourceClaims: whether a device matches.

A result is true, false or None (unknown). It is unknown where kube-scheduler would report an error, where the
expression uses a function of Kubernetes that is not implemented here, and where the expression costs too much; the
devices of the node are then not predicted, and the node is never rejected for it.

Tenants write expressions. The library refuses more than 10,000 iterations, but nested loops, bindings and replacements
multiply time and text, so an expression with them may have few characters. Quantities and versions are maps with one
key here, since the library has no types of its own. Without the library, which has no package for some platforms, all
results are unknown. Source: Kubernetes 1.37 `dynamic-resource-allocation/cel/compile.go`,
`apiserver/pkg/cel/library/quantity.go` and `semverlib.go`.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, Final

from nodewise.base import quantity
from nodewise.devices.resource_slices import Device, SemanticVersion

_LONGEST: Final = (2048, 1024, 256)
"""The most characters of an expression that is evaluated, by the number of parts that multiply time or text. An
evaluation then takes at most about 40 ms, and a compiled program about 120 bytes for each character.
"""
_MOST_EXPRESSIONS: Final = 128
_MOST_RESULTS: Final = 1 << 12
"""A result takes up to about 4 KB, if the expression reads all attributes of a device."""
_QUANTITY: Final = "quantity"
_VERSION: Final = "semver"
_DOMAIN: Final = re.compile(
    r"""(device\s*\.\s*(?:attributes|capacity)\s*\[)\s*("[^"\\]*"|'[^'\\]*'|device\s*\.\s*driver)\s*\]"""
)
_MULTIPLYING: Final = re.compile(
    r"\b(?:all|bind|exists\w*|filter|format|join|map|opt\w*Map|quote|replace|transform\w*)\b"
)
"""Also in strings and comments, which are not distinguished."""
_PLAIN_READ: Final = re.compile(
    rf"""{_DOMAIN.pattern}\s*\.\s*\??\s*[a-zA-Z_]|\bdevice\s*\.\s*(?:driver|allowMultipleAllocations|capacity)\b"""
    r"""|\bin\s+device\s*\.\s*attributes\b(?!\s*[.\[])"""
)
"""Reads that name the attribute."""
_SEMVER: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?"
)


def device_matches(expression: str, device: Device) -> bool | None:
    """Whether a device matches an expression; None if that is unknown. Results for equal devices are kept."""
    if not 0 < len(expression) <= _LONGEST[0]:
        return None
    multiplying = count_multiplying_parts(expression)
    if multiplying >= len(_LONGEST) or len(expression) > _LONGEST[multiplying]:
        return None
    reads_all = _reads_all(expression)
    # with their types, because True == 1
    attributes = tuple(
        (name, type(value), value)
        for name, value in device.attributes.items()
        if reads_all or _is_named(expression, name)
    )
    domains = frozenset(name.partition("/")[0] for name in device.attributes)
    capacity = tuple((name, each.value) for name, each in device.capacity.items())
    return _evaluate(
        expression, device.driver, device.allow_multiple_allocations, attributes, domains, capacity
    )


@lru_cache(_MOST_EXPRESSIONS)
def count_multiplying_parts(expression: str) -> int:
    """The number of loops, bindings and other parts that multiply time or text. Without one an evaluation is fast."""
    return len(_MULTIPLYING.findall(expression))


@lru_cache(_MOST_EXPRESSIONS)
def _reads_all(expression: str) -> bool:
    """Whether it may read an attribute without its name."""
    return re.search(r"\bdevice\b", _PLAIN_READ.sub("", expression)) is not None


@lru_cache(_MOST_EXPRESSIONS * 32)
def _is_named(expression: str, name: str) -> bool:
    return name.partition("/")[2] in expression


@lru_cache(_MOST_RESULTS)
def _evaluate(
    expression: str,
    driver: str,
    allow_multiple: bool,
    attributes: tuple[tuple[str, type, Any], ...],
    domains: frozenset[str],
    capacity: tuple[tuple[str, int], ...],
) -> bool | None:
    program = _compile(expression)
    if program is None or any(value is None for _, _, value in attributes):
        return None
    values: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
    for name, _, value in attributes:
        domain, _, key = name.partition("/")
        values[domain][key] = [*map(_to_cel, value)] if type(value) is tuple else _to_cel(value)
    amounts: dict[str, dict[str, Any]] = {}
    for name, nano in capacity:
        domain, _, key = name.partition("/")
        amounts.setdefault(domain, {})[key] = {_QUANTITY: str(nano)}
    device = {
        "driver": driver,
        "allowMultipleAllocations": allow_multiple,
        "attributes": values,
        "capacity": amounts,
    }
    try:
        result = program.eval(data={"device": device}).value()
    except (RuntimeError, ValueError, TypeError):
        return None
    return result if isinstance(result, bool) else None


def _to_cel(value: Any) -> Any:
    return {_VERSION: _canonical_version(value.text)} if isinstance(value, SemanticVersion) else value


@lru_cache(_MOST_EXPRESSIONS)
def _compile(expression: str) -> Any:
    """The program; None for an expression that cannot be compiled.

    Kubernetes reads an unknown domain as an empty map, which `has` needs.
    """
    try:
        return _environment().compile(_DOMAIN.sub(r"\1?\2].orValue(dyn({}))", expression))
    except (ImportError, RuntimeError, ValueError, TypeError):
        return None


@cache
def _environment() -> Any:
    """The types, functions and libraries of the expressions. The import takes 15 ms, and most clusters need none."""
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_math, ext_optional, ext_strings

    types = cel.Type
    functions: dict[str, list[Any]] = {}

    def add(name: str, returned: Any, parameters: list[Any], call: Callable[..., Any]) -> None:
        overloads = functions.setdefault(name, [])
        overloads.append(
            cel.Overload(
                f"{name}_{len(overloads)}",
                return_type=returned,
                parameters=parameters,
                is_member=parameters[0] == types.MAP,
                impl=call,
            )
        )

    add("quantity", types.MAP, [types.STRING], lambda text: {_QUANTITY: str(quantity.parse(text))})
    add("isQuantity", types.BOOL, [types.STRING], _parses(quantity.parse))
    add("semver", types.MAP, [types.STRING], lambda text: {_VERSION: _canonical_version(text)})
    add("isSemver", types.BOOL, [types.STRING], _parses(_version_key))
    add("compareTo", types.INT, [types.MAP, types.MAP], _compare)
    add("isLessThan", types.BOOL, [types.MAP, types.MAP], lambda left, right: _compare(left, right) < 0)
    add("isGreaterThan", types.BOOL, [types.MAP, types.MAP], lambda left, right: _compare(left, right) > 0)
    for position, part in enumerate(("major", "minor", "patch")):
        add(part, types.INT, [types.MAP], lambda value, at=position: _version_key(value[_VERSION])[0][at])
    add("sign", types.INT, [types.MAP], lambda value: (_nano(value) > 0) - (_nano(value) < 0))
    add("isInteger", types.BOOL, [types.MAP], lambda value: _nano(value) % quantity.NANO == 0)
    add("asInteger", types.INT, [types.MAP], _as_integer)
    add("asApproximateFloat", types.DOUBLE, [types.MAP], lambda value: _nano(value) / quantity.NANO)
    for name, sign in (("add", 1), ("sub", -1)):
        for kind, read in ((types.MAP, _nano), (types.INT, lambda number: number * quantity.NANO)):
            add(name, types.MAP, [types.MAP, kind], _sum(sign, read))
    extensions = [ext_optional.ExtOptional(), ext_strings.ExtStrings(), ext_math.ExtMath()]
    return cel.NewEnv(
        variables={"device": types.DYN},
        extensions=[*extensions, ext_bindings.ExtBindings()],
        functions=[cel.FunctionDecl(name, overloads) for name, overloads in functions.items()],
    )


def _parses(parse: Callable[[str], Any]) -> Callable[[str], bool]:
    def is_valid(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return is_valid


def _sum(sign: int, read: Callable[[Any], int]) -> Callable[[Any, Any], Mapping[str, str]]:
    return lambda left, right: {_QUANTITY: str(_nano(left) + sign * read(right))}


def _plain(value: Any) -> Any:
    """A value of the library as one of Python."""
    return value.value() if hasattr(value, "value") else value


def _nano(value: Mapping[str, Any]) -> int:
    return int(_plain(value[_QUANTITY]))


def _as_integer(value: Mapping[str, Any]) -> int:
    whole, rest = divmod(_nano(value), quantity.NANO)
    if rest:
        raise ValueError("found a fraction, expected a whole number")
    return whole


def _compare(left: Mapping[str, Any], right: Mapping[str, Any]) -> int:
    if _VERSION in left:
        older, newer = _version_key(_plain(left[_VERSION])), _version_key(_plain(right[_VERSION]))
        return (older > newer) - (older < newer)
    return (_nano(left) > _nano(right)) - (_nano(left) < _nano(right))


def _canonical_version(text: str) -> str:
    """The version without its build, which does not count in comparisons."""
    _version_key(text)
    return text.partition("+")[0]


def _version_key(text: str) -> tuple[tuple[int, int, int], tuple[Any, ...]]:
    """A key that orders versions as Semantic Versioning 2.0 does. ValueError for other texts."""
    match = _SEMVER.fullmatch(str(_plain(text)))
    if match is None:
        raise ValueError("found another text, expected a semantic version such as 1.2.3")
    major, minor, patch, before = match.groups()
    parts = [
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in (before or "").split(".") if part
    ]
    # a version without a pre-release is newer than all pre-releases of it
    return (int(major), int(minor), int(patch)), tuple(parts) if parts else ((2, 0, ""),)
