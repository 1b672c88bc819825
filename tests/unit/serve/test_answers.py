import asyncio

import pytest

from nodewise import errors
from nodewise.errors import NodewiseError, Problem
from nodewise.serve import answers
from nodewise.serve.answers import Response


def kinds() -> list[type[NodewiseError]]:
    found = [NodewiseError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return [kind for kind in found if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_error_has_a_status_of_its_own(kind):
    assert kind in answers.STATUS


def test_a_kind_within_a_kind_has_its_status():
    class Special(errors.Conflict):
        pass

    assert answers.problem(Special("x")).status == 409


def test_the_words_on_the_wire():
    response = answers.refusal(431, Problem("header", "9000 bytes", "at most 8192"))
    assert answers.wire(response) == (
        b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
        b"content-type: application/json\r\ncontent-length: 161\r\nconnection: close\r\n\r\n"
        b'{"error":"Request Header Fields Too Large: header: 9000 bytes; wanted at most 8192",'
        b'"problems":[{"field":"header","seen":"9000 bytes","wanted":"at most 8192"}]}\n'
    )


def test_pieces_on_the_wire_are_joined():
    assert answers.wire(Response(200, [b"a", b"b"], "text/plain")).endswith(b"\r\n\r\nab")


def test_each_piece_of_a_large_answer_goes_out_in_a_step_of_its_own():
    told = []

    async def to(message):
        told.append(message.get("body", b"")[:1])

    async def others():
        while True:
            told.append("another's step")
            await asyncio.sleep(0)

    async def sent():
        other = asyncio.create_task(others())
        bodies = [letter * answers.PIECE_BYTES for letter in (b"a", b"b")]
        await answers.send(Response(200, bodies), to)
        other.cancel()

    asyncio.run(sent())
    for letter in (b"a", b"b"):
        assert told[told.index(letter) - 1] == "another's step"
