"""Processes of the benchmarks besides the client: the fake API server, the extender and the no-op server.

Each is a separate process on loopback and ends with the block that started it.
"""

import contextlib
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.cluster.certificates import CertificateAuthority, CertificatePair
from tests.cluster.child_processes import Process, stopped_on_error

from bench.load_clients import LoadClient

PROGRAM: Final = Path(sys.executable).with_name("nodewise")
"""The program of this checkout."""


class Certificates(NamedTuple):
    """Certificates: one CA for servers, one for clients."""

    server_ca: Path
    client_ca: Path
    server: CertificatePair
    scheduler: CertificatePair


class Scale(NamedTuple):
    """Sizes of a measurement. The defaults are those of the published figures."""

    rounds: int = 3
    requests: int = 1000
    """Requests per series and round."""
    seconds: float = 10.0
    """Duration of a round while metrics refresh, and of a round of the jitter."""
    nodes: int = 5000
    pods: int = 50_000
    """Pods of the real API server in the part `start`."""
    settle_periods: tuple[int, int] = (3, 10)
    """Metric periods after a start until its memory is read, without and with rules that flap. Ten is the largest
    number of flaps that a rule remembers.
    """
    bound_pods: int = 200
    """Pods with GPUs that are bound in a round."""
    growth_nodes: tuple[int, ...] = (500, 5000, 20_000, 50_000)
    shard_nodes: int = 100_000
    """Nodes of replicas with shards."""
    shards: tuple[int, ...] = (1, 4)
    """Numbers of replicas of the controller, each with a shard."""
    rolling_s: float = 20.0
    """Duration of the measurement while 1 % of these nodes change per minute."""


QUICK: Final = Scale(1, 50, 2.0, 200, 1500, (1, 1), 40, (200,), 200, (2,), 2.0)
"""Sizes that show in about a minute whether every part can measure. The figures are meaningless."""


class BenchContext(NamedTuple):
    """Inputs of every part: a folder, certificates, a client and the sizes."""

    folder: Path
    certificates: Certificates
    client: LoadClient
    scale: Scale
    gas: Path | None = None
    """The program of GPU Aware Scheduling; None if its binds are not measured."""


class MeasuredServer(NamedTuple):
    """A running `nodewise extender` or `nodewise controller`."""

    process: Process
    url: str
    """The address for kube-scheduler; empty for a controller."""
    health: str
    ready_s: float
    """Time from the start until /readyz succeeds, polled every 50 ms."""

    def cpu_s(self) -> float:
        """CPU time of the process until now."""
        return cpu_s(self.process)

    def rss_mib(self) -> float:
        """Current resident memory."""
        return self._memory_mib("VmRSS")

    def peak_mib(self) -> float:
        """Peak resident memory."""
        return self._memory_mib("VmHWM")

    def _memory_mib(self, field: str) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the process has ended")

    def fetches(self) -> tuple[int, int]:
        """Numbers of successful and failed metric fetches until now."""
        good = self.count("metric_fetches_total", 'outcome="good"')
        return int(good), int(self.count("metric_fetches_total") - good)

    def count(self, metric: str, label: str = "") -> float:
        """Sum of a counter of its `/metrics` over all series with that label; 0 for none."""
        with urllib.request.urlopen(f"{self.health}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        counted = [line for line in lines if line.startswith((f"nodewise_{metric}{{", f"nodewise_{metric} "))]
        return sum(float(line.rpartition(" ")[2]) for line in counted if label in line)


def cpu_s(process: Process) -> float:
    """CPU time of a process until now."""
    return time.clock_gettime(~process.pid << 3 | _CPU_CLOCK)


_CPU_CLOCK: Final = 2
"""CPUCLOCK_SCHED of the kernel's posix-timers.h, as clock_getcpuclockid(3) computes the clock of a process."""


def create_certificates(folder: Path) -> Certificates:
    """Create the certificates in a folder."""
    servers, clients = CertificateAuthority(folder, "server-ca"), CertificateAuthority(folder, "client-ca")
    return Certificates(
        servers.ca_file,
        clients.ca_file,
        servers.issue("server", "127.0.0.1", "localhost"),
        clients.issue("system:kube-scheduler"),
    )


@contextlib.contextmanager
def apiserver(folder: Path, certificates: Certificates, nodes: int, *options: str) -> Iterator[Path]:
    """Run the fake API server; yields a kubeconfig for it."""
    with apiserver_with_ports(folder, certificates, nodes, *options) as kubeconfigs:
        yield kubeconfigs[0]


@contextlib.contextmanager
def apiserver_with_ports(
    folder: Path, certificates: Certificates, nodes: int, *options: str
) -> Iterator[list[Path]]:
    """Run the fake API server; yields a kubeconfig for each of its ports."""
    arguments = [*_module("fake_api_server"), *_serving_arguments(certificates), f"--nodes={nodes}"]
    with _started([*arguments, *options], folder / "apiserver.log") as process:
        urls = _line(process, "url", 120)["url"].split()
        yield [
            _kubeconfig(folder / f"kubeconfig-{number}", url, certificates) for number, url in enumerate(urls)
        ]


@contextlib.contextmanager
def null_server(folder: Path, certificates: Certificates, answers: Mapping[str, Path]) -> Iterator[str]:
    """Run the no-op server with the response of each path; yields its URL."""
    pairs = [f"{path}={file}" for path, file in answers.items()]
    with _started(
        [*_module("null_server"), *_mutual_tls_arguments(certificates), *pairs], folder / "null_server.log"
    ) as process:
        yield _line(process, "url")["url"]


@contextlib.contextmanager
def extender(
    folder: Path, certificates: Certificates, kubeconfig: Path, period: str, program: Path = PROGRAM
) -> Iterator[MeasuredServer]:
    """Run `nodewise extender`, ready, which fetches all metrics from the fake API server once per period."""
    words = extender_words(certificates, f"--kubeconfig={kubeconfig}", f"--sync-period={period}")
    with serving(program, words, folder / f"extender-{period}.log") as server:
        yield server


def extender_words(certificates: Certificates, *more: str) -> list[str]:
    """The command `extender` with free ports on loopback and mutual TLS."""
    settings = (
        "--address=127.0.0.1",
        "--port=0",
        "--health-port=0",
        "--shutdown-delay=0s",
        "--log-format=json",
    )
    return ["extender", *_mutual_tls_arguments(certificates), *settings, *more]


@contextlib.contextmanager
def serving(program: Path, words: Sequence[str], log: Path) -> Iterator[MeasuredServer]:
    """Run a command that serves until the block ends; yields it when it is ready."""
    began_s = time.monotonic()
    with _started([program, *words], log) as process:
        answer = _line(process, "health")
        process.wait_ready(lambda: _is_ready(answer["health"]), 120)
        yield MeasuredServer(process, answer.get("address", ""), answer["health"], time.monotonic() - began_s)


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", f"bench.{name}"]


def _serving_arguments(certificates: Certificates) -> list[str]:
    return [f"--cert={certificates.server.cert}", f"--key={certificates.server.key}"]


def _mutual_tls_arguments(certificates: Certificates) -> list[str]:
    return [*_serving_arguments(certificates), f"--client-ca={certificates.client_ca}"]


@contextlib.contextmanager
def _started(arguments: Sequence[str | Path], log: Path) -> Iterator[Process]:
    """Run a process whose settings come from its arguments alone, until the block ends."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NODEWISE_", "KUBE"))}
    log.unlink(missing_ok=True)  # else lines of an earlier process would be read
    process = Process(arguments, log, kept | {"NO_PROXY": "127.0.0.1"})
    with stopped_on_error(process), process:
        yield process


def _line(process: Process, key: str, deadline_s: float = 60) -> dict[str, str]:
    """Wait for the first JSON line of the log that has the key."""
    answers: list[dict[str, str]] = []

    def has_line() -> bool:
        for line in process.log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict) and key in answer:
                    answers.append(answer)
        return bool(answers)

    process.wait_ready(has_line, deadline_s)
    return answers[0]


def _is_ready(health: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{health}/readyz") as answer:
        return bool(answer.status == 200)
    return False


def _kubeconfig(path: Path, server: str, certificates: Certificates) -> Path:
    """Write a kubeconfig with a token, as pods have one; JSON is valid YAML."""
    cluster = {"server": server, "certificate-authority": str(certificates.server_ca)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": cluster}],
        "users": [{"name": "nodewise", "user": {"token": "bench"}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "nodewise"}}],
    }
    path.write_text(json.dumps(document))
    return path
