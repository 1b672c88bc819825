"""Compares responses and pods with what a row expects."""

import re
from typing import Final

import httpx2

from tests.cluster.api_client import Object
from tests.conformance.gas import node_and_pod_notation
from tests.conformance.gas.case_table_rows import PlacementCase
from tests.filter_responses import rejected_nodes

PREFIX: Final = "Not enough GPU-resources for deployment: "
REASONS: Final = {
    "WNF": "will not fit",
    "BA": "bad args",
    "MA": "malformed annotation",
    "RC": "resources conflict",
}


def check_filtered(case: PlacementCase, answer: httpx2.Response) -> None:
    """Check that the expected nodes are kept in order, and that each other node has the expected reason."""
    assert answer.status_code == 200, answer.text
    response_body = answer.json()
    row, expect = case.row, case.row.expect
    assert response_body["Error"] == ""
    failed_nodes = rejected_nodes(response_body)
    assert response_body["NodeNames"] == [f"{case.tag}-{name}" for name in row.kept], failed_nodes
    failed = {name: expect.failed.get(name, expect.why) for name in row.names if name not in row.kept}
    assert failed_nodes.keys() == {f"{case.tag}-{name}" for name in failed}
    for name, why in failed.items():
        text = failed_nodes[f"{case.tag}-{name}"]
        assert begins(text, PREFIX + REASONS[why] if why in REASONS else why), text


def check_refused(case: PlacementCase, answer: httpx2.Response, pod: Object) -> None:
    """Check that the bind is refused with the reason alone, without `PREFIX`, and that the pod is unchanged."""
    assert answer.status_code == 404, answer.text
    error = answer.json()["Error"]
    assert begins(error, REASONS[case.row.expect.why]), error
    assert "nodeName" not in pod["spec"]
    assert pod["metadata"].get("annotations", {}) == case.row.annotations


def check_bound(case: PlacementCase, answer: httpx2.Response, pod: Object) -> None:
    """Check that the bind succeeds, that the pod is on the first kept node, and that its annotations name its GPUs."""
    expect = case.row.expect
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"Error": ""}
    assert pod["spec"]["nodeName"] == f"{case.tag}-{case.row.kept[0]}"
    annotations = pod["metadata"].get("annotations", {})
    assert annotations.items() >= case.row.annotations.items()
    assert annotations.get(node_and_pod_notation.CARDS) == expect.cards
    check_tiles(annotations.get(node_and_pod_notation.TILES), expect.tiles)
    assert bool(re.fullmatch(r"\d{19}", annotations.get("gas-ts", ""))) == (expect.cards is not None)
    names = [container["name"] for container in pod["spec"]["containers"]]
    for name, cards in zip(names, (expect.cards or "|" * (len(names) - 1)).split("|"), strict=True):
        assert annotations.get(f"cards.nodewise.io/{name}", "") == cards.replace("card", "")


def check_tiles(actual: str | None, expected: str | None) -> None:
    """Check that the tiles are equal. If the row has braces, the order within an entry does not matter."""
    if expected is None or actual is None or "{" not in expected:
        assert actual == expected
    else:
        assert in_order(actual) == in_order(expected)


def in_order(tiles: str) -> str:
    """The text with the tiles of each entry sorted."""
    return re.sub(
        r"gt[\d+gt]*", lambda entry: "+".join(sorted(entry[0].split("+"))), re.sub("[{}]", "", tiles)
    )


def begins(text: str, known: str) -> bool:
    """Whether a text is the known one, or continues it after a colon."""
    return text == known or text.startswith(f"{known}: ")
