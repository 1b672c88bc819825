"""Serves an ASGI application on loopback from a thread, with the server stack that nodewise uses."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvicorn

from tests.cluster.certificates import CertificatePair

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class ServerTls(NamedTuple):
    """The TLS files of a server; with `clients`, a CA file, the server requires a client certificate."""

    pair: CertificatePair
    clients: Path | None = None


async def body_of(receive: Receive) -> bytes:
    """The whole body of a request."""
    parts = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def answer(send: Send, status: int, body: Any) -> None:
    """Sends a complete JSON response; `bytes` are sent unchanged."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


@contextlib.contextmanager
def serving(
    application: Application, tls: ServerTls | None = None, port: int = 0, host: str = "127.0.0.1"
) -> Iterator[str]:
    """Serves while the context is open; yields the address, such as https://127.0.0.1:40123."""
    listener = socket.create_server((host, port))
    server = uvicorn.Server(_config(application, tls))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        _wait_started(server, thread)
        yield f"{'https' if tls else 'http'}://{host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(timeout=5)
        listener.close()


def _config(application: Application, tls: ServerTls | None) -> uvicorn.Config:
    secure: dict[str, Any] = {}
    if tls:
        secure = {"ssl_certfile": tls.pair.cert, "ssl_keyfile": tls.pair.key}
    if tls and tls.clients:
        secure |= {"ssl_ca_certs": tls.clients, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return uvicorn.Config(
        application,
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=1,
        **secure,
    )


def _wait_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    end = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive(), "the server ended while it started"
        assert time.monotonic() < end, "the server was not ready after 60 s"
        time.sleep(0.005)


def kubeconfig(folder: Path, address: str) -> Path:
    """A kubeconfig without credentials for this address."""
    file = folder / "plain.kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "contexts": [{"name": "here", "context": {"cluster": "here"}}],
        "current-context": "here",
    }
    file.write_text(json.dumps(config))
    return file
