"""Everything that runs beside the client: certificates, the API server's double, the extender, the do-nothing server.

Each is a process of its own on loopback and ends with the block that started it.
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
from tests.cluster.processes import Process, stopped_on_error

from bench.load_clients import Client


class Papers(NamedTuple):
    """The certificates of the bench: one CA for servers, one for clients."""

    server_ca: Path
    client_ca: Path
    server: CertificatePair
    scheduler: CertificatePair
    nodewise: CertificatePair


class Ground(NamedTuple):
    """What every part of the bench stands on."""

    folder: Path
    papers: Papers
    client: Client


class Extender(NamedTuple):
    """A running `nodewise extender`."""

    process: Process
    url: str
    health: str
    ready_s: float
    """From its start until it said that it is ready, looked at every 50 ms."""

    def cpu_s(self) -> float:
        """Processor time that it took until now."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Resident memory now."""
        return self._memory_mib("VmRSS")

    def peak_mib(self) -> float:
        """The most that was resident at any time."""
        return self._memory_mib("VmHWM")

    def _memory_mib(self, field: str) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the extender is gone")

    def fetches(self) -> tuple[int, int]:
        """How many answers about metrics were good, and how many were not, until now."""
        good = self.count("metric_fetches_total", 'outcome="good"')
        return int(good), int(self.count("metric_fetches_total") - good)

    def count(self, metric: str, label: str = "") -> float:
        """A counter of its own `/metrics`, all series with that label together; 0 for none."""
        with urllib.request.urlopen(f"{self.health}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        counted = [line for line in lines if line.startswith((f"nodewise_{metric}{{", f"nodewise_{metric} "))]
        return sum(float(line.rpartition(" ")[2]) for line in counted if label in line)


def papers(folder: Path) -> Papers:
    """New certificates in the folder."""
    servers, clients = CertificateAuthority(folder, "server-ca"), CertificateAuthority(folder, "client-ca")
    return Papers(
        servers.ca_file,
        clients.ca_file,
        servers.issue("server", "127.0.0.1", "localhost"),
        clients.issue("system:kube-scheduler"),
        clients.issue("nodewise"),
    )


@contextlib.contextmanager
def apiserver(folder: Path, papers: Papers, nodes: int) -> Iterator[Path]:
    """The API server's double; what is yielded is a kubeconfig that leads there."""
    arguments = [*_module("apiserver"), *_certificates(papers), "--nodes", str(nodes)]
    with _started(arguments, folder / "apiserver.log") as process:
        yield _kubeconfig(folder, _line(process, "url")["url"], papers)


@contextlib.contextmanager
def nothing(folder: Path, papers: Papers, answers: Mapping[str, Path]) -> Iterator[str]:
    """The do-nothing server with the answer of each path; what is yielded is its URL."""
    pairs = [f"{path}={file}" for path, file in answers.items()]
    with _started(
        [*_module("null_server"), *_certificates(papers), *pairs], folder / "null_server.log"
    ) as process:
        yield _line(process, "url")["url"]


@contextlib.contextmanager
def extender(folder: Path, papers: Papers, kubeconfig: Path, period: str) -> Iterator[Extender]:
    """The real `nodewise extender`, ready, which asks the double for all metrics once a period."""
    settings = {
        "address": "127.0.0.1",
        "port": 0,
        "health-port": 0,
        "kubeconfig": kubeconfig,
        "sync-period": period,
        "shutdown-delay": "0s",
        "log-format": "json",
    }
    named = [f"--{name}={value}" for name, value in settings.items()]
    with serving(PROGRAM, [*_certificates(papers), *named], folder / f"extender-{period}.log") as server:
        yield server


PROGRAM: Final = (Path(sys.executable).with_name("nodewise"),)


@contextlib.contextmanager
def serving(program: Sequence[str | Path], arguments: Sequence[str], log: Path) -> Iterator[Extender]:
    """An extender with its command and log, from its start until the block is left; yielded when it is ready."""
    began_s = time.monotonic()
    with _started([*program, "extender", *arguments], log) as process:
        answer = _line(process, "health")
        process.wait_ready(lambda: _is_ready(answer["health"]), 120)
        yield Extender(process, answer["address"], answer["health"], time.monotonic() - began_s)


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", f"bench.{name}"]


def _certificates(papers: Papers) -> list[str]:
    pair = papers.server
    return [f"--cert={pair.cert}", f"--key={pair.key}", f"--client-ca={papers.client_ca}"]


@contextlib.contextmanager
def _started(arguments: Sequence[str | Path], log: Path) -> Iterator[Process]:
    """A process whose settings come from its arguments alone, until the block is left."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NODEWISE_", "KUBE"))}
    log.unlink(missing_ok=True)  # a line of an earlier process would be taken for this one's
    process = Process(arguments, log, kept | {"NO_PROXY": "127.0.0.1"})
    with stopped_on_error(process), process:
        yield process


def _line(process: Process, key: str) -> dict[str, str]:
    """The first line of the log that is JSON and has the key, once it is there."""
    answers: list[dict[str, str]] = []

    def is_told() -> bool:
        for line in process.log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict) and key in answer:
                    answers.append(answer)
        return bool(answers)

    process.wait_ready(is_told)
    return answers[0]


def _is_ready(health: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{health}/readyz") as answer:
        return bool(answer.status == 200)
    return False


def _kubeconfig(folder: Path, server: str, papers: Papers) -> Path:
    """JSON is YAML."""
    cluster = {"server": server, "certificate-authority": str(papers.server_ca)}
    user = {"client-certificate": str(papers.nodewise.cert), "client-key": str(papers.nodewise.key)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": cluster}],
        "users": [{"name": "nodewise", "user": user}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "nodewise"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return path
