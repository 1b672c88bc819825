import pytest

from nodewise.base.errors import BadSettings
from nodewise.scheduling_model import extender_client

URL = {"urlPrefix": "http://extender"}


def test_defaults_are_upstream_s() -> None:
    (entry,) = extender_client.entries([URL])
    assert (entry.timeout_s, entry.ignorable, entry.node_cache_capable) == (5.0, False, False)


def test_a_whole_entry() -> None:
    tls = {"caFile": "ca", "certFile": "cert", "keyFile": "key", "serverName": "nodewise"}
    managed = [{"name": "telemetry/scheduling", "ignoredByScheduler": True}, {"name": "gpu.intel.com/i915"}]
    document = URL | {
        "enableHTTPS": True,
        "tlsConfig": tls,
        "httpTimeout": "300ms",
        "managedResources": managed,
    }
    (entry,) = extender_client.entries([document])
    assert entry.enable_https
    assert entry.tls_config
    assert entry.tls_config.server_name == "nodewise"
    assert entry.timeout_s == 0.3
    assert entry.ignored == {"telemetry/scheduling"}


def test_ignorable_ones_are_asked_last() -> None:
    documents = [
        {"urlPrefix": name, "ignorable": ignorable} for name, ignorable in (("a", True), ("b", False))
    ]
    assert [entry.url_prefix for entry in extender_client.entries(documents)] == ["b", "a"]


BROKEN = {
    "no weight": ({"prioritizeVerb": "prioritize"}, r"extenders\[0\].weight: 0; expected a positive weight"),
    "a key that is none": ({"filterverb": "filter"}, "unknown field `filterverb`"),
    "a verb that is not modelled": ({"bindVerb": "bind"}, r"extenders\[0\].bindVerb: 'bind'; expected none"),
    "a time that is none": ({"httpTimeout": "soon"}, r"extenders\[0\].httpTimeout: invalid duration 'soon'"),
    "a CA that nobody looks at": (
        {"tlsConfig": {"insecure": True, "caFile": "ca"}},
        r"extenders\[0\].tlsConfig: both insecure and caFile",
    ),
    "a resource twice": (
        {"managedResources": [{"name": "a/b"}, {"name": "a/b"}]},
        "a/b in 2 managedResources",
    ),
}


@pytest.mark.parametrize(("fields", "message"), BROKEN.values(), ids=BROKEN)
def test_what_kube_scheduler_refuses_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        extender_client.entries([URL | fields])


def test_all_problems_are_told_together() -> None:
    with pytest.raises(BadSettings) as raised:
        extender_client.entries([URL | {"bindVerb": "bind", "prioritizeVerb": "p"}, {"filterVerb": "f"}])
    assert len(raised.value.problems) == 3
