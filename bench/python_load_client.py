"""The load client if there is no Go: sends requests to a server, one in flight.

    python -m bench.python_load_client --url URL --ca FILE --cert FILE --key FILE --bodies FOLDER --requests N …

It uses a socket, TLS and a minimal HTTP implementation. The time of a request is from the first byte sent to the last
byte of the response received. Arguments and output are those of `client/main.go`.
"""

import argparse
import itertools
import json
import platform
import socket
import ssl
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit


class TimedResponse(NamedTuple):
    """A response with its duration."""

    status: int
    body: bytes
    micros: float


def connect(host: str, port: int, options: argparse.Namespace) -> ssl.SSLSocket:
    """Open a connection with mutual TLS 1.3."""
    context = ssl.create_default_context(cafile=options.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(options.cert, options.key)
    plain = socket.create_connection((host, port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(plain, server_hostname=host)


def send_request(connection: ssl.SSLSocket, request: bytes, buffer: bytearray) -> TimedResponse:
    """Send a request and read the response into the buffer. ValueError if it has no Content-Length."""
    began = time.perf_counter()
    connection.sendall(request)
    view = memoryview(buffer)
    size, start, wanted = 0, 0, len(buffer)
    while size < wanted:
        received = connection.recv_into(view[size:])
        if not received:
            raise ConnectionError("the server closed the connection")
        size += received
        if not start and (end := buffer.find(b"\r\n\r\n", 0, size)) >= 0:
            start = end + 4
            wanted = start + _length(bytes(buffer[:end]))
    micros = (time.perf_counter() - began) * 1e6
    return TimedResponse(int(buffer[9:12]), bytes(view[start:wanted]), micros)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise ValueError("a response without Content-Length")


def _request(path: str, host: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*head, "", "")).encode() + body


def run(options: argparse.Namespace) -> dict[str, object]:
    """Send requests until their number and the duration reach the minimum; returns the printed result."""
    url = urlsplit(options.url)
    files = sorted(Path(options.bodies).iterdir())
    requests = itertools.cycle([_request(url.path, url.netloc, file.read_bytes()) for file in files])
    connection = connect(url.hostname or "", url.port or 443, options)
    buffer = bytearray(64 * 2**20)
    for _ in range(options.warmup):
        send_request(connection, next(requests), buffer)
    micros: list[float] = []
    began = time.perf_counter()
    while len(micros) < options.requests or time.perf_counter() - began < options.seconds:
        answer = send_request(connection, next(requests), buffer)
        if answer.status != 200:
            raise SystemExit(f"{options.url}: status {answer.status}: {answer.body[:200]!r}")
        micros.append(answer.micros)
    if options.save:
        Path(options.save).write_bytes(answer.body)
    return {
        "client": f"Python {platform.python_version()} socket and ssl",
        "tls": str(connection.version()).replace("v", " "),
        "connections": 1,
        "answer_bytes": len(answer.body),
        "micros": micros,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--url", "--ca", "--cert", "--key", "--bodies"):
        parser.add_argument(name, required=True)
    parser.add_argument("--save", default="", help="write the last answer's body here")
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0)
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    main()
