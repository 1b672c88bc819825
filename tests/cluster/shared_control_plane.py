"""The control plane that all test files of one process share, one after another."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import audit_log_reader, controlplane
from tests.cluster.api_server_cleanup import Baseline
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.controlplane import ControlPlane


class SharedControlPlane:
    """A control plane that starts when it is first needed, and restarts if a file's objects cannot be removed."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._plane: ControlPlane | None = None
        self._baseline: Baseline | None = None
        self._folder = Path()

    @contextlib.contextmanager
    def use(self, programs: Path) -> Iterator[ControlPlane]:
        """The control plane for the tests of one file, in the state after its start.

        A file may stop the API server.
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
        """The audit log of the requests from now on."""
        return AuditLog(self._folder)

    def stop(self) -> None:
        """Stops the control plane if it runs."""
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
"""The control plane for all test folders. A fixture that several `conftest.py` import would create one for each of
them.
"""
