"""Resource profiles, and errors in their files."""

from pathlib import Path
from typing import Any

import pytest

from nodewise.agents.gpu import vendor_resource_names
from nodewise.agents.gpu.vendor_resource_names import GENERIC, INTEL, ResourceProfile
from nodewise.base.errors import BadSettings

WHOLE = """
prefix: example.com/
counts: [gpu, gpu.shared]
shares: [gpu-memory]
monitoring: [gpu-monitor]
tiles: slice
cards: labels
count_label: example.com/gpu.number
"""


def test_the_named_profiles() -> None:
    assert vendor_resource_names.load_profile("intel") is INTEL
    assert vendor_resource_names.load_profile("generic") is GENERIC


@pytest.mark.parametrize(
    ("of", "resource", "ours"),
    [
        (INTEL, "gpu.intel.com/anything", True),
        (INTEL, "gpu.intel.comx/i915", False),
        (INTEL, "cpu", False),
        (GENERIC, "nvidia.com/gpu", True),
        (GENERIC, "nvidia.com/gpu-milli", True),
        (GENERIC, "nvidia.com/gpumem", True),
        (GENERIC, "nvidia.com/mig-1g.5gb", False),
        (GENERIC, "gpu", False),
    ],
)
def test_which_resources_are_of_cards(of: ResourceProfile, resource: str, ours: bool) -> None:
    assert of.has(resource) is ours


def test_a_file_says_all_of_it(tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(WHOLE)
    profile = vendor_resource_names.load_profile(str(file))
    assert profile == ResourceProfile(
        prefix="example.com/",
        counts=("example.com/gpu", "example.com/gpu.shared"),
        shares=frozenset({"example.com/gpu-memory"}),
        monitoring=frozenset({"example.com/gpu-monitor"}),
        subdevices="example.com/slice",
        labelled=True,
        count_label="example.com/gpu.number",
    )
    ours = {"gpu", "gpu.shared", "gpu-memory", "gpu-monitor", "slice"}
    assert {name for name in (*ours, "other") if profile.has("example.com/" + name)} == ours
    assert profile.short("example.com/slice") == "slice"


def test_a_file_of_two_fields_is_enough() -> None:
    profile = vendor_resource_names.parse_profile({"prefix": "amd.com/", "counts": ["gpu"]}, "f")
    assert profile.has("amd.com/anything")
    assert (profile.labelled, profile.count_label) == (False, "amd.com/gpu.count")


WRONG: dict[str, tuple[Any, str]] = {
    "no mapping": ([], r"f: \[\]; expected a mapping of prefix, counts"),
    "nothing": (None, "f: None; expected a mapping"),
    "no prefix": ({"counts": ["gpu"]}, "f: prefix: nothing; expected a domain and a slash"),
    "a prefix without a slash": ({"prefix": "a.b", "counts": ["gpu"]}, "f: prefix: 'a.b'; expected a domain"),
    "a prefix of Kubernetes itself": (
        {"prefix": "x.kubernetes.io/", "counts": ["gpu"]},
        "f: prefix: 'x.kubernetes.io/'; expected .* not of kubernetes.io",
    ),
    "a number as prefix": ({"prefix": 3, "counts": ["gpu"]}, "f: prefix: 3; expected a domain"),
    "no counts": ({"prefix": "a.b/"}, "f: counts: nothing; expected a list"),
    "empty counts": ({"prefix": "a.b/", "counts": []}, r"f: counts: \[\]; expected a list .*, one at least"),
    "counts with prefix": ({"prefix": "a.b/", "counts": ["a.b/gpu"]}, "f: counts: .*without the prefix"),
    "counts as text": ({"prefix": "a.b/", "counts": "gpu"}, "f: counts: 'gpu'; expected a list"),
    "shares of numbers": ({"prefix": "a.b/", "counts": ["g"], "shares": [1]}, r"f: shares: \[1\]; expected"),
    "monitoring null": (
        {"prefix": "a.b/", "counts": ["g"], "monitoring": None},
        "f: monitoring: None; expected",
    ),
    "tiles as list": ({"prefix": "a.b/", "counts": ["g"], "tiles": ["t"]}, r"f: tiles: \['t'\]; expected"),
    "cards elsewhere": (
        {"prefix": "a.b/", "counts": ["g"], "cards": "x"},
        "f: cards: 'x'; expected labels or count",
    ),
    "cards a list": (
        {"prefix": "a.b/", "counts": ["g"], "cards": []},
        r"f: cards: \[\]; expected labels or count",
    ),
    "no label": (
        {"prefix": "a.b/", "counts": ["g"], "count_label": "a b"},
        "f: count_label: 'a b'; expected the key",
    ),
    "an unknown field": (
        {"prefix": "a.b/", "counts": ["g"], "share": []},
        "f: share: an unknown field; expected one of",
    ),
    "all at once": ({"count": 1}, "count: an unknown field.*prefix: nothing.*counts: nothing"),
}


@pytest.mark.parametrize(("document", "message"), WRONG.values(), ids=WRONG)
def test_problem_names_field_and_expected_value(document: Any, message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        vendor_resource_names.parse_profile(document, "f")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"{", b"a: [", b"\x00", b"[" * 5000])
def test_a_file_that_is_no_yaml_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "profile.yaml"
    file.write_bytes(content)
    with pytest.raises(BadSettings, match=r"--gpu-profile: .*profile.yaml"):
        vendor_resource_names.load_profile(str(file))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(
        BadSettings,
        match=r"--gpu-profile: /nowhere/x: .*expected intel, nvidia, amd, generic or a readable YAML",
    ):
        vendor_resource_names.load_profile("/nowhere/x")
