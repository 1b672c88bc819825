"""The load client, a process with the HTTP client of Go as kube-scheduler uses it, built from `client/`."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.cluster import go_toolchain
from tests.cluster.certificates import CertificatePair

SOURCE = Path(__file__).parent / "client"


class LoadResult(NamedTuple):
    """Durations of requests as the client measured them, in order."""

    client: str
    tls: str
    connections: int
    answer_bytes: int
    micros: list[float]


class HttpLoad(NamedTuple):
    """The requests of a series."""

    url: str
    bodies: Path
    """A folder with request bodies, which alternate."""
    warmup: int = 0
    requests: int = 1
    """Minimum number of requests."""
    seconds: float = 0.0
    """Minimum duration."""
    save: Path | None = None
    """File for the body of the last response."""
    method: str = "POST"
    interval_s: float = 0.0
    """Time from the begin of one request to that of the next."""


class LoadClient(NamedTuple):
    """A client program with its certificates."""

    program: Path
    ca: Path
    pair: CertificatePair

    def ask(self, load: HttpLoad) -> LoadResult:
        """Send requests over one connection, one in flight. RuntimeError for errors, reconnects or old TLS."""
        options = {
            "url": load.url,
            "bodies": load.bodies,
            "warmup": load.warmup,
            "requests": load.requests,
            "seconds": load.seconds,
            "save": load.save or "",
            "method": load.method,
            "interval": f"{load.interval_s}s",
            "ca": self.ca,
            "cert": self.pair.cert,
            "key": self.pair.key,
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        ended = subprocess.run([self.program, *arguments], capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"the client failed: {ended.stderr[-500:]}")
        taken = LoadResult(**json.loads(ended.stdout))
        if taken.connections != 1 or taken.tls != "TLS 1.3":
            raise RuntimeError(f"{taken.connections} connections with {taken.tls}, not 1 with TLS 1.3")
        if len(taken.micros) < load.requests:
            raise RuntimeError(f"{len(taken.micros)} requests were measured, not {load.requests}")
        return taken


def build(folder: Path) -> Path:
    """Build the client into the folder. MissingError if there is no Go and none can be installed."""
    target = folder / "client"
    command = [go_toolchain.find(SOURCE), "build", "-o", target, "."]
    subprocess.run(command, cwd=SOURCE, env=go_toolchain.environment(), check=True)
    return target
