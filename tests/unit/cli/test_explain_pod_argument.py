"""The argument POD of `nodewise explain`."""

import pytest

from nodewise.cli.explain import parse_pod_argument
from nodewise.errors import BadSettings


@pytest.mark.parametrize(
    ("text", "option", "expected"),
    [
        ("web-1", "", ("", "web-1")),
        ("web-1", "shop", ("shop", "web-1")),
        ("pod/web-1", "shop", ("shop", "web-1")),
        ("pods/web-1", "", ("", "web-1")),
        ("po/web-1", "", ("", "web-1")),
        ("Pod/web-1", "", ("", "web-1")),
        ("shop/web-1", "", ("shop", "web-1")),
        ("shop/web-1", "shop", ("shop", "web-1")),
        ("po", "", ("", "po")),
    ],
)
def test_forms(text: str, option: str, expected: tuple[str, str]) -> None:
    assert parse_pod_argument(text, option) == expected


@pytest.mark.parametrize("kind", ["deployment", "deployments", "deploy", "rs", "StatefulSet", "ds", "job"])
def test_an_owner_of_pods_is_told_from_a_namespace(kind: str) -> None:
    with pytest.raises(BadSettings, match=f"POD: '{kind}/web'; expected a pod") as raised:
        parse_pod_argument(f"{kind}/web", "shop")
    assert f"kubectl describe {kind}/web shows its selector" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "option"),
    [("", ""), ("shop/", ""), ("/web", ""), ("pod/", ""), ("pod/shop/web", ""), ("shop/web", "other")],
)
def test_invalid_forms(text: str, option: str) -> None:
    with pytest.raises(BadSettings, match="NAME, pod/NAME or NAMESPACE/NAME, and one namespace"):
        parse_pod_argument(text, option)
