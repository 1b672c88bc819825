"""What every book does, wherever it keeps the state: subclasses say where by the fixture `book`."""

import pytest

from nodewise.cpu import book as books
from nodewise.cpu import state
from nodewise.cpu.book import Book, Intent
from nodewise.cpu.reconfigure import Move
from nodewise.cpu.state import State, Task
from nodewise.errors import Conflict, Unavailable
from nodewise.kube.api import NotFound

TASK = Task(17, 5, "one", "pod", "container")
FREE = state.from_lists(
    {"exclusive": {0: ("0,4", "1,5"), 1: ()}, "shared": {0: ("2,6",), 1: ()}, "infra": {0: ("3,7",), 1: ()}}
)
HELD = FREE.mapped(lambda _, slot: (TASK,) if slot.text in {"0,4", "2,6"} else slot.tasks)
MOVE = Move(TASK, frozenset({1, 5}), frozenset({0, 4}))
INTENT = Intent(HELD, Task(3, 4, "one"), "2026-01-01T00:00:00Z", (MOVE,), {"18-6": frozenset({5})})


class BookSuite:
    def test_there_is_nothing_at_first(self, book: Book) -> None:
        with pytest.raises(NotFound):
            book.read()

    def test_what_was_written_is_read(self, book: Book) -> None:
        book.create(HELD)
        assert book.read()[::2] == (HELD, None)

    def test_what_is_there_is_not_created(self, book: Book) -> None:
        book.create(HELD)
        with pytest.raises(Conflict):
            book.create(FREE)
        assert book.read().state == HELD

    def test_the_one_that_read_first_and_wrote_second_hears_of_it(self, book: Book) -> None:
        """Case 102."""
        book.create(FREE)
        one, other = book.read(), book.read()
        book.replace(one.version, HELD)
        with pytest.raises(Conflict):
            book.replace(other.version, FREE)
        assert book.read().state == HELD

    def test_what_came_back_is_not_what_was_read(self, book: Book) -> None:
        book.create(FREE)
        first = book.read()
        book.replace(first.version, HELD)
        book.replace(book.read().version, FREE)
        with pytest.raises(Conflict):
            book.replace(first.version, HELD)

    def test_pools_come_and_go(self, book: Book) -> None:
        book.create(HELD)
        fewer = State({"infra": state.pool("infra", {0: [state.slot("0-3", tasks=[TASK])]})})
        book.replace(book.read().version, fewer)
        assert book.read().state == fewer
        book.replace(book.read().version, HELD)
        assert book.read().state == HELD

    def test_an_intent_stands_beside_the_state_until_it_is_taken_back(self, book: Book) -> None:
        book.create(FREE)
        book.replace(book.read().version, FREE, INTENT)
        assert book.read()[::2] == (FREE, INTENT)
        with pytest.raises(Unavailable, match="being reconfigured by process 3"):
            books.change(book, lambda stored: (HELD, None), lambda number: None)
        books.change(book, lambda stored: (HELD, None), lambda number: None, whatever=True)
        assert book.read()[::2] == (HELD, INTENT)
        book.replace(book.read().version, HELD)
        assert book.read()[::2] == (HELD, None)

    def test_it_is_deleted_as_it_was_read(self, book: Book) -> None:
        book.create(FREE)
        old = book.read()
        book.replace(old.version, HELD)
        with pytest.raises(Conflict):
            book.delete(old.version)
        book.delete(book.read().version)
        with pytest.raises(NotFound):
            book.read()
        book.create(FREE)
        assert book.read().state == FREE
