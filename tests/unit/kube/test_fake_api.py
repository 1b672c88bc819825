"""The fake passes what the real API server passes (tests/cluster/test_api_client.py)."""

import pytest

from nodewise.kube.api_server_interface import Api
from nodewise.scheduling_model.in_memory_api import CONFIGMAPS, FakeApi
from tests.unit.kube.api_suite import ApiSuite, ElectionSuite, EventSuite, ReflectorSuite, decode, item


@pytest.fixture
def space() -> str:
    return "default"


@pytest.fixture
async def api() -> Api:
    return FakeApi()


class TestFakeApi(ApiSuite):
    async def old_page(self, api: Api, space: str) -> tuple[str, str]:
        assert isinstance(api, FakeApi)
        for name in "ab":
            await api.create(CONFIGMAPS.path(space), item(name))
        token = decode(await api.get(CONFIGMAPS.path(space), {"limit": "1"}))["metadata"]["continue"]
        api.compact()
        return CONFIGMAPS.path(space), token


class TestReflectorOnFake(ReflectorSuite):
    pass


class TestElectionOnFake(ElectionSuite):
    pass


class TestEventsOnFake(EventSuite):
    pass
