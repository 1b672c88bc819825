"""Every async test of this package runs on both event loops."""

import pytest

from nodewise.observe.metrics_registry import MetricsRegistry
from tests.unit.server.certificate_files import ServerCertificateFiles


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ]
)
def anyio_backend(request):
    return request.param


@pytest.fixture
def tls_files(tmp_path) -> ServerCertificateFiles:
    """The certificate files of a server and its clients, each of its own CA."""
    return ServerCertificateFiles(tmp_path)


@pytest.fixture
def metrics_registry() -> MetricsRegistry:
    return MetricsRegistry()
