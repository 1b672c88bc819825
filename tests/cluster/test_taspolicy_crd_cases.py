"""The policies of crd.yaml on a real API server, which accepts or refuses them, and the stored specs."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.cluster import extender_process, namespace_sandboxes
from tests.cluster.api_client import ApiError, ClusterApi, Object
from tests.cluster.controlplane import ControlPlane
from tests.conformance.tas import case_table_rows
from tests.conformance.tas.non_request_rows import DefinitionRow, DefinitionTable

TABLE = case_table_rows.read("crd", DefinitionTable)
OURS = "telemetry.intel.com"
OLDER = "older.nodewise.io"
VERSION = "v1alpha1"


class OfferedPolicy(NamedTuple):
    """The result for a policy: the spec that would be stored, or the error message."""

    spec: Any = None
    refusal: str = ""


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[ClusterApi]:
    """An API server with the current definition and admission policy, and the older definition in another group."""
    extender_process.define(plane.api)
    made = plane.api.create(_definition(OLDER, TABLE.older))
    path = f"/apis/{OLDER}/{VERSION}/taspolicies"
    namespace_sandboxes.wait("the older definition is served", lambda: plane.api.answers(path) or None)
    with extender_process.refusing_unknown_fields(plane.api):
        yield plane.api
    plane.api.delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{made['metadata']['name']}")


def _definition(group: str, schema: Object) -> Object:
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    names = {
        "kind": "TASPolicy",
        "listKind": "TASPolicyList",
        "plural": "taspolicies",
        "singular": "taspolicy",
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"taspolicies.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def specs(row: DefinitionRow) -> list[Any]:
    return [*row.specs, *({"strategies": {"dontschedule": {"rules": [rule]}}} for rule in row.rules)]


def offered(api: ClusterApi, group: str, name: str, spec: Any) -> OfferedPolicy:
    """Creates a policy as a dry run; without a spec if `spec` is None."""
    metadata = {"namespace": "default", **({"name": name} if name else {})}
    policy = {"apiVersion": f"{group}/{VERSION}", "kind": "TASPolicy", "metadata": metadata}
    body = policy | ({} if spec is None else {"spec": spec})
    path = f"/apis/{group}/{VERSION}/namespaces/default/taspolicies"
    try:
        response_body = api.request("POST", path, json=body, params={"dryRun": "All"}).json()
    except ApiError as error:
        return OfferedPolicy(refusal=str(error))
    return OfferedPolicy(response_body.get("spec"))


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: f"{row.number} {row.name}".strip())
def test_definition(api: ClusterApi, row: DefinitionRow) -> None:
    for spec in specs(row):
        response = offered(api, OURS, row.object_name, spec)
        if row.refused:
            assert row.refused in response.refusal, spec
        else:
            assert response == OfferedPolicy(spec)


@pytest.mark.parametrize(
    "row", [row for row in TABLE.rows if row.number], ids=lambda row: f"{row.number} {row.name}"
)
def test_the_older_definition_answers_as_the_row_says(api: ClusterApi, row: DefinitionRow) -> None:
    """Checks that the schema in the table is that of the older system."""
    if row.differs:
        return
    for spec in specs(row):
        assert bool(offered(api, OLDER, row.object_name, spec).refusal) == bool(row.refused), spec


def test_objects_stored_with_the_older_definition_are_accepted_unchanged(api: ClusterApi) -> None:
    stored = 0
    for row in [row for row in TABLE.rows if not row.differs]:
        for spec in specs(row):
            older = offered(api, OLDER, row.object_name, spec)
            if not older.refusal:
                stored += 1
                assert offered(api, OURS, row.object_name, older.spec) == older
    assert stored > 20
