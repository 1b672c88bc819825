# ruff: noqa: E501 - rows of a table
"""Generated request bodies: the running process answers each of them correctly."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests import short_and_long_case_counts
from tests.hostile import json_strategies, response_checks, three_node_cluster_objects
from tests.hostile.extender_process import AttackedExtender, RawConnection, pod
from tests.hostile.json_strategies import anything, encoded, mostly

VERBS = ("filter", "prioritize", "preempt")
BODIES = short_and_long_case_counts.of(500, 10_000)
PER_EXAMPLE = 25
GENERATED = settings(
    max_examples=BODIES // 2 // PER_EXAMPLE,
    suppress_health_check=list(HealthCheck),
    phases=(
        Phase.explicit,
        Phase.generate,
    ),  # no shrinking: a failure names its body
)

keys = st.sampled_from(
    (
        "Pod", "pod", "POD", "Nodes", "nodes", "NodeNames", "nodenames", "items", "Items", "metadata", "Metadata",
        "name", "namespace", "uid", "labels", "annotations", "spec", "telemetry-policy", "Pods", "UID",
        "NodeNameToVictims", "NodeNameToMetaVictims", "NumPDBViolations",
    )
)  # fmt: skip
names = st.one_of(
    st.sampled_from((*three_node_cluster_objects.NODES, *json_strategies.TEXTS)),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
labels = st.dictionaries(names, mostly(names, keys), max_size=2) | st.just({"telemetry-policy": "demo"})
pods = st.fixed_dictionaries(
    {"metadata": mostly(
        st.fixed_dictionaries(
            {"name": mostly(names, keys)},
            optional={
                "namespace": mostly(st.just("d") | names, keys),
                "uid": mostly(names, keys),
                "labels": mostly(labels, keys),
                "annotations": mostly(labels, keys),
            },
        ),
        keys,
    )},
    optional={"spec": anything(keys)},
)  # fmt: skip
nodes = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({"name": names})}, optional={"spec": anything(keys)}
)
victims = st.fixed_dictionaries(
    {"Pods": mostly(st.lists(st.fixed_dictionaries({"UID": mostly(names, keys)}), max_size=2), keys)},
    optional={"NumPDBViolations": mostly(st.integers(0, 9), keys)},
)


def _either(name: str, form: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: mostly(form, keys)})


candidates_of_request = st.one_of(
    _either("NodeNames", st.lists(mostly(names, keys), max_size=6)),
    _either(
        "Nodes", st.fixed_dictionaries({"items": mostly(st.lists(mostly(nodes, keys), max_size=4), keys)})
    ),
    _either("NodeNameToMetaVictims", st.dictionaries(names, mostly(victims, keys), max_size=4)),
    _either("NodeNameToVictims", st.dictionaries(names, mostly(victims, keys), max_size=4)),
)
requests = st.tuples(
    _either("Pod", pods),
    candidates_of_request,
    st.just({}) | st.dictionaries(keys, anything(keys), max_size=2),
).map(lambda parts: {**parts[2], **parts[0], **parts[1]})


@pytest.fixture(scope="module")
def line(target: AttackedExtender) -> Iterator[RawConnection]:
    """The connection for all bodies. No response may close it."""
    with target.line() as opened:
        yield opened
        answer = opened.ask(
            "/scheduler/filter", encoded({"Pod": pod(), "NodeNames": list(three_node_cluster_objects.NODES)})
        )
        expected = (["n1", "n2"], {three_node_cluster_objects.HOT: three_node_cluster_objects.WHY})
        assert response_checks.check_filtered(answer) == expected


def _candidates(verb: str, body: Any) -> list[str] | None:
    """The candidate names of a body with exact keys; None if the keys are ambiguous."""
    if verb == "preempt" or not isinstance(body, dict) or {"pod", "POD", "nodes", "nodenames"} & body.keys():
        return None
    if isinstance(body.get("Nodes"), dict):
        items = body["Nodes"].get("items")
        return (
            [item["metadata"]["name"] for item in items] if items and "Items" not in body["Nodes"] else None
        )
    return body.get("NodeNames")


def _check(line: RawConnection, verb: str, body: bytes, meant: Any = None) -> None:
    answer = line.ask(f"/scheduler/{verb}", body)
    try:
        response_checks.check(
            verb, answer, _candidates(verb, meant) if meant and answer.status == 200 else None
        )
    except Exception as error:
        raise AssertionError(f"{verb} {body!r}: {error!r}; answered {answer.body!r}") from error


@GENERATED
@given(st.lists(st.tuples(st.sampled_from(VERBS), requests), min_size=PER_EXAMPLE, max_size=PER_EXAMPLE))
def test_any_json(line: RawConnection, bodies: list[tuple[str, Any]]) -> None:
    for verb, body in bodies:
        _check(line, verb, encoded(body), body)


NODE = {"metadata": {"name": "n1"}, "spec": {"a": [1.5e3]}}
GOOD = {
    "filter": encoded({"Pod": pod(), "Nodes": None, "NodeNames": ["n1", "n3", 'a","b', "\U0001f4a5"]}),
    "prioritize": encoded({"Pod": pod(), "Nodes": {"items": [NODE]}}),
    "preempt": encoded(
        {"Pod": pod(), "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}}
    ),
}
SCRAPS = (
    b"", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xc0\xaf", b"\\ud800", b"\\u0000", b"\\x", b'"', b"'", b"\\",
    b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-", b"0x1", b"01", b"1.", b"//",
    b"/**/", b"9" * 400, b" " * 300, b"[" * 1200, b'{"a":' * 1200, b"\r\n\r\n", b"0\r\n\r\n",
)  # fmt: skip
cuts = st.tuples(st.floats(0, 1), st.sampled_from(SCRAPS) | st.binary(max_size=4), st.integers(0, 12))


@GENERATED
@given(
    st.lists(
        st.tuples(st.sampled_from(VERBS), st.lists(cuts, max_size=3)),
        min_size=PER_EXAMPLE,
        max_size=PER_EXAMPLE,
    )
)
def test_any_bytes(line: RawConnection, bodies: list[tuple[str, list[tuple[float, bytes, int]]]]) -> None:
    for verb, edits in bodies:
        body = GOOD[verb]
        for where, scrap, length in edits:
            at = int(where * len(body))
            body = body[:at] + scrap + body[at + length :]
        _check(line, verb, body)
