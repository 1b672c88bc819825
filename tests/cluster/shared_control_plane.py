"""The control plane that the tests of one process use one file after another."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import audit_log_reader, controlplane
from tests.cluster.api_server_cleanup import Baseline
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.controlplane import ControlPlane


class SharedControlPlane:
    """Starts a control plane when it is first needed, and again after a file whose traces could not be removed."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._plane: ControlPlane | None = None
        self._baseline: Baseline | None = None
        self._folder = Path()

    @contextlib.contextmanager
    def use(self, programs: Path) -> Iterator[ControlPlane]:
        """The control plane for the tests of one file. It is as after its start when the block begins.

        A file may end its API server.
        """
        plane = self._plane or self._start(programs)
        yield plane
        try:
            plane.stop_others()
            if self._baseline and plane.api.answers("/readyz"):
                self._baseline.restore()
            else:
                self.stop()
        except BaseException:
            self.stop()
            raise

    def audit_log(self) -> AuditLog:
        """What is requested from now on."""
        return AuditLog(self._folder)

    def stop(self) -> None:
        """Stops the control plane, if there is one."""
        self._plane = self._baseline = None
        self._stack.close()

    def _start(self, programs: Path) -> ControlPlane:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="nodewise-audit-"))
        self._folder = Path(folder)
        flags = audit_log_reader.flags(self._folder)
        self._plane = self._stack.enter_context(controlplane.running(programs, flags=flags))
        self._baseline = Baseline(self._plane.api)
        return self._plane


SHARED = SharedControlPlane()
"""One for all folders of tests: a fixture that several `conftest.py` import would be one for each of them."""
