import ast
from pathlib import Path

import pytest

import nodewise
from nodewise.base.errors import BadInput
from nodewise.kube.api_server_interface import Api
from nodewise.kube.resource_kinds import EVENTS, LEASES, NODES, PODS, Resource, escape_path, selector
from nodewise.scheduling_model.in_memory_api import CONFIGMAPS, FakeApi
from tests.unit.kube.api_suite import ApiSuite, ElectionSuite, EventSuite, ReflectorSuite, decode, item

POLICIES = Resource("telemetry.intel.com", "v1alpha1", "taspolicies", "TASPolicy")


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        pytest.param(NODES.path(), "/api/v1/nodes", id="all of a cluster-wide kind"),
        pytest.param(NODES.path(name="a"), "/api/v1/nodes/a", id="one of a cluster-wide kind"),
        pytest.param(
            NODES.path("ns", "a"), "/api/v1/nodes/a", id="a namespace that means nothing is left out"
        ),
        pytest.param(PODS.path(), "/api/v1/pods", id="all namespaces"),
        pytest.param(PODS.path("ns"), "/api/v1/namespaces/ns/pods", id="one namespace"),
        pytest.param(
            PODS.path("ns", "p", "binding"), "/api/v1/namespaces/ns/pods/p/binding", id="a subresource"
        ),
        pytest.param(
            POLICIES.path("ns", "p"),
            "/apis/telemetry.intel.com/v1alpha1/namespaces/ns/taspolicies/p",
            id="a kind of a group",
        ),
        pytest.param(
            PODS.path("ns", "a?x=#"), "/api/v1/namespaces/ns/pods/a%3Fx%3D%23", id="a name stays a name"
        ),
    ],
)
def test_paths(path: str, wanted: str) -> None:
    assert path == wanted


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", "%2e%2e", "a%2Fb", "\ud800"])
def test_a_name_that_could_be_another_path_is_an_error(name: str) -> None:
    for path in (
        lambda: PODS.path("ns", name),
        lambda: NODES.path(name=name),
        lambda: escape_path("apis", name),
    ):
        with pytest.raises(BadInput, match="segment: "):
            path()
    with pytest.raises(BadInput, match="segment: "):
        PODS.path("", "p")


@pytest.mark.parametrize("value", ["a,b=c", "a!", "a in (b)", "a\n", "é"])
def test_a_value_that_could_add_a_requirement_to_a_selector_is_an_error(value: str) -> None:
    assert selector("spec.nodeName", "n1.example") == "spec.nodeName=n1.example"
    with pytest.raises(BadInput, match=r"spec\.nodeName: "):
        selector("spec.nodeName", value)


def test_paths_are_made_nowhere_else() -> None:
    """An f-string that begins like a path of the API server contains only constants."""
    violations = [
        f"{file.name}:{node.lineno}"
        for file in Path(nodewise.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.JoinedStr)
        and isinstance(node.values[0], ast.Constant)
        and str(node.values[0].value).startswith(("/api/", "/apis/"))
        and not all(_is_constant(part) for part in node.values)
    ]
    assert violations == []


def _is_constant(part: ast.expr) -> bool:
    value = part.value if isinstance(part, ast.FormattedValue) else part
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id.isupper())


def test_api_versions() -> None:
    expected = ["v1", "coordination.k8s.io/v1", "events.k8s.io/v1"]
    assert [r.api_version for r in (NODES, LEASES, EVENTS)] == expected


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
