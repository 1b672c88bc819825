"""Claims that pods with claim templates get in files."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodewise.base.errors import BadInput
from nodewise.devices import claim_templates
from nodewise.kube import object_files

TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "two", "namespace": "web"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu"}}]}}},
}
REFERENCE = {"name": "gpus", "resourceClaimTemplateName": "two"}
CLAIM = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}


def pod(*references: dict[str, Any], namespace: str = "web", **parts: Any) -> dict[str, Any]:
    metadata = {"name": "shop", **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"resourceClaims": [*references]},
        **parts,
    }


def add_claims(
    folder: Path, *objects: dict[str, Any], warnings: Sequence[str] = ()
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The status of the pod, and the claims."""
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    messages: list[str] = []
    files = claim_templates.add_claims(object_files.read([folder]), messages.append)
    assert messages == [f"Warning: {file}, document {len(objects)}: {each}" for each in warnings]
    [of_pod] = [json.loads(entry.data) for entry in files.entries("", "Pod")]
    claims = [json.loads(entry.data) for entry in files.entries("resource.k8s.io", "ResourceClaim")]
    return of_pod.get("status"), claims


@pytest.mark.parametrize("status", [{}, {"status": {}}, {"status": {"resourceClaimStatuses": None}}])
def test_waiting_pod_gets_a_claim_of_its_template(tmp_path: Path, status: dict[str, Any]) -> None:
    of_pod, claims = add_claims(tmp_path, TEMPLATE, pod(REFERENCE, **status))
    assert of_pod == {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "shop:gpus"}]}
    metadata = {"name": "shop:gpus", "namespace": "web"}
    assert claims == [{**CLAIM, "metadata": metadata, "spec": TEMPLATE["spec"]["spec"]}]  # type: ignore[index]


def test_template_and_pod_without_a_namespace_are_in_the_same_one(tmp_path: Path) -> None:
    template = {**TEMPLATE, "metadata": {"name": "two"}}
    _, claims = add_claims(tmp_path, template, pod(REFERENCE, namespace=""))
    assert claims[0]["metadata"] == {"name": "shop:gpus", "namespace": "default"}


def test_pod_gets_a_claim_for_each_reference_beside_those_that_it_has(tmp_path: Path) -> None:
    existing = {"name": "gpus", "resourceClaimName": "shop-gpus-x7k2p"}
    more = [{"name": name, "resourceClaimTemplateName": "two"} for name in ("more", "most")]
    waiting = pod(REFERENCE, *more, status={"phase": "Pending", "resourceClaimStatuses": [existing]})
    status, claims = add_claims(tmp_path, TEMPLATE, waiting)
    assert [claim["metadata"]["name"] for claim in claims] == ["shop:more", "shop:most"]
    created = [{"name": name, "resourceClaimName": f"shop:{name}"} for name in ("more", "most")]
    assert status == {"phase": "Pending", "resourceClaimStatuses": [existing, *created]}


@pytest.mark.parametrize(
    ("template", "waiting", "name"),
    [
        (TEMPLATE, pod(REFERENCE, namespace="other"), "other/two"),
        (
            TEMPLATE,
            pod({"name": "gpus", "resourceClaimTemplateName": "twoo"}),
            'web/twoo; did you mean "two"?',
        ),
    ],
    ids=["template of another namespace", "misspelt template"],
)
def test_template_that_no_file_has_is_named(
    tmp_path: Path, template: dict[str, Any], waiting: dict[str, Any], name: str
) -> None:
    warning = f"no file has the ResourceClaimTemplate {name}"
    assert add_claims(tmp_path, template, waiting, warnings=[warning]) == (None, [])


@pytest.mark.parametrize(
    "unchanged",
    [
        pod({"name": "gpus", "resourceClaimName": "own"}),
        pod(REFERENCE, status={"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "created"}]}),
        pod(REFERENCE, status={"resourceClaimStatuses": [{"name": "gpus"}]}),
        {**pod(REFERENCE), "spec": {"nodeName": "a", "resourceClaims": [REFERENCE]}},
        {**pod(), "spec": "invalid"},
        {**pod(), "spec": {"resourceClaims": None}},
    ],
    ids=[
        "claim of its own",
        "claim exists",
        "no claim needed",
        "pod on a node",
        "invalid pod",
        "no claims",
    ],
)
def test_pod_without_a_missing_claim_is_unchanged(tmp_path: Path, unchanged: dict[str, Any]) -> None:
    assert add_claims(tmp_path, TEMPLATE, unchanged) == (unchanged.get("status"), [])


def test_pods_of_files_without_templates_cause_no_warning(tmp_path: Path) -> None:
    assert add_claims(tmp_path, pod(REFERENCE)) == (None, [])


def test_unknown_template_of_several_pods_is_named_once(tmp_path: Path) -> None:
    unknown = {"name": "gpus", "resourceClaimTemplateName": "other"}
    pods = [{**pod(unknown), "metadata": {"name": name, "namespace": "web"}} for name in ("a", "b")]
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all([TEMPLATE, *pods]))
    messages: list[str] = []
    claim_templates.add_claims(object_files.read([tmp_path]), messages.append)
    place = tmp_path / "objects.yaml"
    assert messages == [f"Warning: {place}, document 2: no file has the ResourceClaimTemplate web/other"]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (5, "spec: `int`; expected `object`"),
        ({}, "spec: Object missing required field `spec`"),
        (
            {"spec": {"devices": {"requests": 5}}},
            "spec.spec.devices.requests: `int`; expected `array | null`",
        ),
    ],
)
def test_invalid_template_is_named(tmp_path: Path, spec: object, problem: str) -> None:
    with pytest.raises(BadInput, match=re.escape(f"objects.yaml, document 1: {problem}")):
        add_claims(tmp_path, {**TEMPLATE, "spec": spec}, pod(REFERENCE))
