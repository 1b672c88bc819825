"""Claims that pods with claim templates get in files."""

import json
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
CLAIM = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "shop-gpus"}}


def pod(*references: dict[str, Any], namespace: str = "web", **parts: Any) -> dict[str, Any]:
    metadata = {"name": "shop", **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"resourceClaims": [*references]},
        **parts,
    }


def add_claims(folder: Path, *objects: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The status of the pod, and the claims."""
    (folder / "objects.yaml").write_text(yaml.safe_dump_all(objects))
    files = claim_templates.add_claims(object_files.read([folder]))
    [of_pod] = [json.loads(entry.data) for entry in files.entries("", "Pod")]
    claims = [json.loads(entry.data) for entry in files.entries("resource.k8s.io", "ResourceClaim")]
    return of_pod.get("status"), claims


@pytest.mark.parametrize("status", [{}, {"status": {}}, {"status": {"resourceClaimStatuses": None}}])
def test_waiting_pod_gets_a_claim_of_its_template(tmp_path: Path, status: dict[str, Any]) -> None:
    of_pod, claims = add_claims(tmp_path, TEMPLATE, pod(REFERENCE, **status))
    assert of_pod == {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "shop-gpus"}]}
    metadata = {"name": "shop-gpus", "namespace": "web"}
    assert claims == [{**CLAIM, "metadata": metadata, "spec": TEMPLATE["spec"]["spec"]}]  # type: ignore[index]


def test_template_and_pod_without_a_namespace_are_in_the_same_one(tmp_path: Path) -> None:
    template = {**TEMPLATE, "metadata": {"name": "two"}}
    _, claims = add_claims(tmp_path, template, pod(REFERENCE, namespace=""))
    assert claims[0]["metadata"] == {"name": "shop-gpus", "namespace": "default"}


def test_names_of_claims_do_not_collide(tmp_path: Path) -> None:
    taken = {**CLAIM, "metadata": {"name": "shop-gpus", "namespace": "web"}}
    other = {"name": "more", "resourceClaimTemplateName": "two"}
    of_pod, claims = add_claims(tmp_path, taken, TEMPLATE, pod(REFERENCE, other))
    assert [claim["metadata"]["name"] for claim in claims] == ["shop-gpus", "shop-gpus-2", "shop-more"]
    assert of_pod["resourceClaimStatuses"] == [
        {"name": "gpus", "resourceClaimName": "shop-gpus-2"},
        {"name": "more", "resourceClaimName": "shop-more"},
    ]


@pytest.mark.parametrize(
    "unchanged",
    [
        pod(REFERENCE, namespace="other"),
        pod({"name": "gpus", "resourceClaimTemplateName": "unknown"}),
        pod({"name": "gpus", "resourceClaimName": "own"}),
        pod(REFERENCE, status={"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "created"}]}),
        pod(REFERENCE, status={"resourceClaimStatuses": [{"name": "gpus"}]}),
        {**pod(REFERENCE), "spec": {"nodeName": "a", "resourceClaims": [REFERENCE]}},
        {**pod(), "spec": "invalid"},
        {**pod(), "spec": {"resourceClaims": None}},
    ],
    ids=[
        "template of another namespace",
        "unknown template",
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


def test_invalid_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"objects\.yaml, document 1: spec: `int`; expected `object`"):
        add_claims(tmp_path, {**TEMPLATE, "spec": 5}, pod(REFERENCE))
