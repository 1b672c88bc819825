"""The agent's socket file: one agent at a time, in a folder that only root can change."""

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.cluster import skip_conditions

from nodewise.base.errors import BadSettings, Unavailable
from nodewise.observe import logs
from nodewise_cpu import procfs
from nodewise_cpu.agent import socket_server
from nodewise_cpu.agent.socket_server import FairWorkerPool, WorkBudget
from nodewise_cpu.procfs import USER_SLICE, CgroupOwner, parse_cgroup


def test_every_user_may_connect_and_the_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run/cpu.sock"
    with socket_server.opened_socket(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert not path.exists()


def test_a_second_agent_is_turned_away(tmp_path: Path) -> None:
    path = tmp_path / "cpu.sock"
    with (
        socket_server.opened_socket(path),
        pytest.raises(Unavailable, match="no other agent serves"),
        socket_server.opened_socket(path, patience_s=0.2),
    ):
        pass


def test_the_socket_of_a_dead_agent_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "cpu.sock"
    program = (
        "import os, sys; from pathlib import Path; from nodewise_cpu.agent import socket_server\n"
        "with socket_server.opened_socket(Path(sys.argv[1])): os._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", program, path], check=False)
    assert path.exists()
    with socket_server.opened_socket(path, patience_s=0.0):
        pass


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777], ids=oct)
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with (
        pytest.raises(BadSettings, match="writable by no one else"),
        socket_server.opened_socket(tmp_path / "cpu.sock"),
    ):
        pass
    tmp_path.chmod(0o700)


@pytest.mark.root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(BadSettings, match="owner 65534"), socket_server.opened_socket(tmp_path / "cpu.sock"):
        pass
    os.chown(tmp_path, 0, 0)


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(BadSettings, match="a path for a Unix socket"),
        socket_server.opened_socket(tmp_path / ("x" * 120)),
    ):
        pass


PATIENCE_S = 30.0


class GatedJobs:
    """Jobs whose begin and end tests control."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._open: dict[str, threading.Event] = {}
        self._changed = threading.Condition()

    def job(self, name: str) -> partial[None]:
        self._open[name] = threading.Event()
        return partial(self._run, name)

    def _run(self, name: str) -> None:
        with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
        assert self._open[name].wait(PATIENCE_S)

    def end(self, *names: str) -> None:
        for name in names:
            self._open[name].set()

    def expect(self, *names: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.begun == list(names), PATIENCE_S), self.begun


def test_owners_take_turns() -> None:
    gates, turns = GatedJobs(), FairWorkerPool(1)
    for name in ("a1", "a2", "a3", "b1", "b2"):
        turns.add(name[0], gates.job(name))
    for done, then in enumerate(["a1", "b1", "a2", "b2", "a3"]):
        gates.expect(*["a1", "b1", "a2", "b2", "a3"][: done + 1])
        gates.end(then)
    turns.stop(PATIENCE_S)


def test_an_owner_has_one_job_under_way_at_a_time() -> None:
    gates, turns = GatedJobs(), FairWorkerPool(2)
    turns.add("a", gates.job("a1"))
    gates.expect("a1")
    turns.add("a", gates.job("a2"))
    turns.add("b", gates.job("b1"))
    gates.expect("a1", "b1")
    gates.end("a1")
    gates.expect("a1", "b1", "a2")
    gates.end("a2", "b1")
    turns.stop(PATIENCE_S)


def test_stop_finishes_running_jobs_and_drops_the_others() -> None:
    gates, turns = GatedJobs(), FairWorkerPool(1)
    turns.add("a", gates.job("a1"))
    turns.add("a", gates.job("a2"))
    gates.expect("a1")
    threading.Timer(0.1, gates.end, ["a1"]).start()
    turns.stop(PATIENCE_S)
    turns.add("b", gates.job("b1"))
    assert gates.begun == ["a1"]


def test_an_owner_beyond_its_cpu_time_waits_and_delays_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FairWorkerPool(2, WorkBudget(share=0.02, burst_s=0.1, max_delay_s=60.0))

    def run_jobs(owner: str, *cpu_s: float) -> float:
        """Run jobs one after the other, and return how long that took."""
        begin_s = time.monotonic()
        for seconds in cpu_s:
            done = threading.Event()
            pool.add(owner, partial(_use_cpu, seconds, done))
            assert done.wait(PATIENCE_S)
        return time.monotonic() - begin_s

    logged = []
    monkeypatch.setattr(logs, "emit", lambda event, **fields: logged.append((event, fields["peer"])))
    run_jobs("modest", *[0.01] * 3)
    assert run_jobs("greedy", *[0.05] * 4) > (3 * 0.05 - 0.1) / 0.02
    run_jobs("modest", 0.01)
    pool.stop(PATIENCE_S)
    assert logged == [("cpu_requests_delayed", "greedy")]


def test_a_long_job_delays_the_next_one_for_a_limited_time() -> None:
    pool = FairWorkerPool(1, WorkBudget(share=0.01, burst_s=0.0, max_delay_s=0.5))
    done = [threading.Event(), threading.Event()]
    begin_s = time.monotonic()
    pool.add("a", partial(_use_cpu, 0.2, done[0]))
    pool.add("a", partial(_use_cpu, 0.0, done[1]))
    assert done[1].wait(PATIENCE_S)
    assert 0.7 < time.monotonic() - begin_s < 10
    pool.stop(PATIENCE_S)


def _use_cpu(seconds: float, done: threading.Event) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass
    done.set()


POD = "01f2a6c3-9d1b-4c55-8a3e-6f0d0c8e4b11"
ESCAPED = POD.replace("-", "_")
OTHER = "ffffffff-9d1b-4c55-8a3e-6f0d0c8e4b11"
STATIC = "0123456789abcdef0123456789abcdef"
ID = "c" * 64

INSIDE = CgroupOwner(POD, ID)
CASES = {
    "v1, cgroupfs, burstable": (f"3:cpuset:/kubepods/burstable/pod{POD}/{ID}", INSIDE),
    "v1, cgroupfs, guaranteed": (f"3:cpuset:/kubepods/pod{POD}/{ID}", INSIDE),
    "v2, cgroupfs": (f"0::/kubepods/besteffort/pod{POD}/{ID}", INSIDE),
    "v2, systemd, containerd": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
        INSIDE,
    ),
    "v1, systemd, guaranteed": (
        f"9:cpu,cpuacct:/kubepods.slice/kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
        INSIDE,
    ),
    "systemd, Docker": (f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/docker-{ID}.scope", INSIDE),
    "systemd, CRI-O": (f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-{ID}.scope", INSIDE),
    "systemd, CRI-O with a folder for the processes": (
        f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-{ID}.scope/container",
        INSIDE,
    ),
    "cgroupfs, CRI-O": (f"0::/kubepods/burstable/pod{POD}/crio-{ID}", INSIDE),
    "CRI-O's monitor is no container": (
        f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-conmon-{ID}.scope",
        CgroupOwner(POD),
    ),
    "containerd with cgroupfs under a kubelet with systemd": (
        f"0::/system.slice/containerd.service/kubepods-besteffort-pod{ESCAPED}.slice:cri-containerd:{ID}",
        INSIDE,
    ),
    "a kubelet in a container": (f"0::/docker/{'a' * 64}/kubelet/kubepods/pod{POD}/{ID}", INSIDE),
    "a kubelet with a root of its own, systemd": (
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
        INSIDE,
    ),
    "read in a cgroup namespace": (
        f"0::/../../../kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
        INSIDE,
    ),
    "read in a cgroup namespace, cgroupfs": (f"0::/../../pod{POD}/{ID}", INSIDE),
    "a static pod": (f"0::/kubepods/burstable/pod{STATIC}/{ID}", CgroupOwner(STATIC, ID)),
    "systemd in the container": (f"0::/kubepods/pod{POD}/{ID}/system.slice/web.service", INSIDE),
    "a pod that was made up in the container": (
        f"0::/kubepods/pod{POD}/{ID}/kubepods/pod{OTHER}/{'d' * 64}",
        INSIDE,
    ),
    "the pause container's parent": (f"0::/kubepods/pod{POD}", CgroupOwner(POD)),
    "a cgroup that is gone": (f"0::/kubepods/pod{POD}/{ID} (deleted)", INSIDE),
    "the line of CPUs comes first": (
        f"4:memory:/kubepods/pod{OTHER}/{ID}\n3:cpu,cpuset:/kubepods/pod{POD}/{ID}",
        INSIDE,
    ),
    "only one controller is the pod's": (f"0::/\n3:pids:/kubepods/pod{POD}/{ID}", INSIDE),
    "the host": ("0::/system.slice/ssh.service", CgroupOwner()),
    "a user's session": (f"0::/user.slice/user-0.slice/session-{ID}.scope", CgroupOwner()),
    "a user's own cgroup, named like a pod's": (
        f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{POD}/{ID}",
        CgroupOwner(USER_SLICE),
    ),
    "a user's own cgroup, read in a cgroup namespace": (
        f"0::/../../../user.slice/user-1000.slice/user@1000.service/pod{POD}/{ID}",
        CgroupOwner(USER_SLICE),
    ),
    "a user's own cgroup in one hierarchy of version 1": (
        f"3:cpuset:/\n1:name=systemd:/user.slice/user-1000.slice/user@1000.service/pod{POD}/{ID}",
        CgroupOwner(USER_SLICE),
    ),
    "a pod's process with a user's cgroup in another hierarchy": (
        f"3:cpuset:/kubepods/pod{POD}/{ID}\n1:name=systemd:/user.slice/pod{OTHER}/{ID}",
        INSIDE,
    ),
    "a slice that is not that of users": (f"0::/user.slicer/pod{POD}/{ID}", INSIDE),
    "a name that only looks like a pod": (f"0::/mypod{POD}/{ID}", CgroupOwner()),
    "nothing": ("", CgroupOwner()),
    "garbage": ("\x00\xff::\n::::", CgroupOwner()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_cgroup_names_pod_and_container(case: str) -> None:
    text, place = CASES[case]
    assert parse_cgroup(text) == place


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        server.settimeout(30)
        yield server


def test_a_peer_is_the_process_that_connected(listening: socket.socket) -> None:
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, listening.getsockname()]
    proc = Path("/proc")
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        with listening.accept()[0] as connected:
            peer = socket_server.identify_peer(connected, proc, procfs.read_boot_id(proc))
        assert peer.task.pid == child.pid
        assert peer.task == socket_server.read_process_as_task(proc, child.pid, procfs.read_boot_id(proc))
        assert peer.task.start == procfs.read_processes(proc).processes[child.pid].start
        child.communicate()


def test_a_peer_that_is_gone_is_not_known(listening: socket.socket) -> None:
    program = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, listening.getsockname()], check=True)
    with listening.accept()[0] as connected, pytest.raises(Unavailable, match="cannot identify the peer"):
        socket_server.identify_peer(connected, Path("/proc"), "boot")


def test_a_reused_process_id_is_not_the_peer(listening: socket.socket, tmp_path: Path) -> None:
    """A process may connect and end, and another process may get its id before the check. A folder simulates this."""
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, listening.getsockname()]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child, listening.accept()[0] as connected:
        try:
            connected.getsockopt(socket.SOL_SOCKET, 77, 4)
        except OSError:
            skip_conditions.not_run("the kernel gives no descriptor of a peer: Linux 6.5 does")
        another = tmp_path / f"proc/{child.pid}"
        another.mkdir(parents=True)
        for name in ("stat", "cgroup"):
            (another / name).write_text(Path(f"/proc/self/{name}").read_text())
        assert socket_server.identify_peer(connected, another.parent, "boot").task.pid == child.pid
        child.communicate()
        with pytest.raises(Unavailable, match="is over"):
            socket_server.identify_peer(connected, another.parent, "boot")
