"""A file is trusted only if only root can write or replace it."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodewise.base import trusted_files
from nodewise.base.errors import NodewiseError
from nodewise.base.trusted_files import Untrusted, check_folder, resolve
from nodewise_cpu import installation, pool_allocations
from nodewise_cpu.agent import socket_server
from nodewise_cpu.cpusets import container_cpusets, container_runtime_client
from nodewise_cpu.cpusets.container_cpusets import CgroupPartitions
from nodewise_cpu.directory_store import DirectoryStore
from nodewise_cpu.node import machine_features
from tests.folder_permissions import let_other_users_read

pytestmark = pytest.mark.root
TENANT = 1000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with `a/b/file`, where everything belongs to root."""
    (tmp_path / "a/b").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a/b"):
        folder.chmod(0o755)
    (tmp_path / "a/b/file").write_text("x")
    return tmp_path


CHANGES: dict[str, Callable[[Path], None]] = {
    "file of another user": lambda tree: os.chown(tree / "a/b/file", TENANT, 0),
    "file that others may write": lambda tree: (tree / "a/b/file").chmod(0o646),
    "file that a group may write": lambda tree: (tree / "a/b/file").chmod(0o664),
    "folder of another user": lambda tree: os.chown(tree / "a/b", TENANT, 0),
    "folder above of another user": lambda tree: os.chown(tree / "a", TENANT, 0),
    "folder that others may write": lambda tree: (tree / "a/b").chmod(0o757),
    "folder above that a group may write": lambda tree: (tree / "a").chmod(0o775),
    "sticky folder of another user": lambda tree: (
        os.chown(tree / "a", TENANT, 0),
        (tree / "a").chmod(0o1777),
    )[0],
}


@pytest.mark.parametrize("what", CHANGES)
def test_file_that_others_can_write_or_replace_is_refused(tree: Path, what: str) -> None:
    file = tree / "a/b/file"
    assert resolve(file) == str(file)
    CHANGES[what](tree)
    with pytest.raises(Untrusted):
        resolve(file)


@pytest.mark.parametrize("what", [name for name in CHANGES if "folder" in name])
def test_a_folder_that_others_may_write_or_replace_is_refused(tree: Path, what: str) -> None:
    assert check_folder(tree / "a/b") == str(tree / "a/b")
    CHANGES[what](tree)
    with pytest.raises(Untrusted):
        check_folder(tree / "a/b")
    with pytest.raises(Untrusted):
        check_folder(tree / "a/b/to/come")


def test_the_message_names_the_part_its_owner_and_mode_and_the_remedy(tree: Path) -> None:
    os.chown(tree / "a", TENANT, 0)
    (tree / "a").chmod(0o777)
    with pytest.raises(Untrusted) as raised:
        resolve(tree / "a/b/file")
    [problem] = raised.value.problems
    assert problem.field == str(tree / "a")
    assert problem.found == "owner 1000, mode 0777"
    assert problem.expected == "owner root, writable by no one else"
    assert f"chown root {tree / 'a'} && chmod go-w {tree / 'a'}" in raised.value.remedy


def test_a_sticky_folder_is_trusted_on_the_way_and_never_to_write_in(tree: Path) -> None:
    (tree / "a").chmod(0o1777)
    assert resolve(tree / "a/b/file")
    assert check_folder(tree / "a/b")
    with pytest.raises(Untrusted):
        check_folder(tree / "a")
    os.chown(tree / "a/b", TENANT, 0)
    with pytest.raises(Untrusted):
        check_folder(tree / "a/b")


def test_links_are_trusted_like_their_targets(tree: Path) -> None:
    (tree / "link").symlink_to("a/../a/b")
    assert resolve(tree / "link/file") == str(tree / "a/b/file")
    os.chown(tree / "link", TENANT, 0, follow_symlinks=False)
    with pytest.raises(Untrusted):
        resolve(tree / "link/file")
    os.chown(tree / "link", 0, 0, follow_symlinks=False)
    os.chown(tree / "a", TENANT, 0)
    with pytest.raises(Untrusted):
        resolve(tree / "link/file")


def test_links_in_a_circle_end(tree: Path) -> None:
    (tree / "one").symlink_to("two")
    (tree / "two").symlink_to("one")
    with pytest.raises(Untrusted, match="links"):
        resolve(tree / "one")


def test_parts_that_lead_up_are_taken_after_links_as_the_kernel_does(tree: Path) -> None:
    (tree / "link").symlink_to("a/b")
    assert resolve(f"{tree}/link/../c") == str(tree / "a/c")


def test_a_run_without_root_trusts_root_and_its_own_user(tree: Path) -> None:
    let_other_users_read(tree)
    program = (
        "import os, sys; from nodewise.base import trusted_files; os.setgid(1000); os.setuid(1000)\n"
        "try: print(trusted_files.resolve(sys.argv[1]))\n"
        "except trusted_files.Untrusted as error: print('refused', error.problems[0].expected)\n"
    )

    def run_unprivileged() -> str:
        ran = subprocess.run(
            [sys.executable, "-c", program, str(tree / "a/b/file")],
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout.strip()

    assert run_unprivileged() == str(tree / "a/b/file")
    os.chown(tree / "a/b", TENANT, TENANT)
    (tree / "a/b").chmod(0o775)  # writable by the owner's own group, as with umask 002
    assert run_unprivileged() == str(tree / "a/b/file")
    os.chown(tree / "a/b", TENANT + 1, 0)
    assert run_unprivileged() == "refused owner root or user 1000, writable by no one else"


def socket_in(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "runtime.sock"))
    container_runtime_client.endpoint(str(folder / "runtime.sock"))


def listening(folder: Path) -> None:
    with socket_server.opened_socket(folder / "cpu.sock", 0.1):
        pass


USERS: dict[str, Callable[[Path], object]] = {
    "the state directory": lambda folder: DirectoryStore(folder).read(),
    "the lock of the state directory": lambda folder: (
        DirectoryStore(folder, 0.1)._directory.locked(0.1).__enter__()
    ),
    "the socket's folder": listening,
    "what is left of a socket": lambda folder: socket_server.remove_socket_files(folder / "cpu.sock"),
    "what containers had before": lambda folder: container_cpusets.load_original_cpusets(
        folder / "cpusets.json"
    ),
    "where that is kept": lambda folder: container_cpusets.save_original_cpusets(folder / "cpusets.json", {}),
    "partitions of containers": lambda folder: CgroupPartitions(
        Path("/nonexistent"), folder / "partitions.json"
    ).release(),
    "features of the node": lambda folder: machine_features.write_feature_file(
        folder, ["power", "performance"]
    ),
    "the program's source": lambda folder: installation.install(
        folder, Path("/nonexistent"), Path("/opt"), None
    ),
    "the program": installation.remove,
    "the container runtime's socket": socket_in,
}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "what", ["folder of another user", "folder above of another user", "folder that others may write"]
)
def test_the_cpu_manager_refuses_folders_of_others_and_writes_nothing(
    tree: Path, user: str, what: str
) -> None:
    CHANGES[what](tree)
    with pytest.raises(NodewiseError, match="writable by no one else"):
        USERS[user](tree / "a/b")
    assert {path.name for path in (tree / "a/b").iterdir()} <= {"file", "runtime.sock"}


def test_a_planted_file_of_the_state_directory_is_refused(tree: Path) -> None:
    (tree / "a/b/journal.json").write_text("{}")
    os.chown(tree / "a/b/journal.json", TENANT, 0)
    with pytest.raises(NodewiseError, match=r"journal\.json: owner 1000"):
        DirectoryStore(tree / "a/b").read()


def test_a_version_of_the_program_in_which_others_may_write_is_not_taken_for_whole(tree: Path) -> None:
    assert trusted_files.check_folder_tree_trust(tree / "a") is None
    (tree / "a/b/file").chmod(0o666)
    with pytest.raises(Untrusted):
        trusted_files.check_folder_tree_trust(tree / "a")


def test_created_files_are_trusted_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = DirectoryStore(tmp_path / "state")
        store.create(pool_allocations.allocations_without_tasks({"shared": {0: ("1",)}}))
        container_cpusets.save_original_cpusets(tmp_path / "run/cpusets.json", {})
    finally:
        os.umask(before)
    assert store.read()
    assert container_cpusets.load_original_cpusets(tmp_path / "run/cpusets.json") == {}
    trusted_files.check_folder_tree_trust(tmp_path)
