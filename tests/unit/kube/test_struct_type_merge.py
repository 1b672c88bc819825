"""The union of the fields that agents declare. The declared types have the same form as in the folders of agents."""

from itertools import permutations
from typing import Annotated, Any

import msgspec
import pytest

from nodewise.kube import struct_type_merge
from nodewise.kube.struct_type_merge import ReadKeys


def declare(type_name: str, /, rename: Any = None, **fields: tuple[Any, ...]) -> Any:
    """A struct with these fields, each with its type and perhaps a default."""
    specs = [(field, *spec) for field, spec in fields.items()]
    return msgspec.defstruct(type_name, specs, frozen=True, module=__name__, rename=rename)


LabelFields = declare("LabelFields", labels=(dict[str, str], {}))
OneNode = declare("OneNode", metadata=(LabelFields,))
Resources = declare("Resources", rename="camel", allocatable=(dict[str, str], {}), node_info=(str, ""))
TwoNode = declare("TwoNode", metadata=(LabelFields,), status=(Resources, Resources()))
TaintFields = declare("TaintFields", key=(str,))
Effect = declare("Effect", effect=(str, ""))
OneSpec = declare("OneSpec", taints=(tuple[TaintFields, ...], ()))
SecondSpec = declare("SecondSpec", taints=(tuple[Effect, ...], ()))
OneTainted = declare("OneTainted", spec=(OneSpec, OneSpec()))
TwoTainted = declare("TwoTainted", spec=(SecondSpec, SecondSpec()))
OneMaybe = declare("OneMaybe", spec=(OneSpec | None, None))
TwoMaybe = declare("TwoMaybe", spec=(SecondSpec | None, None))
ResourcesMaybe = declare("ResourcesMaybe", spec=(Resources | None, None))
AppLabels = declare("AppLabels", labels=(Annotated[dict[str, str], ReadKeys(("app",), "size")], {}))
OneLabelled = declare("OneLabelled", metadata=(AppLabels,))
TierLabels = declare(
    "TierLabels", labels=(Annotated[dict[str, str], ReadKeys(("tier", "app"), prefixes=("of/",))], {})
)
TwoLabelled = declare("TwoLabelled", metadata=(TierLabels,))
ByName = declare("ByName", items=(dict[str, TaintFields], {}))
ByNameToo = declare("ByNameToo", items=(dict[str, Effect], {}))


def read(type_: Any, text: str) -> Any:
    return msgspec.json.decode(text, type=type_)


def test_only_the_name_is_required() -> None:
    node = read(struct_type_merge.merge("Node"), '{"metadata": {"name": "a", "more": 1}, "spec": {}}')
    assert (node.metadata.name, node.metadata.namespace, node.metadata.uid) == ("a", "", "")
    assert type(node).__name__ == "Node"


def test_fields_of_several_stand_side_by_side() -> None:
    text = '{"metadata": {"name": "a", "labels": {"k": "v"}}, "status": {"nodeInfo": "i"}}'
    node = read(struct_type_merge.merge("Node", OneNode, TwoNode), text)
    assert node.metadata.labels == {"k": "v"}
    assert node.status.node_info == "i"
    assert node.status.allocatable == {}


@pytest.mark.parametrize(
    ("first", "second", "text", "path"),
    [
        pytest.param(OneTainted, TwoTainted, '"spec": {"taints": [ITEM]}', "spec.taints.0", id="in a list"),
        pytest.param(OneMaybe, TwoMaybe, '"spec": {"taints": [ITEM]}', "spec.taints.0", id="in an optional"),
        pytest.param(ByName, ByNameToo, '"items": {"x": ITEM}', "items.x", id="in a mapping"),
    ],
)
def test_structs_are_merged_at_any_depth(first: Any, second: Any, text: str, path: str) -> None:
    body = text.replace("ITEM", '{"key": "k", "effect": "e"}')
    value = read(struct_type_merge.merge("Node", first, second), f'{{"metadata": {{"name": "a"}}, {body}}}')
    for step in path.split("."):
        value = value[int(step)] if step == "0" else value[step] if step == "x" else getattr(value, step)
    assert (value.key, value.effect) == ("k", "e")


def test_optional_structs_of_any_number_are_merged() -> None:
    for order in permutations((OneMaybe, TwoMaybe, ResourcesMaybe)):
        body = '{"metadata": {"name": "a"}, "spec": {"taints": [{"key": "k"}], "nodeInfo": "i"}}'
        node = read(struct_type_merge.merge("Node", *order), body)
        assert (node.spec.taints[0].key, node.spec.node_info) == ("k", "i")


def test_missing_field_has_the_default_of_the_merged_type() -> None:
    node = read(struct_type_merge.merge("Node", OneTainted, TwoTainted), '{"metadata": {"name": "a"}}')
    assert node.spec.taints == ()


def test_the_order_of_agents_does_not_matter() -> None:
    text = '{"metadata": {"name": "a", "labels": {"k": "v"}}, "status": {"allocatable": {"cpu": "1"}}}'
    first, second = (
        read(struct_type_merge.merge("Node", *order), text)
        for order in ((OneNode, TwoNode), (TwoNode, OneNode))
    )
    assert msgspec.json.decode(msgspec.json.encode(first)) == msgspec.json.decode(msgspec.json.encode(second))


def test_merged_objects_do_not_burden_the_garbage_collector_and_cannot_change() -> None:
    merged = struct_type_merge.merge("Node", OneNode, TwoNode)
    node = read(merged, '{"metadata": {"name": "a"}}')
    assert merged.__struct_config__.gc is False
    with pytest.raises(AttributeError, match="immutable"):
        node.metadata.name = "b"


TextField = declare("TextField", value=(str, ""))
Number = declare("Number", value=(int, 0))
OtherDefault = declare("OtherDefault", value=(str, "x"))
NoDefault = declare("NoDefault", value=(str,))
NestedText = declare("NestedText", spec=(TextField, TextField()))
NestedNumber = declare("NestedNumber", spec=(Number, Number()))
RenamedField = declare("RenamedField", rename={"worth": "value"}, worth=(str, ""))
Several = declare("Several", value=(tuple[str, ...], ()))
SeveralNumbers = declare("SeveralNumbers", value=(tuple[int, ...], ()))


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        pytest.param(
            TextField,
            Number,
            "Node.value: {here}.TextField declares str, {here}.Number declares int",
            id="types",
        ),
        pytest.param(
            TextField, OtherDefault, "TextField declares '', {here}.OtherDefault declares 'x'", id="defaults"
        ),
        pytest.param(
            TextField,
            NoDefault,
            "TextField declares '', {here}.NoDefault declares no default",
            id="no default",
        ),
        pytest.param(NestedText, NestedNumber, "Node.spec.value: {here}.TextField declares str", id="nested"),
        pytest.param(
            TextField,
            RenamedField,
            "TextField declares value, {here}.RenamedField declares worth",
            id="names in Python",
        ),
        pytest.param(
            Several, SeveralNumbers, "Several declares str, {here}.SeveralNumbers declares int", id="items"
        ),
        pytest.param(TextField, Several, "TextField declares str", id="one and several"),
    ],
)
def test_conflict_names_both_declarations(first: Any, second: Any, words: str) -> None:
    with pytest.raises(TypeError) as raised:
        struct_type_merge.merge("Node", first, second)
    assert words.format(here=__name__) in str(raised.value)
    assert str(raised.value).endswith("they must agree")


OwnMeta = declare("OwnMeta", name=(str, "nobody"), generation=(int, 0))
WithOwnMeta = declare("WithOwnMeta", metadata=(OwnMeta, OwnMeta()))


def test_default_of_a_field_of_every_object_is_ignored() -> None:
    node = read(struct_type_merge.merge("Node", WithOwnMeta), '{"metadata": {"name": "a", "generation": 3}}')
    assert (node.metadata.name, node.metadata.generation) == ("a", 3)


OtherMeta = declare("OtherMeta", labels=(dict[str, str] | None, None), name=(str, ""))
WithOtherMeta = declare("WithOtherMeta", metadata=(OtherMeta, OtherMeta()))


def test_a_default_for_the_name_does_not_matter_in_any_order() -> None:
    for declared in ((WithOwnMeta, WithOtherMeta), (WithOtherMeta, WithOwnMeta)):
        node = read(struct_type_merge.merge("Node", *declared), '{"metadata": {"name": "a"}}')
        assert node.metadata.name == "a"


@pytest.mark.parametrize(
    ("declared", "keys"),
    [
        ((OneLabelled, TwoLabelled), ReadKeys(("app", "tier"), "size", ("of/",))),
        ((OneLabelled, OneLabelled), ReadKeys(("app",), "size")),
        ((OneLabelled, OneNode, TwoLabelled), None),
        ((OneNode, TwoLabelled), None),
    ],
)
def test_the_keys_of_all_are_read(declared: tuple[Any, ...], keys: ReadKeys | None) -> None:
    """A declaration without keys reads all."""
    for order in permutations(declared):
        metadata = next(
            field.type
            for field in msgspec.structs.fields(struct_type_merge.merge("Node", *order))
            if field.name == "metadata"
        )
        labels = next(field.type for field in msgspec.structs.fields(metadata) if field.name == "labels")
        assert struct_type_merge.split_read_keys(labels) == (dict[str, str], keys)
