"""An exporter whose series and HTTP status a test changes between scrapes."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.cluster.api_client import Object


class ChangingExporter:
    """An exporter on loopback. It serves `text` with the HTTP status `status`."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.status = 200
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter.text.encode()
                self.send_response(exporter.status)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def scrape_configuration(self, interval: str = "1s") -> Object:
        """The configuration of a Prometheus that scrapes only this exporter and keeps its labels."""
        job = {"job_name": "x", "honor_labels": True, "static_configs": [{"targets": [self.address]}]}
        return {
            "global": {"scrape_interval": interval, "scrape_timeout": interval},
            "scrape_configs": [job],
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def exporting(text: str) -> Iterator[ChangingExporter]:
    """Runs an exporter with these series."""
    exporter = ChangingExporter(text)
    try:
        yield exporter
    finally:
        exporter.close()
