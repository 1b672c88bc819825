"""Edited texts have the expected value, and only the necessary lines change."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.base.errors import BadInput
from nodewise.install import scheduler_static_pod, yaml_editor
from nodewise.install.scheduler_static_pod import DesiredState, PriorState
from tests.conformance.configure import scheduler_manifests

NAMES = st.sampled_from(["a", "b", "c", "name", "path"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from(
        ["x", "", "yes", "--config=/a", "a: b", "# no", "1.10", "0644", "two\nlines\n", " x ", "ä", "- "]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)
MAPS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=4)
STYLES = st.sampled_from(
    [
        yaml.safe_dump,
        lambda value: yaml.safe_dump(value, sort_keys=False, indent=4),
        lambda value: yaml.safe_dump(value, default_flow_style=True),
        json.dumps,
        lambda value: json.dumps(value, indent=2),
        lambda value: "---\n# first\n" + yaml.safe_dump(value).replace("\n", "\n\n", 1),
    ]
)


@settings(deadline=None)
@given(old=MAPS, new=MAPS, style=STYLES)
def test_an_edited_text_has_the_expected_value_or_is_refused(old, new, style):
    document = yaml_editor.parse_document(style(old).encode(), "t")
    try:
        text = yaml_editor.rewrite_document(document, new)
    except BadInput:
        return
    assert yaml.load(text, yaml.CSafeLoader) == new


@settings(deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=60), st.text(alphabet="ab:-&*<![]{}'\"#|> \n\t1", max_size=60).map(str.encode)
    )
)
def test_whatever_is_read_is_read_or_refused(data):
    try:
        document = yaml_editor.parse_document(data, "t")
    except BadInput:
        return
    assert yaml_editor.rewrite_document(document, document.value) == data


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_first_keys_of_a_list_item_can_be_removed(end):
    lines = ["containers:", "- volumeMounts: []", "  args: [a]", "  image: i", "- name: other", ""]
    document = yaml_editor.parse_document(end.join(lines).encode(), "t")
    text = yaml_editor.rewrite_document(document, {"containers": [{"image": "i"}, {"name": "other"}]})
    assert text == end.join(["containers:", "- image: i", "- name: other", ""]).encode()


@pytest.mark.parametrize("style", [scheduler_manifests.to_yaml, json.dumps], ids=["yaml", "json"])
@pytest.mark.parametrize("minor", range(19, 38))
def test_all_that_is_put_in_can_be_taken_out_to_the_byte(minor, style):
    old = style(scheduler_manifests.kubeadm_pod(minor)).encode()
    manifest = scheduler_static_pod.parse_manifest(old, "m")
    wanted = DesiredState("/k/config.yaml", "/k/certs", "hash", PriorState())
    new = yaml_editor.rewrite_document(
        manifest.document, scheduler_static_pod.add_configuration(manifest, wanted)
    )
    again = scheduler_static_pod.parse_manifest(new, "m")
    assert (
        yaml_editor.rewrite_document(again.document, scheduler_static_pod.add_configuration(again, wanted))
        == new
    )
    assert (
        yaml_editor.rewrite_document(again.document, scheduler_static_pod.remove_configuration(again)) == old
    )
