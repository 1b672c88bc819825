import pytest

from nodewise.base.errors import Unavailable
from nodewise.kube.http_client import LineSplitter


def test_a_line_is_given_when_its_end_comes() -> None:
    cutter = LineSplitter()
    assert list(cutter.feed(b'{"a"')) == []
    assert list(cutter.feed(b': 1}\n{"b"')) == [b'{"a": 1}']
    assert cutter.rest() == b'{"b"'


def test_windows_ends_and_empty_lines_do_not_matter() -> None:
    assert list(LineSplitter().feed(b"a\r\n\r\n\nb\n")) == [b"a", b"b"]


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    cutter = LineSplitter(longest_bytes=10)
    assert list(cutter.feed(b"12345\n1234")) == [b"12345"]
    with pytest.raises(Unavailable, match="a line of more than 10 bytes"):
        list(cutter.feed(b"5678901"))
