"""Forwards ports of this machine into networks of pods: for the API server to a kubelet, and in place of
`kubectl port-forward`, which pages start in the background and do not wait for.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.node import loopback_forwarding

Place = Callable[[], Path]


@contextlib.contextmanager
def forwarding(place: Place, port: int, listen: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[int]:
    """A port of this machine that leads to `port` of 127.0.0.1 in a network; `place` returns its file for each
    connection.
    """
    with socket.create_server(listen) as listening:
        threading.Thread(target=_serve, args=(listening, place, port), daemon=True).start()
        yield listening.getsockname()[1]


def _serve(listening: socket.socket, place: Place, port: int) -> None:
    with contextlib.suppress(OSError):  # closed
        while True:
            near, _ = listening.accept()
            threading.Thread(target=_forward, args=(near, place, port), daemon=True).start()


def _forward(near: socket.socket, place: Place, port: int) -> None:
    with near, contextlib.suppress(OSError):
        loopback_forwarding.enter(place())
        with socket.create_connection(("127.0.0.1", port), 30) as far:
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        try:
            while data := source.recv(65536):
                target.sendall(data)
        finally:  # also after a reset, or the other side would wait for ever
            target.shutdown(socket.SHUT_WR)
