"""The blocking client with an in-memory API server. `tests/cluster/test_cpu_api_client.py` uses a real one."""

from collections.abc import Iterator

import pytest

from cpu_tests.unit.api_client_suite import CONFIG_MAPS, ApiClientSuite
from nodewise.base.errors import Unavailable
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise_cpu.cluster.blocking_client import BlockingClient


@pytest.fixture
def api_client() -> Iterator[BlockingClient]:
    with BlockingClient(FakeApi()) as opened:
        yield opened


@pytest.fixture
def space() -> str:
    return "default"


class TestBlocking(ApiClientSuite):
    pass


def test_a_call_after_close_is_unavailable() -> None:
    opened = BlockingClient(FakeApi())
    opened.close()
    opened.close()
    with pytest.raises(Unavailable, match="closed by us"):
        opened.get(CONFIG_MAPS.path("default"))


def test_an_answer_that_is_no_json_is_no_answer() -> None:
    fake = FakeApi()
    fake.raw["/version"] = b"<html>"
    with (
        BlockingClient(fake, "https://proxy") as opened,
        pytest.raises(Unavailable, match="https://proxy/version"),
    ):
        opened.get("/version")
