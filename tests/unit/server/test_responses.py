import pytest

from nodewise.base import errors
from nodewise.base.errors import NodewiseError, Problem
from nodewise.server import application
from nodewise.server.application import Response


def kinds() -> list[type[NodewiseError]]:
    """The kinds of errors; a kind within a kind has its status."""
    kinds = [NodewiseError, *NodewiseError.__subclasses__()]
    return [kind for kind in kinds if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_error_has_a_status_of_its_own(kind):
    assert kind in application.STATUS


def test_a_kind_within_a_kind_has_its_status():
    class Special(errors.Conflict):
        pass

    assert application.response_from_error(Special("x")).status == 409


def test_the_words_on_the_wire():
    response = application.refusal_response(431, Problem("header", "9000 bytes", "at most 8192"))
    assert b"".join(application.encode_response(response, close=True)) == (
        b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
        b"content-type: application/json\r\ncontent-length: 163\r\nconnection: close\r\n\r\n"
        b'{"error":"Request Header Fields Too Large: header: 9000 bytes; expected at most 8192",'
        b'"problems":[{"field":"header","seen":"9000 bytes","wanted":"at most 8192"}]}\n'
    )


def test_pieces_on_the_wire_are_joined():
    assert b"".join(
        application.encode_response(Response(200, [b"a", b"b"], "text/plain"), close=True)
    ).endswith(b"\r\n\r\nab")


def test_many_parts_go_out_in_few_pieces() -> None:
    pieces = list(application.encode_response(Response(200, [b"ab" * 500] * 1000), close=False))
    assert b"".join(pieces).endswith(b"\r\n\r\n" + b"ab" * 500_000)
    assert len(pieces) <= 10


def test_a_small_response_goes_out_at_once() -> None:
    (whole,) = application.encode_response(Response(200, [b"a", b"b"]), close=False, date=b"today")
    assert whole == (
        b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\nab"
    )


def test_head_has_the_length_and_no_body() -> None:
    (head,) = application.encode_response(Response(200, b"abc"), close=False, with_body=False)
    assert b"content-length: 3\r\n" in head
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("length", [2**18 - 1, 2**18, 2**18 + 1, 10**6])
@pytest.mark.parametrize("form", [lambda body: body, lambda body: [body], lambda body: [body[:7], body[7:]]])
def test_a_large_body_is_cut_without_loss(form, length):
    body = (bytes(range(251)) * (length // 251 + 1))[:length]
    assert b"".join(application.split_body(form(body))) == body
