"""Reloads certificate files when they change, and warns before certificates expire.

Unusable content never replaces the content in use: a certificate whose key has not been written yet, an empty file, an
expired certificate. It is logged, counted in a metric, and tried again.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from nodewise.base.clock import Clock, format_rfc3339
from nodewise.base.errors import BadSettings, Problem
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.tls import pem_files
from nodewise.tls.pem_files import CertificateBundle, Contents, Paths, X509KeyPair

SOON_S: Final = 7 * 86400.0
"""A certificate that expires within this time is logged once a day."""

_DAY_S: Final = 86400.0
_AGAIN_S: Final = 60.0  # unusable content is retried even if unchanged: a certificate may become valid

T = TypeVar("T", X509KeyPair, CertificateBundle)


class ReloadableFiles(Generic[T]):
    """The last usable content of certificate files. It changes only in `poll`."""

    def __init__(
        self,
        name: str,
        paths: Paths,
        read: Callable[[Paths, Contents], T],
        metrics_registry: MetricsRegistry,
        now_s: float,
    ) -> None:
        """`name` is the label of metrics. BadSettings names every problem of the files.

        An expired certificate is accepted at the start: it is better to present it and to reload a renewed one than not
        to run.
        """
        self._name = name
        self._paths = paths
        self._read: Callable[[Paths, Contents], T] = read
        self._metrics_registry = metrics_registry
        self._seen = self._tried = pem_files.read_contents(paths)
        self._problem = ""
        self._again_at_s = float("-inf")
        self._warn_at_s = float("-inf")
        self.value: T = read(paths, self._tried)
        self._set_metrics(now_s)

    def poll(self, now_s: float) -> bool:
        """Reread changed files. Returns True if they have new usable content.

        A change takes effect when two consecutive calls read the same content: `cat old new > bundle` has only the old
        content for a moment, and two files are written one after the other.
        """
        changed = self._is_due(now_s) and self._reload_changed_files(now_s)
        self._warn_of_expiry(now_s)
        return changed

    def _is_due(self, now_s: float) -> bool:
        """Compares the whole content: the files are small, and a replaced file may have the same size and time."""
        before, self._seen = self._seen, pem_files.read_contents(self._paths)
        if self._seen != before:
            return False
        news = self._seen != self._tried
        self._tried = self._seen
        return news or (bool(self._problem) and now_s >= self._again_at_s)

    def _reload_changed_files(self, now_s: float) -> bool:
        try:
            fresh = self._read(self._paths, self._tried)
            self._check_validity_period(fresh, now_s)
        except BadSettings as error:
            self._record_failed_reload(str(error), now_s)
            return False
        changed = fresh != self.value
        self.value = fresh
        self._problem = ""
        self._warn_at_s = now_s
        self._set_metrics(now_s)
        self._metrics_registry.count("tls_reloads_total", certificate=self._name, outcome="done")
        logs.emit("tls_reloaded", **self._log_fields(now_s))
        return changed

    def _check_validity_period(self, fresh: T, now_s: float) -> None:
        field, path = next(iter(self._paths.items()))
        end_s, begin_s = fresh.end_s(now_s), fresh.begin_s()
        if end_s > now_s >= begin_s:
            return
        actual = f"expired at {format_rfc3339(end_s)}"
        if begin_s > now_s:
            actual = f"is not valid before {format_rfc3339(begin_s)}"
        raise BadSettings(
            pem_files.CERTIFICATE_FILES,
            [Problem(field, f"{path} {actual}", "a certificate that is valid now")],
        )

    def _record_failed_reload(self, problem: str, now_s: float) -> None:
        self._again_at_s = now_s + _AGAIN_S
        if problem == self._problem:
            return
        self._problem = problem
        self._set_metrics(now_s)
        self._metrics_registry.count("tls_reloads_total", certificate=self._name, outcome="failed")
        logs.emit("tls_reload_failed", error=problem, **self._log_fields(now_s))

    def _set_metrics(self, now_s: float) -> None:
        self._metrics_registry.set("tls_reload_failing", int(bool(self._problem)), certificate=self._name)
        end_s = self.value.end_s(now_s)
        self._metrics_registry.set("tls_certificate_expires_seconds", end_s, certificate=self._name)

    def _warn_of_expiry(self, now_s: float) -> None:
        left_s = self.value.end_s(now_s) - now_s
        if left_s < SOON_S and now_s >= self._warn_at_s:
            self._warn_at_s = now_s + _DAY_S
            event = "certificate_expires_soon" if left_s > 0 else "certificate_expired"
            logs.emit(event, **self._log_fields(now_s))

    def _log_fields(self, now_s: float) -> dict[str, str]:
        """The fields of each log line: certificate, files, and expiry of the one in use."""
        end = format_rfc3339(self.value.end_s(now_s))
        return {"certificate": self._name, "files": ", ".join(self._paths.values()), "expires": end}


class CertificateReloader:
    """Polls several certificate files together, at most once in `every_s`."""

    def __init__(
        self,
        files: Sequence[ReloadableFiles[X509KeyPair] | ReloadableFiles[CertificateBundle]],
        clock: Clock,
        every_s: float = 1.0,
    ) -> None:
        self._files = files
        self._clock = clock
        self._every_s = every_s
        self._next_s = float("-inf")

    def poll(self) -> bool:
        """Whether any of them has new content."""
        now_s = self._clock.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._every_s
        # a list, so that all files are polled even if the first one has changed
        changed = [reloadable.poll(self._clock.now()) for reloadable in self._files]
        return any(changed)
