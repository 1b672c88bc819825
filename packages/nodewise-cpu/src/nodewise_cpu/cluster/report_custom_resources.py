"""Reports about nodes as objects in the API server: a node's cores and pools, and reclaimed CPU lists.

The kinds are CMK's. Current API servers need a definition with a schema, which is in `deploy/crds` too; older ones get
the form of their version.
"""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from nodewise.base.errors import BadInput, Conflict, NodewiseError, Refused, shown
from nodewise.kube.api_server_interface import NotAllowed, NotFound
from nodewise.kube.resource_kinds import Resource, escape_path
from nodewise.observe import logs
from nodewise_cpu.cluster import api_server
from nodewise_cpu.cluster.api_server import ApiClient, ApiFeatures

GROUP: Final = "intel.com"
_OLD_GROUP: Final = "cmk.intel.com"  # the group of third-party resources, before Kubernetes 1.7
_TRIES: Final = 10
_SERVED_S: Final = 30.0
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class ReportKind(NamedTuple):
    name: str
    """`cmk-nodereport`: the singular, for kubectl."""
    short: str
    old: str
    """The kind as a third-party resource: `Nodereport`."""
    schema: Mapping[str, Any]
    """The schema of the report itself."""
    columns: Mapping[str, tuple[str, str]]
    """The columns of `kubectl get` besides the name: type, and path in the report."""

    @property
    def resource(self) -> Resource:
        return Resource(GROUP, "v1", f"{self.name}s", self.name.capitalize())

    @property
    def third_party_resource(self) -> Resource:
        return Resource(_OLD_GROUP, "v1", f"{self.old.lower()}s", self.old)


_TEXT: Final = {"type": "string"}
_CPUS: Final = {"type": "array", "items": {"type": "integer"}}


def _object_schema(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    requirement = {"required": list(required)} if required else {}
    return {
        "type": "object",
        **requirement,
        "properties": properties,
        "x-kubernetes-preserve-unknown-fields": True,
    }


def _array_schema(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _map_schema(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": value}


_POOL: Final = _object_schema(
    ("cpuLists", "exclusive", "name"),
    name=_TEXT,
    exclusive={"type": "boolean"},
    cpuLists=_map_schema(_object_schema(("cpus", "tasks"), cpus=_TEXT, tasks=_array_schema(_TEXT))),
)
_CPU: Final = _object_schema(
    ("id", "isolated"), id={"type": "integer"}, isolated={"type": "boolean"}, sst_bf={"type": "boolean"}
)
_CORE: Final = _object_schema(("id", "cpus"), id={"type": "integer"}, cpus=_array_schema(_CPU))
_CHECK: Final = _object_schema(("ok", "errors"), ok={"type": "boolean"}, errors=_array_schema(_TEXT))

NODE_REPORT: Final = ReportKind(
    "cmk-nodereport",
    "cmk-nr",
    "Nodereport",
    _object_schema(
        ("checks", "topology"),
        checks=_map_schema(_CHECK),
        description={**_object_schema(pools=_map_schema(_POOL)), "nullable": True},
        topology=_object_schema(
            sockets=_map_schema(_object_schema(id={"type": "integer"}, cores=_array_schema(_CORE)))
        ),
    ),
    {"Pools": ("boolean", ".checks.configDirectory.ok"), "Kubelet": ("boolean", ".checks.kubelet.ok")},
)
_TASK: Final = {"pool": _TEXT, "cpus": _TEXT, "pid": {"type": "integer"}}
RECONCILE_REPORT: Final = ReportKind(
    "cmk-reconcilereport",
    "cmk-rr",
    "Reconcilereport",
    _object_schema(
        ("reclaimedCpuLists",),
        reclaimedCpuLists=_array_schema(_object_schema(("cpus", "pid", "pool"), **_TASK)),
        mismatchedCpuMasks=_array_schema(_object_schema(("cpus", "pid", "pool"), actualCpus=_CPUS, **_TASK)),
    ),
    {
        "Reclaimed": ("string", ".reclaimedCpuLists[*].cpus"),
        "Elsewhere": ("string", ".mismatchedCpuMasks[*].pid"),
    },
)
KINDS: Final = (NODE_REPORT, RECONCILE_REPORT)


def report_name(node: str) -> str:
    """The name of a node's reports; BadInput if there is none.

    Characters other than letters, digits and `-` are replaced by `-`, so the nodes `a.b` and `a-b` share one.
    """
    name = re.sub(r"[^-a-z0-9]", "-", node.lower())
    if not _NAME.fullmatch(name):
        raise BadInput.of(
            "cannot name the node's report",
            "node",
            f"{shown(node)}, as a name {shown(name)}",
            f"a name that matches {_NAME.pattern}",
        )
    return name


def definition(kind: ReportKind, features: ApiFeatures) -> dict[str, Any]:
    """The object that defines the kind in an API server."""
    if features.reports == "third-party":
        name = f"{kind.old.lower()}.{_OLD_GROUP}"
        head = {"apiVersion": "extensions/v1beta1", "kind": "ThirdPartyResource", "metadata": {"name": name}}
        return {**head, "description": "A report of the CPU manager", "versions": [{"name": "v1"}]}
    names = {
        "kind": kind.resource.kind,
        "singular": kind.name,
        "plural": kind.resource.plural,
        "shortNames": [kind.short],
    }
    spec: dict[str, Any] = {"group": GROUP, "scope": "Namespaced", "names": names}
    if features.reports == "v1":
        schema = {"type": "object", "properties": {"spec": _object_schema(("report",), report=kind.schema)}}
        columns = [
            {"name": name, "type": type_, "jsonPath": f".spec.report{path}"}
            for name, (type_, path) in {**kind.columns, "Age": ("date", "")}.items()
        ]
        columns[-1]["jsonPath"] = ".metadata.creationTimestamp"
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        spec["versions"] = [{**version, "additionalPrinterColumns": columns}]
    else:
        spec["version"] = "v1"
    return {
        "apiVersion": f"apiextensions.k8s.io/{features.reports}",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.resource.plural}.{GROUP}"},
        "spec": spec,
    }


def publish(api: ApiClient, kind: ReportKind, node: str, namespace: str, report: Mapping[str, Any]) -> bool:
    """Store a node's newest report of a kind. Returns False if that is not possible, which is logged.

    A missing definition of the kind is created if permitted. Unavailable without a response, Refused without the right.
    """
    name = report_name(node)
    features = api_server.fetch_features(api)
    resource = kind.third_party_resource if features.reports == "third-party" else kind.resource
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}
    if features.reports == "third-party":
        body |= {"report": report, "last_updated": datetime.now(UTC).isoformat()}
    else:
        body["spec"] = {"report": report}
    for is_last in (False, True):
        try:
            _create_or_replace_report(api, resource, namespace, body)
        except NotFound as error:
            if not is_last and create_report_crd(api, kind, features):
                continue
            logs.emit("cpu_report_skipped", kind=resource.kind, name=name, why=str(error))
            return False
        except NotAllowed as error:
            logs.emit("cpu_report_blocked", kind=resource.kind, name=name, why=str(error))
            return False
        return True
    return False


def _create_or_replace_report(
    api: ApiClient, resource: Resource, namespace: str, body: dict[str, Any]
) -> None:
    path = resource.path(namespace, body["metadata"]["name"])
    for number in range(_TRIES):
        try:
            existing = api.get(path)
        except NotFound:
            existing = None
        if existing and all(existing.get(part) == body[part] for part in ("spec", "report") if part in body):
            return
        try:
            if existing is None:
                api.create(resource.path(namespace), body)
            else:
                version = {"resourceVersion": existing["metadata"]["resourceVersion"]}
                api.replace(path, {**body, "metadata": {**body["metadata"], **version}})
        except Conflict:
            if number == _TRIES - 1:
                raise
            continue
        return


def create_report_crd(api: ApiClient, kind: ReportKind, features: ApiFeatures) -> bool:
    """Define a kind, and wait until the API server serves it; False without the right, or at the timeout."""
    body = definition(kind, features)
    third_party = features.reports == "third-party"
    resource = kind.third_party_resource if third_party else kind.resource
    plural = "thirdpartyresources" if third_party else "customresourcedefinitions"
    group, _, version = body["apiVersion"].partition("/")
    try:
        api.create(Resource(group, version, plural, body["kind"], namespaced=False).path(), body)
    except Conflict:
        pass
    except Refused as error:
        logs.emit("cpu_report_undefined", kind=resource.kind, why=str(error))
        return False
    end = time.monotonic() + _SERVED_S
    while time.monotonic() < end:
        with suppress(NodewiseError):
            served = api.get(escape_path("apis", resource.group, resource.version)).get("resources") or ()
            if any(item.get("name") == resource.plural for item in served):
                return True
        time.sleep(0.2)
    return False
