"""The Prometheus source on a real Prometheus: the suite that its double passes too, and who may ask."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from nodewise.errors import NodewiseError
from nodewise.metrics.series import Series
from nodewise.metrics.source import Want
from tests.cluster import packages, prometheus
from tests.cluster.api import Object
from tests.cluster.certificates import Authority
from tests.unit.metrics.prometheus_double import Given
from tests.unit.metrics.prometheus_suite import Holding, PrometheusSuite, source, values

HASH = "$2b$04$uCC4cvupet6tuzk0uSInmuxVKhogVpFL4P72LL2SbdR4WtwFaog3e"
"""Of `secret`, by bcrypt."""


class TestReal(PrometheusSuite):
    @pytest.fixture
    def prometheus(self, prometheus_programs: packages.Programs, tmp_path: Path) -> Iterator[Holding]:
        with contextlib.ExitStack() as stack:

            def holding(series: Given) -> str:
                return stack.enter_context(prometheus.holding(prometheus_programs, tmp_path, series)).url

            yield holding


class Guarded:
    """A Prometheus that wants TLS, a client certificate and a password, and what a client needs for that."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "prometheus-ca")
        self.pair = self.authority.issue("nodewise")
        self.password = folder / "password"
        self.password.write_text("secret\n")
        self.url = ""

    def web(self) -> Object:
        server = self.authority.issue("prometheus", "127.0.0.1")
        files = {"cert_file": str(server.cert), "key_file": str(server.key)}
        asked = {
            "client_auth_type": "RequireAndVerifyClientCert",
            "client_ca_file": str(self.authority.ca_file),
        }
        return {"tls_server_config": files | asked, "basic_auth_users": {"nodewise": HASH}}

    def client(self) -> httpx2.Client:
        context = self.authority.client_context(self.pair)
        return httpx2.Client(verify=context, auth=("nodewise", "secret"), trust_env=False)

    def options(self) -> dict[str, str]:
        return {
            "prometheus_ca": str(self.authority.ca_file),
            "prometheus_cert": str(self.pair.cert),
            "prometheus_key": str(self.pair.key),
            "prometheus_user": "nodewise",
            "prometheus_password_file": str(self.password),
        }

    def fetch(self, **options: str) -> Series:
        async def once() -> Series:
            asked = source(self.url, **(self.options() | options))
            try:
                return await asked.fetch(Want("temp"), time.time())
            finally:
                await asked.close()

        return asyncio.run(once())


@pytest.fixture
def guarded(prometheus_programs: packages.Programs, tmp_path: Path) -> Iterator[Guarded]:
    one = Guarded(tmp_path)
    series = {'temp{instance="a"}': "1"}
    with prometheus.holding(
        prometheus_programs, tmp_path / "held", series, one.web(), one.client()
    ) as server:
        one.url = server.url
        yield one


def test_certificate_and_password_are_shown(guarded: Guarded) -> None:
    assert values(guarded.fetch()) == {"a": 1.0}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prometheus_password_file": "/dev/null"}, "401"),
        ({"prometheus_cert": "", "prometheus_key": ""}, "certificate"),
        ({"prometheus_ca": ""}, "certificate"),
    ],
    ids=["no password", "no client certificate", "a CA that is not trusted"],
)
def test_who_lacks_one_of_them_is_told_what_is_wrong(
    guarded: Guarded, options: dict[str, str], said: str
) -> None:
    with pytest.raises(NodewiseError, match=said):
        guarded.fetch(**options)
