"""Network namespaces for programs that listen on all addresses. A program in one of them reaches one local server."""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_CHUNK: Final = 65536


@contextlib.contextmanager
def created(folder: Path, port: int) -> Iterator[list[str]]:
    """Creates a namespace in which a port of 127.0.0.1 leads to the same port of this machine, and deletes it.

    Yields the prefix of commands that run in it. Needs root.
    """
    namespace = folder / f"network-{port}"
    namespace.touch()
    subprocess.run(["unshare", f"--net={namespace}", "true"], check=True)
    try:
        # a thread cannot return from a namespace, so the one that enters it ends
        with ThreadPoolExecutor(1) as entering:
            listener = entering.submit(_listen, namespace, port).result()
        with listener, _forwarding(listener, port):
            yield ["nsenter", f"--net={namespace}", "--"]
    finally:
        subprocess.run(["umount", namespace], check=True)


def _listen(namespace: Path, port: int) -> socket.socket:
    """Moves this thread into a namespace, enables loopback there, and returns a listening socket, which stays in it."""
    with namespace.open() as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    return socket.create_server(("127.0.0.1", port))


@contextlib.contextmanager
def _forwarding(listener: socket.socket, port: int) -> Iterator[None]:
    """Forwards connections to a port of 127.0.0.1 outside of the namespace while the context is open."""
    connections: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):  # the listener is shut down at the end
            while True:
                inner, _ = listener.accept()
                outer = socket.create_connection(("127.0.0.1", port))
                connections.extend((inner, outer))
                for source, target in ((inner, outer), (outer, inner)):
                    threading.Thread(target=_copy, args=(source, target), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copies bytes until one side ends."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK):
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
