"""The response to an AdmissionReview, from bytes to bytes."""

import base64
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from nodewise.base.errors import UNREADABLE, BadInput, BadSettings, Problem, shown
from nodewise_cpu.webhook import json_merge_and_patch, pod_mutation
from nodewise_cpu.webhook.pod_mutation import Mutations

PATH: Final = "/mutate"
"""The path to which the API server sends reviews."""
VERSIONS: Final = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_WHAT: Final = "the review cannot be read"
_OBJECT: Final = "request.object"


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Request(msgspec.Struct, frozen=True):
    uid: str = ""
    kind: _Kind = _Kind()
    operation: str = "CREATE"
    namespace: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: _Request | None = None


class ReviewResponse(NamedTuple):
    """The response to a review, and its outcome."""

    body: bytes
    outcome: Literal["mutated", "untouched", "refused"]
    detail: str = ""
    """The namespace of a mutated pod, or the reason of a refusal."""


_REVIEW: Final = msgspec.json.Decoder(_Review)


def respond_to_review(body: bytes, mutations: Callable[[], Mutations]) -> ReviewResponse:
    """The response to a review: with a patch, without one, or a refusal that names what is wrong with the object.

    BadInput if the body is not a review, or has no UID. BadSettings if the pod requests cores while the
    mutations are invalid.
    """
    review, request = _decode_review(body)
    try:
        return _mutate_or_refuse_pod(review, request, mutations)
    except BadInput as error:
        status = {"code": 400, "reason": "BadRequest", "message": f"nodewise: {error}"}
        response = {"uid": request.uid, "allowed": False, "status": status}
        return ReviewResponse(_encode_review_response(review, response), "refused", str(error))


def _decode_review(body: bytes) -> tuple[_Review, _Request]:
    try:
        review = _REVIEW.decode(body)
    except UNREADABLE as error:
        raise pod_mutation.decoding_error(error, _WHAT) from error
    if review.kind != "AdmissionReview":
        raise BadInput(_WHAT, [Problem("kind", shown(review.kind), "AdmissionReview")])
    if review.api_version not in VERSIONS:
        raise BadInput(_WHAT, [Problem("apiVersion", shown(review.api_version), " or ".join(VERSIONS))])
    if review.request is None:
        raise BadInput(_WHAT, [Problem("request", "missing", "an AdmissionRequest")])
    if not review.request.uid:
        raise BadInput(_WHAT, [Problem("request.uid", "missing", "the UID of the request")])
    return review, review.request


def _mutate_or_refuse_pod(
    review: _Review, request: _Request, mutations: Callable[[], Mutations]
) -> ReviewResponse:
    allowed = {"uid": request.uid, "allowed": True}
    if request.operation != "CREATE":
        return ReviewResponse(_encode_review_response(review, allowed), "untouched")
    if request.kind.kind != "Pod":
        raise BadInput(_WHAT, [Problem("request.kind.kind", shown(request.kind.kind), "Pod")])
    pod = bytes(request.object)
    if pod == b"null":
        raise BadInput(_WHAT, [Problem(_OBJECT, "missing", "a pod")])
    try:
        operations = _mutation_as_json_patch(pod, mutations)
    except BadInput as error:
        problems = [
            problem._replace(field=f"{_OBJECT}.{problem.field}".rstrip(".")) for problem in error.problems
        ]
        raise BadInput(error.what, problems) from error
    if not operations:
        return ReviewResponse(_encode_review_response(review, allowed), "untouched")
    encoded = base64.b64encode(msgspec.json.encode(operations)).decode()
    response = allowed | {"patchType": "JSONPatch", "patch": encoded}
    return ReviewResponse(_encode_review_response(review, response), "mutated", request.namespace)


def _mutation_as_json_patch(
    pod: bytes, mutations: Callable[[], Mutations]
) -> list[json_merge_and_patch.Operation]:
    if not pod_mutation.is_mutation_requested(pod):
        return []
    try:
        whole = msgspec.json.decode(pod)
    except UNREADABLE as error:
        raise pod_mutation.decoding_error(error, "the pod cannot be read") from error
    valid_mutations = mutations()
    try:
        mutated = pod_mutation.mutate(whole, valid_mutations)
    except BadSettings as error:  # the same mutations fit other pods
        raise BadInput("the pod cannot be mutated", error.problems) from error
    return list(json_merge_and_patch.json_patch(whole, mutated))


def _encode_review_response(review: _Review, response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": review.api_version, "kind": review.kind, "response": response})
