"""URL paths of the API server: any name stays one path segment, or is refused."""

import posixpath
from contextlib import suppress
from urllib.parse import unquote, urlsplit

import httpx2
from hypothesis import example, given
from hypothesis import strategies as st

from nodewise.base.errors import BadInput
from nodewise.kube.resource_kinds import NODES, PODS, escape_path

ODD = st.text("./%\\?#:;@&=*~2eEfF \t\n\x00", max_size=8)
NAMES = st.text(max_size=12) | ODD | st.text(st.characters(categories=["Cs"]), max_size=2)
SERVER = "https://server"


def normalised(path: str) -> str:
    """The path after the strictest rewriting by a proxy: fully decoded, without empty and dot segments."""
    decoded = unquote(path)
    while decoded != (again := unquote(decoded)):
        decoded = again
    return posixpath.normpath(decoded)


@given(st.lists(NAMES, min_size=1, max_size=4))
@example(["nodes", ".."])
@example(["nodes", "%2e%2e"])
@example(["nodes", "a%252fb"])
@example(["nodes", ""])
def test_a_path_has_as_many_segments_as_names_for_every_server(names: list[str]) -> None:
    with suppress(BadInput):
        path = escape_path(*names)
        assert normalised(path).split("/") == ["", *names]
        sent = httpx2.URL(SERVER + path)
        assert sent.raw_path.decode() == urlsplit(SERVER + path).path == path


@given(NAMES, NAMES)
def test_an_object_is_never_another_object(namespace: str, name: str) -> None:
    with suppress(BadInput):
        expected = ["", "api", "v1", "namespaces", namespace, "pods", name, "binding"]
        assert normalised(PODS.path(namespace, name, "binding")).split("/") == expected
    with suppress(BadInput):
        assert normalised(NODES.path(name=name)).split("/") == ["", "api", "v1", "nodes", name]


@given(st.from_regex(r"[a-z0-9]([-a-z0-9.:]{0,20}[a-z0-9])?", fullmatch=True))
def test_names_of_kubernetes_make_paths(name: str) -> None:
    assert NODES.path(name=name).startswith("/api/v1/nodes/")
