"""A real API server with both kinds of placement policies."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.cluster import admission_policy_waits, extender_process
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import ApiError, ClusterApi, Object, folder_of, path_of
from tests.cluster.placement_policy_specs import avoiding

FIELD_POLICY: Final = [
    document
    for document in extender_process.manifest("policy-fields.yaml")
    if document["metadata"]["name"] == "nodewise-placement-policy-fields"
]
"""The admission policy of the fields of both kinds, and its binding."""


@contextmanager
def defining_both_kinds(api: ClusterApi) -> Iterator[None]:
    """While this is open, the API server has both definitions and the admission policy of their fields."""
    extender_process.define(api)
    made = [api.create(document) for document in FIELD_POLICY]
    wrong = avoiding(colour="red")
    admission_policy_waits.wait_denied(lambda: admission_policy_waits.try_create(api, wrong))
    yield
    for document in made:
        api.delete(path_of(document))


def refusal(api: ClusterApi, obj: Object) -> str:
    """The error of the API server for a client that does not ask for field validation; empty if it accepts the object.

    Nothing is stored.
    """
    params = DRY_RUN | {"fieldValidation": "Ignore"}
    try:
        api.request("POST", folder_of(obj), json=obj, params=params)
    except ApiError as error:
        return str(error)
    return ""
