"""The node agent as `isolate` and others on the node ask it, over its socket.

Standard library only.
"""

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from nodewise.cpu import messages
from nodewise.cpu.messages import LONGEST_BYTES, ClaimAnswer, ClaimRequest
from nodewise.cpu.state import Task
from nodewise.errors import BadInput, NodewiseError, Problem, Refused, Unavailable, shown

ANSWER_S: Final = 30.0
"""For one answer: the agent may have to ask the API server, and others write to the same state."""
_PAUSE_S: Final = 0.02


class Agent:
    """A connection to the agent that listens at `path`, open from the first question on.

    Every method raises what the agent says, or Unavailable if it does not answer in time.
    """

    def __init__(self, path: Path, timeout_s: float = ANSWER_S) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._link: socket.socket | None = None
        self._read = b""

    def ask(self, line: bytes) -> Mapping[str, Any]:
        """One line (`messages.py`) and its answer, an error too."""
        deadline = time.monotonic() + self._timeout_s
        try:
            link = self._connected(deadline)
            with suppress(BrokenPipeError):  # it may have said why it does not listen
                link.sendall(line)
            return messages.decode(self._line(link, deadline))
        except OSError as error:
            self.close()
            raise self._silent(error) from error

    def claim(self, request: ClaimRequest, pin: Callable[[ClaimAnswer], None]) -> ClaimAnswer:
        """CPUs that are held from now on. `pin` makes this process run there; if it cannot, they are given back."""
        answer = messages.parse_claimed(self.ask(messages.claim(request)))
        try:
            pin(answer)
        except NodewiseError:
            with suppress(NodewiseError):  # the agent sees the end of this process
                self.release(answer.task)
            raise
        return answer

    def release(self, task: Task) -> None:
        """Give back what the task holds. Unavailable if that did not happen: it does once all its processes ended.

        An agent that started anew meanwhile is asked as well.
        """
        try:
            answer = self.ask(messages.release(task))
        except (BadInput, Unavailable):
            self.close()
            answer = self.ask(messages.release(task))
        messages.raise_error(answer)
        if answer.get("released") is False:
            problem = Problem("processes", shown(answer.get("processes")), "all of them ended")
            raise Unavailable("the CPUs are still held", [problem])

    def leave(self, task: Task) -> None:
        """Let the agent see what the task leaves behind while this process, its parent, is there to tell it by."""
        with suppress(NodewiseError):  # then the sweeps before this have to do
            self.release(task)

    def close(self) -> None:
        """The agent takes it for the end of this process."""
        if self._link is not None:
            self._link.close()
        self._link, self._read = None, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connected(self, deadline: float) -> socket.socket:
        if self._link is None:
            self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._connect(self._link, deadline)
        self._limit(self._link, deadline)
        return self._link

    def _connect(self, link: socket.socket, deadline: float) -> None:
        """While others wait to be let in the kernel turns away who would not wait as well (connect(2), EAGAIN)."""
        while True:
            self._limit(link, deadline)
            try:
                return link.connect(str(self._path))
            except BlockingIOError:
                time.sleep(_PAUSE_S)

    def _line(self, link: socket.socket, deadline: float) -> bytes:
        """Up to its end; what comes after it is the next one's."""
        while b"\n" not in self._read:
            self._limit(link, deadline)
            piece = link.recv(LONGEST_BYTES)
            if not piece:
                raise ConnectionResetError("it closed the connection")
            self._read += piece
            if len(self._read) > LONGEST_BYTES:
                self.close()
                raise BadInput(
                    "cannot read a message", [Problem("line", "without an end", f"{LONGEST_BYTES} bytes")]
                )
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _limit(self, link: socket.socket, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self._timeout_s:g} s")
        link.settimeout(left)

    def _silent(self, error: OSError) -> NodewiseError:
        seen = error.strerror or str(error)
        if isinstance(error, PermissionError):
            return Refused("cannot ask the node agent", [Problem(str(self._path), seen, "")])
        remedy = "does the node agent run here? nodewise cpu agent"
        return Unavailable(
            "the node agent does not answer", [Problem(str(self._path), seen, "")], remedy=remedy
        )
