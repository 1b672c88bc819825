"""The store in a directory."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpu_tests.unit.store.store_suite import FREE, HELD, INTENT, StoreSuite
from nodewise.base.errors import BadInput, Conflict, Unavailable
from nodewise_cpu import directory_store
from nodewise_cpu.directory_store import DirectoryStore, TransactionalDirectory
from nodewise_cpu.pool_allocations import Task

DISTRIBUTION = Path(__file__).parents[3]
PIECE = 37
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "cmk"


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if there is one, because fsync on a disk dominates the time of tests with many writes."""
    is_there = os.access(SHARED_MEMORY, os.W_OK)
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if is_there else tmp_path) as folder:
        yield Path(folder)


@pytest.fixture
def store(root: Path) -> DirectoryStore:
    return DirectoryStore(root, 30)


class TestDirectoryStore(StoreSuite):
    pass


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_the_older_program_reads_it(store: DirectoryStore, root: Path) -> None:
    store.create(HELD)
    texts = files(root)
    assert texts["pools/exclusive/exclusive"] == "1"
    assert texts["pools/exclusive/0/0,4/tasks"] == "17"
    assert texts["lock"] == ""
    assert (root / "pools/infra/1").is_dir()


def test_writes_of_cmk_change_the_version(store: DirectoryStore, root: Path) -> None:
    store.create(FREE)
    before = store.read().version
    (root / "pools/exclusive/0/1,5/tasks").write_text("2000, 2001\n")
    held = store.read().allocations.pools["exclusive"].sockets[0][1]
    assert held.tasks == (Task(2000), Task(2001))
    with pytest.raises(Conflict):
        store.replace(before, HELD)


def test_pools_of_the_oldest_names_get_their_present_ones(store: DirectoryStore, root: Path) -> None:
    (root / "pools/dataplane/0/0,4").mkdir(parents=True)
    (root / "pools/dataplane/exclusive").write_text("1")
    (root / "pools/dataplane/0/0,4/tasks").write_text("7")
    stored = store.read()
    assert [task.pid for task in stored.allocations.pools["exclusive"].sockets[0][0].tasks] == [7]
    store.replace(stored.version, stored.allocations)
    assert store.read().allocations == stored.allocations
    assert not (root / "pools/dataplane").exists()


def test_files_of_others_stay(store: DirectoryStore, root: Path) -> None:
    store.create(FREE)
    (root / "README").write_text("ours")
    (root / "pools/exclusive/README").write_text("ours")
    store.replace(store.read().version, HELD)
    assert (root / "README").exists()
    assert (root / "pools/exclusive/README").exists()
    store.delete(store.read().version)
    assert files(root) == {"README": "ours"}


@pytest.mark.parametrize("text", ["{", "[1]", "7"])
def test_a_journal_that_cannot_be_read_is_named(store: DirectoryStore, root: Path, text: str) -> None:
    store.create(FREE)
    (root / directory_store.JOURNAL).write_text(text)
    with pytest.raises(BadInput, match="journal"):
        store.read()


def test_waiting_for_the_lock_has_a_timeout(root: Path) -> None:
    """Case 106: the owner of the lock is not interrupted."""
    store = DirectoryStore(root, 0.1)
    store.create(FREE)
    with (
        TransactionalDirectory(root, "pools", (), ()).locked(1),
        pytest.raises(Unavailable, match=r"lock: still locked"),
    ):
        store.replace(store.read().version, HELD)
    store.replace(store.read().version, HELD)


def test_a_holder_that_dies_holds_nothing(store: DirectoryStore, root: Path) -> None:
    store.create(FREE)
    ready, tell = os.pipe()
    if not (holder := os.fork()):
        with TransactionalDirectory(root, "pools", (), ()).locked(1):
            os.write(tell, b"x")
            signal.pause()
    os.read(ready, 1)
    with pytest.raises(Unavailable):
        DirectoryStore(root, 0.05).replace(store.read().version, HELD)
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    store.replace(store.read().version, HELD)
    assert store.read().allocations == HELD


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file"):
        DirectoryStore(tmp_path / "file", 1).create(FREE)


class CrashAtStep:
    """Ends the process at a step, or fails every step from there on. A step is a call or the write of some bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int, failure: int = 0) -> None:
        self.left, self._failure = last, failure
        self._write = os.write
        for name in ("open", "fsync", "replace", "mkdir", "unlink", "rmdir"):
            self._wrap(monkeypatch, name)
        monkeypatch.setattr(os, "write", self._piece)

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            if not self._failure:
                os._exit(9)
            raise OSError(self._failure, os.strerror(self._failure))

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(os, name)

        def wrapped(*args, **named):
            self._step()
            return real(*args, **named)

        monkeypatch.setattr(os, name, wrapped)

    def _piece(self, descriptor: int, data: bytes) -> int:
        self._step()
        return self._write(descriptor, data[:PIECE])


def test_a_crash_at_any_step_leaves_the_old_or_the_new_state(
    memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for last in range(100_000):
        root = memory_folder / str(last)
        store = DirectoryStore(root, 30)
        store.create(FREE)
        version = store.read().version
        if not (child := os.fork()):
            CrashAtStep(monkeypatch, last)
            store.replace(version, HELD, INTENT)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        state = store.read()[::2]
        assert state in ((FREE, None), (HELD, INTENT)), last
        seen.add(state[1] is None)
        # later writes succeed
        store.replace(store.read().version, HELD)
        assert files(root)["pools/exclusive/0/0,4/tasks"] == "17"
        assert not {"journal.json", "intent.json"} & files(root).keys()
        if code == 0:
            break
        assert code == 9
    assert seen == {True, False}
    assert last > 50


def test_a_failure_at_any_step_leaves_the_old_or_the_new_state(
    memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for last in range(100_000):
        store = DirectoryStore(memory_folder / str(last), 30)
        store.create(FREE)
        version = store.read().version
        with monkeypatch.context() as patched:
            ending = CrashAtStep(patched, last, errno.ENOSPC)
            try:
                store.replace(version, HELD)
                wanted = HELD
            except Unavailable:
                wanted = FREE
        assert store.read().allocations == wanted
        store.replace(store.read().version, HELD)
        assert "journal.json" not in files(memory_folder / str(last))
        if ending.left >= 0:
            break
    assert last > 50


FULL = """
import os, sys
from pathlib import Path
from nodewise_cpu.directory_store import DirectoryStore
from nodewise.base.errors import Unavailable
from cpu_tests.unit.store.store_suite import FREE, HELD
root = Path(sys.argv[1])
store = DirectoryStore(root / "cmk", 30)
store.create(FREE)
with (root / "filler").open("wb", buffering=0) as filler:
    while True:
        try:
            filler.write(bytes(512))
        except OSError:
            break
try:
    store.replace(store.read().version, HELD)
except Unavailable as error:
    print(error)
print(store.read().allocations == FREE)
print(not list((root / "cmk").rglob("*.new")))
os.truncate(root / "filler", 0)
store.replace(store.read().version, HELD)
print(store.read().allocations == HELD)
"""


@pytest.mark.root
def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    shell = 'mount -t tmpfs -o size=256k tmpfs "$1" && exec "$2" -c "$3" "$1"'
    words = ["unshare", "--mount", "sh", "-c", shell, "sh", str(tmp_path), sys.executable, FULL]
    ran = subprocess.run(words, capture_output=True, text=True, check=True, cwd=DISTRIBUTION)
    error, *rest = ran.stdout.splitlines()
    assert "No space left on device" in error
    assert str(tmp_path) in error
    assert rest == ["True", "True", "True"]
