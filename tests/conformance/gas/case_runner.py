"""Runs the cases of the tables in an environment with a real or an in-memory API server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from tests.conformance.gas import case_table_rows, expectation_checks, story_environment
from tests.conformance.gas.case_table_rows import GasHttpRow, PlacementCase
from tests.conformance.gas.story_environment import GasApiServer, GasEnvironment

CASES: Final = sorted(case_table_rows.placing(), key=lambda case: case.row.flags)
REQUESTS: Final = case_table_rows.http()
NODE: Final = "http-n1"
ORDINARY: Final = REQUESTS[0]


def environment_with_cases(api_server: GasApiServer, folder: Path) -> Iterator[GasEnvironment]:
    """An environment whose cluster has the objects of all rows before the first process starts."""
    made = GasEnvironment(api_server, folder)
    try:
        made.create_objects(CASES)
        made.node(NODE, "gn=0.1; i915=16")
        yield made
    finally:
        made.close()


def check_placement(on: GasEnvironment, case: PlacementCase) -> None:
    """Filter a pod, bind it, and compare what the API server stores with the row."""
    row = case.row
    served = on.extender(row.flags)
    pod = on.pod(f"{case.tag}-p", row.pod, case.driver, **row.annotations)
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    expectation_checks.check_filtered(
        case, on.filter(served, pod, [f"{case.tag}-{node}" for node in row.names])
    )
    node = f"{case.tag}-{(row.kept or row.names)[0]}"
    answer = on.bind(served, name, uid, node)
    if not row.kept:
        expectation_checks.check_refused(case, answer, on.find(name))
        return
    expectation_checks.check_bound(case, answer, on.find(name))
    if row.expect.books is not None:
        assert on.allocations(served, node) == story_environment.with_full_names(
            row.expect.books, case.driver
        )


def check_request(on: GasEnvironment, row: GasHttpRow) -> None:
    """Check the response to a row's request, and that the process still serves ordinary requests."""
    expect = row.expect
    if expect.refused:
        with pytest.raises(httpx2.TransportError) as caught:
            on.call(row, NODE)
        assert expect.refused in str(caught.value).replace("_", " ").lower()
    else:
        _check(row, on.call(row, NODE))
    assert on.extender().process.is_running
    assert on.call(ORDINARY, NODE).status_code == 200


def _check(row: GasHttpRow, answer: httpx2.Response) -> None:
    expect = row.expect
    assert answer.status_code == expect.status, answer.text
    assert answer.headers["Content-Type"] == expect.content_type
    if expect.field:
        assert expect.field in [problem["field"] for problem in answer.json()["problems"]]
    if expect.answer is not None:
        assert answer.text.endswith("\n")
        assert answer.json() == _named(expect.answer)


def _named(answer: Any) -> Any:
    """The expected response of the table, with the name of the test node in place of `n1`."""
    return json.loads(json.dumps(answer).replace('"n1"', f'"{NODE}"'))
