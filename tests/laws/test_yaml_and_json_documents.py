"""YAML and JSON documents are read with their meaning; a malformed document is an error, never a crash."""

import json
from contextlib import suppress
from typing import Any

import msgspec
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nodewise.base.errors import BadInput
from nodewise.kube import object_files, struct_type_merge

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False, width=32)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4)


class Quoting(yaml.SafeDumper):
    """A dumper that quotes all texts. Without quotes, `N` and `1e3` are texts in PyYAML but not in Kubernetes."""


Quoting.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


@settings(deadline=None)
@given(st.lists(OBJECTS, max_size=4))
@example([{"": "N"}, {"y": "1e3"}])
def test_yaml_is_read_as_the_json_that_it_stands_for(written: list[dict[str, Any]]) -> None:
    text = yaml.dump_all(written, Dumper=Quoting, allow_unicode=True, explicit_start=True)
    parsed = [json.loads(data) for _, data in object_files.split_documents(text.encode(), "here")]
    assert parsed == written


@settings(deadline=None)
@given(st.lists(OBJECTS, min_size=1, max_size=4), st.sampled_from(["", "\n", " \n\n"]))
def test_json_documents_may_follow_each_other(written: list[dict[str, Any]], between: str) -> None:
    text = between.join(map(json.dumps, written))
    assert [json.loads(data) for _, data in object_files.split_documents(text.encode(), "here")] == written


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text("{}[]:-,&*!?|>'\"#%@` \n\tabc019.", max_size=60).map(str.encode))
@example(b"[" * 100_000)
@example(b"- " * 100_000)
@example(b"{a: " * 100_000)
@example(b"a: &a [*a]")
def test_rubbish_is_bad_input_or_documents(data: bytes) -> None:
    with suppress(BadInput):
        for number, document in object_files.split_documents(data, "here"):
            assert number >= 1
            json.loads(document)


class OneMeta(msgspec.Struct, frozen=True):
    labels: dict[str, str] = {}


class One(msgspec.Struct, frozen=True):
    metadata: OneMeta


class TwoSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class TwoMeta(msgspec.Struct, frozen=True):
    annotations: dict[str, str] = {}
    uid: str = ""


class Two(msgspec.Struct, frozen=True):
    metadata: TwoMeta
    spec: TwoSpec = TwoSpec()


LABELS = st.dictionaries(TEXTS, TEXTS, max_size=3)
PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": TEXTS},
            optional={"labels": LABELS, "annotations": LABELS, "uid": TEXTS, "namespace": TEXTS},
        )
    },
    optional={"spec": st.fixed_dictionaries({}, optional={"nodeName": TEXTS, "priority": st.integers()})},
)


@settings(deadline=None)
@given(PODS, st.permutations([One, Two]))
def test_a_merged_type_decodes_the_same_as_each_declared_type(pod: dict[str, Any], order: list[Any]) -> None:
    data = msgspec.json.encode(pod)
    merged = msgspec.json.decode(data, type=struct_type_merge.merge("Pod", *order))
    first, two = msgspec.json.decode(data, type=One), msgspec.json.decode(data, type=Two)
    assert merged.metadata.labels == first.metadata.labels
    assert merged.metadata.annotations == two.metadata.annotations
    assert merged.metadata.uid == two.metadata.uid
    assert merged.spec.node_name == two.spec.node_name
    assert merged.metadata.name == pod["metadata"]["name"]
