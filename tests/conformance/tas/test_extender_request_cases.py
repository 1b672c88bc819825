"""The numbered cases of Telemetry Aware Scheduling with a real process over mutual TLS.

Every case ends with the process alive and an ordinary request answered on a connection that all of them share.
"""

from collections.abc import Iterator

import msgspec
import pytest

from tests.conformance.tas import case_cluster_objects, request_bodies, request_cases
from tests.conformance.tas.case_table_rows import ExpectedResponse, HttpCall
from tests.conformance.tas.extender_process import CaseExtender, CaseResponse, ClosedConnection
from tests.conformance.tas.request_cases import TasCase

EARLY_S = 0.5  # a timer of the server's event loop may expire a little before the client's time
LATE_S = 60.0  # generous, because the test does not measure speed

FIRST = request_cases.filtering()[0]


class FilteredNodeList(msgspec.Struct):
    items: list[msgspec.Raw]
    metadata: dict[str, str]


class FilterResult(msgspec.Struct, rename="pascal", forbid_unknown_fields=True):
    nodes: FilteredNodeList | None
    node_names: list[str] | None
    failed_nodes: dict[str, str] | None
    failed_and_unresolvable_nodes: dict[str, str] | None
    error: str


class HostPriority(msgspec.Struct, rename="pascal", forbid_unknown_fields=True):
    host: str
    score: int


@pytest.fixture(scope="module")
def extender(tmp_path_factory) -> Iterator[CaseExtender]:
    made = CaseExtender(tmp_path_factory.mktemp("tas"))
    case_cluster_objects.write_clusters(request_cases.all_cases(), made.objects)
    with made:
        made.first = made.ask(FIRST.path, request_bodies.body(FIRST))
        yield made


@pytest.fixture(scope="module")
def closed_connections(extender):
    """The connections that the server has to close. They are opened at the same time."""
    talking = [case for case in request_cases.http() if case.row.connect.send is not None]
    return {case.tag: extender.listen(case.row.connect) for case in talking}


@pytest.fixture(autouse=True)
def check_running(extender, closed_connections) -> Iterator[None]:
    yield
    assert extender.is_running
    answer = extender.ask("/scheduler/filter", b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":["n1"]}')
    assert answer.status == 200
    assert msgspec.json.decode(answer.body, type=FilterResult).node_names == ["n1"]


def test_the_first_answer_after_readiness_is_right(extender):
    check(FIRST, extender.first)


def each(cases: list[TasCase]):
    return pytest.mark.parametrize("case", cases, ids=map(str, cases))


@each(
    [
        *request_cases.filtering(),
        *request_cases.prioritizing(),
        *request_cases.operators(),
        *request_cases.violations(),
    ]
)
def test_answers(extender, case):
    check(case, extender.ask(case.path, request_bodies.body(case)))
    check_log(case, extender)


@each([case for case in request_cases.http() if case.row.connect.send is None])
def test_requests(extender, case):
    row, body = case.row, request_bodies.body(case)
    if row.expect.refused:
        assert row.expect.refused in extender.refusal(row.connect)
        return
    check(case, extender.call(row.connect, row.call or HttpCall(), body))
    check_log(case, extender)


@each([case for case in request_cases.http() if case.row.connect.send is not None])
def test_connections_that_the_server_ends(closed_connections, case):
    response: ClosedConnection = closed_connections[case.tag].result()
    expect = case.row.expect
    if expect.closed_after_s:
        assert expect.closed_after_s - EARLY_S < response.after_s < expect.closed_after_s + LATE_S
    if expect.status == 200:
        assert response.data == b""
        return
    head, _, body = response.data.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == expect.status
    if expect.field:
        assert expect.field in fields(body)
    assert expect.text.encode() in body


def check(case: TasCase, answer: CaseResponse) -> None:
    """Check that the response is as the row expects and has the form of every response."""
    expect = case.row.expect
    assert answer.status == expect.status, answer.body
    assert answer.content_type == "application/json"
    assert answer.body.endswith(b"\n") or (case.row.call is not None and case.row.call.method == "HEAD")
    if expect.protocol:
        assert answer.protocol == expect.protocol
    if expect.field:
        assert expect.field in fields(answer.body)
    if expect.scores is not None:
        listed = msgspec.json.decode(answer.body, type=list[HostPriority])
        assert [(priority.host, priority.score) for priority in listed] == list(expect.scores.items())
    if expect.kept is not None:
        check_filtered(case, msgspec.json.decode(answer.body, type=FilterResult), expect)


def check_filtered(case: TasCase, result: FilterResult, expect: ExpectedResponse) -> None:
    assert result.error == ""
    failed = result.failed_nodes
    if failed is not None:
        assert failed == {}, "evicting pods does not change a metric"
        unresolvable = result.failed_and_unresolvable_nodes or {}
        failed = {name: case.own(reason.encode()).decode() for name, reason in unresolvable.items()}
    assert failed == expect.failed
    ask = case.row.ask
    assert ask is not None
    if case.form == "names":
        assert (result.node_names, result.nodes) == (list(expect.kept or ()), None)
        return
    assert result.node_names is None
    assert result.nodes is not None
    if case.form == "whole":
        assert [bytes(item).decode() for item in result.nodes.items] == [
            request_bodies.node(ask, name) for name in expect.kept or ()
        ]
    else:
        names = [msgspec.json.decode(item)["metadata"]["name"] for item in result.nodes.items]
        assert names == list(expect.kept or ())
    if expect.list_metadata is not None:
        assert result.nodes.metadata == expect.list_metadata


def check_log(case: TasCase, extender: CaseExtender) -> None:
    wanted = case.row.expect.logged
    if wanted is None:
        return
    lines = [case.own(str(line).encode()).decode() for line in extender.events(wanted.event)]
    assert any(all(word in line for word in wanted.about) for line in lines)


def fields(body: bytes) -> list[str]:
    """The fields that an error response names."""
    return [problem["field"] for problem in msgspec.json.decode(body)["problems"]]
