import pytest

from nodewise.kube.resources import EVENTS, LEASES, NODES, PODS, Resource

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
            PODS.path("ns", "../../nodes/a?x=#"),
            "/api/v1/namespaces/ns/pods/..%2F..%2Fnodes%2Fa%3Fx%3D%23",
            id="a name stays a name",
        ),
    ],
)
def test_paths(path: str, wanted: str) -> None:
    assert path == wanted


def test_api_versions() -> None:
    assert [r.api_version for r in (NODES, LEASES, EVENTS)] == [
        "v1",
        "coordination.k8s.io/v1",
        "events.k8s.io/v1",
    ]
