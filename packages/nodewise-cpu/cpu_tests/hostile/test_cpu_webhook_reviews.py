"""Reviews of pods that a tenant has prepared for the CPU webhook: patches change only what they are to change."""

import base64
import json
from typing import Any, Final

import pytest

from cpu_tests.unit.webhook import json_patch
from nodewise_cpu.webhook import pod_mutation

CORES: Final = {"requests": {"cmk.intel.com/exclusive-cores": "1"}}
MUTATIONS: Final = pod_mutation.default_mutations()


def review(pod: Any, operation: str = "CREATE", **more: Any) -> tuple[dict[str, Any], Any]:
    """The response to a review, and the patched pod."""
    request = {"uid": "u", "kind": {"kind": "Pod"}, "operation": operation, "object": pod, **more}
    document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    answer = pod_mutation.respond_to_review(json.dumps(document).encode(), lambda: MUTATIONS)
    response = json.loads(answer.body)["response"]
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return response, json_patch.applied(patch, pod)


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def test_containers_with_the_same_name_are_each_changed() -> None:
    """The API server refuses such a pod only after the webhook."""
    _, patched = review(
        pod({"name": "c", "resources": CORES}, {"name": "c"}, {"name": "c", "resources": CORES})
    )
    assert ["env" in container for container in patched["spec"]["containers"]] == [True, False, True]


@pytest.mark.parametrize("key", ["a/b", "a~1b", "~0/~", "", "é/\u2028"])
def test_keys_with_the_characters_of_json_pointers_stay(key: str) -> None:
    submitted = pod({"name": "c", "resources": CORES})
    submitted["metadata"]["annotations"] = {key: "mine", "cmk.intel.com/resources-injected": "no"}
    _, patched = review(submitted)
    assert patched["metadata"]["annotations"] == {key: "mine", "cmk.intel.com/resources-injected": "true"}


def test_a_planted_volume_stays_the_tenants_own() -> None:
    """The tenant's own container sees it, and nothing else does."""
    planted = {"name": "nodewise-cpu-agent", "emptyDir": {}}
    _, patched = review(pod({"name": "c", "resources": CORES}, volumes=[planted]))
    assert patched["spec"]["volumes"][0] == planted
    expected = ["nodewise-cpu-agent", "cmk-install-dir"]
    assert [volume["name"] for volume in patched["spec"]["volumes"]] == expected


def test_a_planted_number_of_cores_stays_and_grants_nothing() -> None:
    """The node agent limits a claim to what the API server knows of the container."""
    variable = {"name": "CMK_NUM_CORES", "value": "99"}
    _, patched = review(pod({"name": "c", "env": [variable], "resources": CORES}))
    assert patched["spec"]["containers"][0]["env"] == [variable]


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_ephemeral_containers_are_left_alone(operation: str) -> None:
    submitted = pod({"name": "c"}, ephemeralContainers=[{"name": "debug", "resources": CORES}])
    response, patched = review(submitted, operation, subResource="ephemeralcontainers")
    assert response == {"uid": "u", "allowed": True}
    assert patched == submitted


@pytest.mark.parametrize("amount", ["9" * 400, "1e999999999", "0.5", "NaN"])
def test_an_amount_that_no_container_can_have_is_refused_with_its_field(amount: str) -> None:
    response, _ = review(
        pod({"name": "c", "resources": {"limits": {"cmk.intel.com/exclusive-cores": amount}}})
    )
    assert not response["allowed"]
    assert (
        "spec.containers[0].resources.limits[cmk.intel.com/exclusive-cores]" in response["status"]["message"]
    )
    assert len(response["status"]["message"]) < 400
