"""Merges struct types: each agent declares the fields of nodes and pods that it reads, and the reflector decodes the
union. So a new field changes only one folder, and unused fields are not decoded.
"""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET
from msgspec.structs import FieldInfo

Declared = type[msgspec.Struct]


class ObjectMeta(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """The fields of `metadata` that every merged type has."""

    name: str
    namespace: str = ""
    uid: str = ""


class Object(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The fields that a store needs (`store.KubernetesObject`)."""

    metadata: ObjectMeta


class ReadKeys(NamedTuple):
    """Which entries of a dict an agent reads: `labels: Annotated[dict[str, str] | None, ReadKeys(("app",))] = None`.

    A store keeps only the entries that some agent reads, because an object can have a megabyte of labels and a quarter
    of annotations. A declaration without this keeps all of them. In requests, the dict has all entries.
    """

    keys: tuple[str, ...]
    bytes_field: str = ""
    """The name of an integer field of the same struct: the bytes of all keys and values, where some were not kept; 0
    where all were. Empty if no agent needs it."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of further keys that are read. The declaring agent limits how many of these entries it keeps."""


_OURS: Final = (Object, ObjectMeta)
"""Every object has the fields that these types require, so defaults of agents for them do not matter."""

_REQUIRED_NAME: Final = ".metadata.name"

_OPTIONS: Final[Mapping[str, Any]] = {"frozen": True, "gc": False, "kw_only": True}
"""`gc=False`: traversing 50,000 pods in the garbage collector would block the event loop. Declare tuples, not lists,
for the same reason: the collector stops tracking tuples without tracked items.
"""


def merge(base_name: str, *declared: Declared) -> type[Any]:
    """A frozen struct named `base_name` with the fields of `Object` and of all `declared`; nested structs are merged.

    Fields with the same encoded name must have the same name in Python, type and default. TypeError names the field and
    both declarations if they differ.
    """
    return _merge_structs(base_name, (Object, *declared))


def _merge_structs(path: str, declared: tuple[Declared, ...]) -> type[Any]:
    """The union of structs; `path` is their path for messages, such as `Node.status`."""
    unique = tuple(dict.fromkeys(declared))
    declarations: dict[str, list[tuple[Declared, FieldInfo]]] = {}
    for struct in unique:
        for field in msgspec.structs.fields(struct):
            declarations.setdefault(field.encode_name, []).append((struct, field))
    fields = [
        _merge_field_declarations(f"{path}.{wire}", wire, owners) for wire, owners in declarations.items()
    ]
    type_name = "".join(part[:1].upper() + part[1:] for part in path.split("."))  # NodeStatusNodeInfo
    return msgspec.defstruct(type_name, fields, **_OPTIONS)


def _merge_field_declarations(
    path: str, wire: str, owners: list[tuple[Declared, FieldInfo]]
) -> tuple[str, Any, Any]:
    """One field: name in Python, type and default. TypeError if the declarations differ."""
    first, field = owners[0]
    type_, default = field.type, _comparable_default(field)
    for struct, other in owners[1:]:
        if other.name != field.name:
            raise _conflict_error(path, first, field.name, struct, other.name)
        type_ = _merge_types(path, (first, type_), (struct, other.type))
        # `first` may be merged from ours and others
        is_ours = first in _OURS or path.endswith(_REQUIRED_NAME)
        if not is_ours and (otherwise := _comparable_default(other)) != default:
            raise _conflict_error(path, first, _type_text(default), struct, _type_text(otherwise))
    return field.name, type_, _msgspec_field_definition(wire, type_, default)


Side = tuple[Declared, Any]


def _merge_types(path: str, left: Side, right: Side) -> Any:
    """The common type of both sides: structs are merged at any depth; all other types must be equal."""
    (first, a), (second, b) = left, right
    if a == b:
        return a
    (a, left_keys), (b, right_keys) = split_read_keys(a), split_read_keys(b)
    if left_keys is not None or right_keys is not None:
        merged = _merge_types(path, (first, a), (second, b))
        read_keys = _merge_read_keys(left_keys, right_keys)
        return merged if read_keys is None else Annotated[merged, read_keys]
    if _is_struct(a) and _is_struct(b):
        return _merge_structs(path, (a, b))
    origin = _type_origin(a)
    parts, others = get_args(a), get_args(b)
    if origin is None or origin != _type_origin(b) or len(parts) != len(others):
        raise _conflict_error(path, first, _type_text(a), second, _type_text(b))
    agreed = [
        _merge_types(path, (first, x), (second, y))
        for x, y in zip(_sorted_type_arguments(a), _sorted_type_arguments(b), strict=True)
    ]
    return Union[tuple(agreed)] if origin is Union else origin[tuple(agreed)]  # noqa: UP007


def split_read_keys(type_: Any) -> tuple[Any, ReadKeys | None]:
    """A type without its `ReadKeys`, and these."""
    if get_origin(type_) is Annotated:
        inner, *metadata = get_args(type_)
        for entry in metadata:
            if isinstance(entry, ReadKeys):
                return inner, entry
    return type_, None


def _merge_read_keys(left: ReadKeys | None, right: ReadKeys | None) -> ReadKeys | None:
    """The keys that either reads; None if one of them reads all."""
    if left is None or right is None:
        return None
    keys, prefixes = {*left.keys, *right.keys}, {*left.prefixes, *right.prefixes}
    bytes_field = left.bytes_field or right.bytes_field
    return ReadKeys(tuple(sorted(keys)), bytes_field, tuple(sorted(prefixes)))


def _type_origin(type_: Any) -> Any:
    """The origin of a type, the same for `X | Y` and `Union[X, Y]`."""
    origin: Any = get_origin(type_)
    return Union if origin is UnionType else origin


def _sorted_type_arguments(type_: Any) -> list[Any]:
    """The arguments of a type; those of a union with structs first, as their order has no meaning."""
    parts = list(get_args(type_))
    if _type_origin(type_) is Union:
        parts.sort(key=lambda part: (part is NoneType, not _is_struct(part), _type_text(part)))
    return parts


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


_EMPTY: Final = "a struct of defaults"
"""Represents a default such as `status: Status = Status()`: the merged type has such a default, too."""


def _comparable_default(field: FieldInfo) -> Any:
    """The default of a field in a comparable form; NODEFAULT for a required field."""
    factory = field.default_factory
    default = field.default if factory is NODEFAULT else factory
    struct = default if _is_struct(default) else type(default)
    if _is_struct(struct) and (default is struct or default == struct()):
        return _EMPTY
    return default


def _msgspec_field_definition(wire: str, type_: Any, default: Any) -> Any:
    if default is _EMPTY:
        struct = type_ if _is_struct(type_) else next(part for part in get_args(type_) if _is_struct(part))
        return msgspec.field(default=struct(), name=wire)
    if callable(default):
        return msgspec.field(default_factory=default, name=wire)
    return msgspec.field(name=wire) if default is NODEFAULT else msgspec.field(default=default, name=wire)


def _type_text(value: Any) -> str:
    if value is NODEFAULT or value is UNSET:
        return "no default"
    return getattr(value, "__qualname__", "") if isinstance(value, type) else repr(value)


def _conflict_error(path: str, first: Declared, actual: str, second: Declared, other: str) -> TypeError:
    a, b = (f"{struct.__module__}.{struct.__qualname__}" for struct in (first, second))
    return TypeError(f"{path}: {a} declares {actual}, {b} declares {other}; they must agree")
