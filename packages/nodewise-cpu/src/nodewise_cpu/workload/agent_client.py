"""The client of the node agent's socket, for `isolate` and other programs of the node.

Standard library only.
"""

import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from nodewise.base.errors import BadInput, NodewiseError, Refused, Unavailable, shown
from nodewise_cpu import agent_messages
from nodewise_cpu.agent_messages import MAX_LINE_BYTES, AllocateRequest, AllocateResponse
from nodewise_cpu.pool_allocations import Task

RESPONSE_S: Final = 30.0
"""The timeout of a response: the agent may need the API server, and others write the same store."""
_PAUSE_S: Final = 0.02
_CHECK_S: Final = 0.2  # how often `sleep` is called while there is no response


class AgentClient:
    """A connection to the agent that listens at `path`, opened by the first request; a `CpuAllocator`.

    Every method raises the agent's error, or Unavailable without a response in time. `sleep` may raise an error.
    """

    def __init__(self, path: Path, sleep: Callable[[float], None] = time.sleep) -> None:
        self._path = path
        self._sleep = sleep
        self._socket: socket.socket | None = None
        self._received = b""

    def request(self, line: bytes) -> Mapping[str, Any]:
        """Send one line (`agent_messages.py`) and return the fields of the response, which may be an error."""
        deadline = time.monotonic() + RESPONSE_S
        try:
            connected = self._ensure_connected(deadline)
            with suppress(
                BrokenPipeError
            ):  # the agent may have sent an error before it closed the connection
                connected.sendall(line)
            return agent_messages.decode_line(self._read_line(connected, deadline))
        except OSError as error:
            self.close()
            raise self._connection_error(error) from error

    def allocate(self, request: AllocateRequest, pin: Callable[[AllocateResponse], None]) -> AllocateResponse:
        """Allocate CPUs. `pin` makes this process run there; if it fails they are released."""
        fields = self.request(agent_messages.encode_allocate_request(request))
        response = agent_messages.parse_allocate_response(fields)
        try:
            pin(response)
        except NodewiseError:
            with suppress(NodewiseError):  # the agent notices the end of this process anyway
                self.release(response.task)
            raise
        return response

    def release(self, task: Task) -> None:
        """Release the task's CPUs. Unavailable if processes of the task are alive: then it ends with them.

        The request is sent again to an agent that was restarted meanwhile.
        """
        try:
            response = self.request(agent_messages.encode_release_request(task))
        except (BadInput, Unavailable):
            self.close()
            response = self.request(agent_messages.encode_release_request(task))
        agent_messages.raise_response_error(response)
        if response.get("released") is False:
            raise Unavailable.of(
                "the CPUs are still held", "processes", shown(response.get("processes")), "all of them ended"
            )

    def leave(self, task: Task) -> None:
        """Let the agent find the processes that the task leaves behind while this process, their parent, is alive."""
        with suppress(NodewiseError):  # then earlier garbage collections have to suffice
            self.release(task)

    def close(self) -> None:
        """Close the connection. For the agent this is the end of this process."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._received = None, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ensure_connected(self, deadline: float) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            while True:
                self._set_timeout(self._socket, deadline)
                try:
                    self._socket.connect(str(self._path))
                    break
                except BlockingIOError:  # the agent's backlog is full (connect(2), EAGAIN)
                    self._sleep(_PAUSE_S)
        self._set_timeout(self._socket, deadline)
        return self._socket

    def _read_line(self, connected: socket.socket, deadline: float) -> bytes:
        """The next line. What is received beyond it belongs to the one after it."""
        while b"\n" not in self._received:
            self._set_timeout(connected, deadline)
            if not select.select([connected], [], [], _CHECK_S)[0]:
                self._sleep(0.0)
                continue
            received = connected.recv(MAX_LINE_BYTES)
            if not received:
                raise ConnectionResetError("it closed the connection")
            self._received += received
            if len(self._received) > MAX_LINE_BYTES:
                self.close()
                raise BadInput.of(
                    "cannot read a message", "line", "without an end", f"{MAX_LINE_BYTES} bytes"
                )
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _set_timeout(self, connected: socket.socket, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {RESPONSE_S:g} s")
        connected.settimeout(left)

    def _connection_error(self, error: OSError) -> NodewiseError:
        seen = error.strerror or str(error)
        if isinstance(error, PermissionError):
            return Refused.of("cannot ask the node agent", str(self._path), seen)
        remedy = "does the node agent run here? nodewise cpu agent"
        return Unavailable.of("the node agent does not answer", str(self._path), seen, remedy=remedy)
