"""`deploy/native.yaml` on a real API server: what is added to which pods, in every branch of the mutations.

`test_extender_pods` tries the selectors, whose expressions are the same.

An error in a mutation never stops a pod, but a value that the API server cannot convert does: each branch has a case.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pytest

from tests.cluster import admission_policy_waits, kubernetes_objects, native_mode
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import MERGE, ApiError, ClusterApi, Object, path_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import HOT, tas_policy
from tests.cluster.namespace_sandboxes import wait
from tests.cluster.placement_policy_specs import RANK, policy

pytestmark = pytest.mark.kubernetes_versions(oldest=36)

NAMESPACE: Final = "native"
OTHER_NAMESPACE: Final = "native-other"
AVOID: Final = {"metric": "temp", "above": 80}
REJECT: Final = AVOID | {"whenMissing": "Reject"}
ACTIVE: Final = {"active": True, "mode": "Enforce"}
EXCLUDING: Final = ACTIVE | {"excludedNodes": ["node-2", "node-3"]}


def _policy(selector: Object, *avoid: Object) -> Object:
    return policy({"podSelector": selector, "avoid": [*avoid]}, namespace=NAMESPACE)


def _preferred(policy: Object) -> Object:
    return policy | {"spec": policy["spec"] | {"enforcement": "Preferred"}}


def _shadow(policy: Object) -> Object:
    return policy | {"spec": policy["spec"] | {"mode": "Shadow"}}


def _canary(policy: Object, canary: Object) -> Object:
    return policy | {"spec": policy["spec"] | {"mode": "Canary", "canary": canary}}


def _cluster_policy(selector: Object, namespaces: Object, *avoid: Object) -> Object:
    spec = {"namespaceSelector": namespaces, "podSelector": selector, "avoid": [*avoid]}
    return policy(spec, "ClusterPlacementPolicy")


def _preference(selector: Object) -> Object:
    return policy({"podSelector": selector, "prefer": [RANK]}, namespace=NAMESPACE)


def _preferring(policy: Object, *weights: int) -> Object:
    return policy | {"spec": policy["spec"] | {"prefer": [RANK | {"weight": weight} for weight in weights]}}


def _tas(*rules: Object, operator: str = "") -> Object:
    strategy: Object = {"rules": [*rules]} | ({"logicalOperator": operator} if operator else {})
    return tas_policy("", {"dontschedule": strategy}, NAMESPACE)


def _app(name: str) -> Object:
    return {"matchLabels": {"app": name}}


def _match(key: str, operator: str, *values: str) -> Object:
    return {
        "matchExpressions": [{"key": key, "operator": operator} | ({"values": [*values]} if values else {})]
    }


STRICT: Final = HOT | {"when_missing": "reject"}
POLICIES: Final[Mapping[str, tuple[Object, Object]]] = {
    "plain": (_policy(_app("plain"), AVOID), ACTIVE),
    "second": (_policy(_app("plain") | _match("both", "Exists"), AVOID), ACTIVE),
    "new": (_policy(_app("new"), AVOID), {}),
    "newer": (_policy(_app("new"), AVOID), {"mode": "Enforce"}),
    "no-label": (_policy(_app("no-label"), AVOID), {"mode": "Enforce", "nodeLabel": "", "active": True}),
    "beyond": (_policy(_app("beyond"), AVOID), {"mode": "NotEnforced"}),
    "reject": (_policy(_app("reject"), AVOID, REJECT), ACTIVE),
    "all-reject": (_policy(_app("all-reject"), {"all": [REJECT, REJECT]}), ACTIVE),
    "some-reject": (_policy(_app("some-reject"), {"all": [REJECT, AVOID]}), ACTIVE),
    "excluding": (_policy(_app("excluding"), AVOID), EXCLUDING),
    "excluding-reject": (_policy(_app("excluding-reject"), REJECT), EXCLUDING),
    "native-excluding": (
        _cluster_policy(_app("excluding") | _match("wide", "Exists"), {}, AVOID),
        ACTIVE | {"excludedNodes": ["node-2", "node-4"]},
    ),
    "shadow": (_shadow(_policy(_app("shadow"), AVOID)), {}),
    "canary": (
        _canary(_policy(_app("canary"), AVOID), {"podSelector": _match("track", "In", "canary")}),
        ACTIVE,
    ),
    "percent": (_canary(_policy(_app("canary"), AVOID), {"percent": 99}), ACTIVE),
    "native-canary": (
        _canary(_cluster_policy(_app("canary"), {}, AVOID), {"podSelector": _app("canary")}),
        ACTIVE,
    ),
    "stepped-back": (_policy(_app("stepped-back"), AVOID), ACTIVE | {"steppedBack": {"generation": 1}}),
    "stepped-back-before": (
        _policy(_app("stepped-back"), AVOID),
        ACTIVE | {"steppedBack": {"generation": 7}},
    ),
    "not-shadow-now": (_policy(_app("not-shadow-now"), AVOID), {"mode": "Shadow"}),
    "preferred": (_preferred(_policy(_app("preferred"), REJECT)), ACTIVE),
    "preferred-new": (_preferred(_policy(_app("plain") | _match("preferred", "Exists"), AVOID)), {}),
    "native-preferred": (
        _preferred(_cluster_policy(_app("preferred") | _match("wide", "Exists"), {}, AVOID)),
        ACTIVE,
    ),
    "prefers": (_preference(_app("prefers")), {}),
    "prefers-more": (_preferring(_policy(_app("prefers-more"), AVOID), 2, 3), ACTIVE),
    "prefers-reject": (_preferring(_policy(_app("prefers-reject"), REJECT), 100), EXCLUDING),
    "prefers-twice": (_preferring(_preferred(_policy(_app("prefers-twice"), AVOID)), 1), ACTIVE),
    "prefers-no-label": (
        _preferring(_policy(_app("prefers-no-label"), AVOID), 1),
        {"mode": "Enforce", "nodeLabel": "", "active": True},
    ),
    "prefers-shadow": (_shadow(_preference(_app("prefers-shadow"))), {}),
    "native-prefers": (
        policy(
            {
                "namespaceSelector": {},
                "podSelector": _app("prefers") | _match("wide", "Exists"),
                "prefer": [RANK],
            },
            "ClusterPlacementPolicy",
        ),
        {},
    ),
    "native-wide": (_cluster_policy(_app("wide"), {}, REJECT), ACTIVE),
    "native-wide-both": (_cluster_policy(_app("plain") | _match("wide", "Exists"), {}, AVOID), ACTIVE),
    "native-team-a": (_cluster_policy(_app("team"), {"matchLabels": {"team": "a"}}, AVOID), {}),
    "native-not-team-a": (_cluster_policy(_app("team"), _match("team", "NotIn", "a"), AVOID), ACTIVE),
    "cool": (_tas(HOT), ACTIVE),
    "strict": (_tas(HOT, STRICT), ACTIVE),
    "all-of": (_tas(HOT, STRICT, operator="allOf"), ACTIVE),
    "all-strict": (_tas(STRICT, STRICT, operator="allOf"), ACTIVE),
    "excluding-named": (_tas(HOT), EXCLUDING),
    "fresh": (_tas(HOT), {}),
    "over-budget": (_tas(HOT), {"nodeLabel": "", "active": True}),
    "ranks": (
        tas_policy(
            "", {"scheduleonmetric": {"rules": [{"metricname": "heat", "operator": "LessThan"}]}}, NAMESPACE
        ),
        ACTIVE,
    ),
}
"""Policies and their status by name."""


class Cluster:
    """An API server with the policies."""

    def __init__(self, api: ClusterApi) -> None:
        self.api = api
        self.uids: dict[str, str] = {}

    def create_policies(self) -> None:
        for name, (obj, status) in POLICIES.items():
            made = self.api.create(obj | {"metadata": obj["metadata"] | {"name": name}})
            self.uids[name] = made["metadata"]["uid"]
            if status:
                self.api.patch(f"{path_of(made)}/status", {"status": status}, MERGE)

    def admit(self, pod: Object, namespace: str = NAMESPACE) -> Object:
        """The pod that the API server would create. Raises ApiError if it refuses it."""
        answer = self.api.request("POST", f"/api/v1/namespaces/{namespace}/pods", json=pod, params=DRY_RUN)
        made: Object = answer.json()
        return made

    def filled(self, obj: Any) -> Any:
        """A copy in which `<policy>` is the key of the label of that policy."""
        if isinstance(obj, dict):
            return {self.filled(key): self.filled(value) for key, value in obj.items()}
        if isinstance(obj, list):
            return [self.filled(value) for value in obj]
        name = re.fullmatch("<(.*)>(.*)", obj) if isinstance(obj, str) else None
        return native_mode.LABEL_PREFIX + self.uids[name[1]] + name[2] if name else obj


def _pod(labels: Object, **spec: Any) -> Object:
    made = kubernetes_objects.pod("probe", labels=labels)
    return made | {"spec": made["spec"] | spec}


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    api = plane.api
    native_mode.install(api)
    api.ensure(kubernetes_objects.namespace(native_mode.NAMESPACE))
    api.create(kubernetes_objects.namespace(OTHER_NAMESPACE))
    namespace = kubernetes_objects.namespace(NAMESPACE)
    api.create(namespace | {"metadata": namespace["metadata"] | {"labels": {"team": "a"}}})
    made = Cluster(api)
    made.create_policies()

    def is_seen() -> bool | None:
        """Whether the API server uses the last policy of each kind, with its status."""
        with_all = (
            made.admit(_pod({"app": "some-reject"})),
            made.admit(_pod({"app": "team"}), OTHER_NAMESPACE),
        )
        if admission_policy_waits.is_denied(lambda: made.admit(_pod({"telemetry-policy": "ranks"}))):
            return None
        named = made.admit(_pod({"telemetry-policy": "ranks"}))
        return all(_terms(pod) and "schedulingGates" not in pod["spec"] for pod in (*with_all, named)) or None

    wait("the policies have an effect", is_seen)
    yield made
    checks = [
        line
        for line in api.request("GET", "/metrics").text.splitlines()
        if line.startswith("apiserver_mutating_admission_policy_check_total{")
    ]
    assert len(checks) >= 3
    assert [line for line in checks if 'error_type="no_error"' not in line] == []


def _terms(pod: Object) -> list[Object]:
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(native_mode.REQUIRED, {})
    terms: list[Object] = required.get("nodeSelectorTerms", [])
    return terms


def _sort_requirements(pod: Object) -> None:
    """Sorts the requirements of each term, and preferred terms: the API server applies policies in any order."""
    for term in _terms(pod):
        for requirements in term.values():
            requirements.sort(key=lambda requirement: (str(requirement["key"]), requirement["values"]))
    preferred = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(PREFERS, [])
    preferred.sort(key=str)


def _not_in(policy: str) -> Object:
    return {"key": f"<{policy}>", "operator": "NotIn", "values": ["violating"]}


def _in(policy: str) -> Object:
    return {"key": f"<{policy}>", "operator": "In", "values": ["ok"]}


def _required(*terms: Object) -> Object:
    return {"nodeAffinity": {native_mode.REQUIRED: {"nodeSelectorTerms": [*terms]}}}


def _all(*expressions: Object) -> Object:
    return {"matchExpressions": [*expressions]}


def _fields(*nodes: str) -> Object:
    """A part of a term that excludes nodes by name."""
    return {
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    }


def _preference_for(policy: str) -> Object:
    return {PREFERS: [{"weight": 100, "preference": _all(_not_in(policy))}]}


def _classes_of(policy: str, weight: int = 1) -> list[Object]:
    """The preferred terms for the classes of a policy."""
    key = f"<{policy}>.preference"
    return [
        {
            "weight": weight * (5 - number),
            "preference": _all({"key": key, "operator": "In", "values": [str(number)]}),
        }
        for number in (1, 2, 3, 4)
    ]


PLAIN: Final = {"app": "plain"}
ZONE: Final = {"key": "zone", "operator": "In", "values": ["z"]}
NAME: Final = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
PREFERS: Final = "preferredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = {PREFERS: [{"weight": 1, "preference": _all(ZONE)}]}
SPREAD: Final = {
    "podAntiAffinity": {
        native_mode.REQUIRED: [{"labelSelector": _app("x"), "topologyKey": "kubernetes.io/hostname"}]
    }
}
OWN_GATE: Final = {"name": "example.com/wait"}


class Case(NamedTuple):
    """A pod, and what it has after admission; `<policy>` stands for the key of that policy's label."""

    labels: Object
    spec: Object
    affinity: Object | None
    gates: list[Object] | None = None
    namespace: str = NAMESPACE
    selector: Object | None = None
    """The node selector."""


CASES: Final = {
    "no affinity": Case(PLAIN, {}, _required(_all(_not_in("plain")))),
    "empty affinity": Case(PLAIN, {"affinity": {}}, _required(_all(_not_in("plain")))),
    "other affinity": Case(PLAIN, {"affinity": SPREAD}, SPREAD | _required(_all(_not_in("plain")))),
    "empty node affinity": Case(PLAIN, {"affinity": {"nodeAffinity": {}}}, _required(_all(_not_in("plain")))),
    "preferred node affinity": Case(
        PLAIN,
        {"affinity": {"nodeAffinity": PREFERRED}},
        {"nodeAffinity": PREFERRED | _required(_all(_not_in("plain")))["nodeAffinity"]},
    ),
    "one term": Case(PLAIN, {"affinity": _required(_all(ZONE))}, _required(_all(ZONE, _not_in("plain")))),
    "every term, because one of them suffices": Case(
        PLAIN,
        {"affinity": _required(_all(ZONE), NAME, NAME | _all(ZONE))},
        _required(
            _all(ZONE, _not_in("plain")), NAME | _all(_not_in("plain")), NAME | _all(ZONE, _not_in("plain"))
        ),
    ),
    "an empty term matches no node": Case(
        PLAIN, {"affinity": _required({}, _all(ZONE))}, _required({}, _all(ZONE, _not_in("plain")))
    ),
    "only an empty term": Case(PLAIN, {"affinity": _required({})}, _required({})),
    "the requirement is in all terms": Case(
        PLAIN,
        {"affinity": _required(_all(_not_in("plain"), ZONE), NAME | _all(_not_in("plain")))},
        _required(_all(_not_in("plain"), ZONE), NAME | _all(_not_in("plain"))),
    ),
    "the requirement is in one term": Case(
        PLAIN,
        {"affinity": _required(NAME | _all(_not_in("plain")), _all(ZONE))},
        _required(NAME | _all(_not_in("plain")), _all(ZONE, _not_in("plain"))),
    ),
    "another requirement for the key": Case(
        PLAIN,
        {"affinity": _required(_all(_in("plain"), ZONE))},
        _required(_all(_not_in("plain"), ZONE)),
    ),
    "requirements for the key between others, in several terms": Case(
        PLAIN,
        {
            "affinity": _required(
                _all(
                    _in("plain"),
                    ZONE,
                    {"key": "rack", "operator": "NotIn", "values": ["r1", "r2"]},
                    _in("new"),
                ),
                NAME,
                _all({"key": "cores", "operator": "Gt", "values": ["7"]}, _in("second")),
            )
        },
        _required(
            _all(_not_in("plain"), ZONE, {"key": "rack", "operator": "NotIn", "values": ["r1", "r2"]}),
            NAME | _all(_not_in("plain")),
            _all(_not_in("plain"), {"key": "cores", "operator": "Gt", "values": ["7"]}),
        ),
    ),
    "node selector": Case(
        PLAIN,
        {"nodeSelector": {"zone": "z"}},
        _required(_all(_not_in("plain"))),
        selector={"zone": "z"},
    ),
    "two policies": Case(PLAIN | {"both": ""}, {}, _required(_all(_not_in("plain"), _not_in("second")))),
    "policies of three kinds": Case(
        PLAIN | {"both": "", "wide": "", "telemetry-policy": "cool"},
        {"affinity": _required(_all(ZONE), NAME)},
        _required(
            _all(ZONE, *map(_not_in, ("plain", "second", "native-wide-both", "cool"))),
            NAME | _all(*map(_not_in, ("plain", "second", "native-wide-both", "cool"))),
        ),
    ),
    "policies that are not active": Case(
        {"app": "new"}, {}, _required(_all(_not_in("new"), _not_in("newer"))), [native_mode.GATE]
    ),
    "a gate of its own": Case(
        {"app": "new"},
        {"schedulingGates": [OWN_GATE]},
        _required(_all(_not_in("new"), _not_in("newer"))),
        [OWN_GATE, native_mode.GATE],
    ),
    "the gate is there": Case(
        {"app": "new"},
        {"schedulingGates": [native_mode.GATE]},
        _required(_all(_not_in("new"), _not_in("newer"))),
        [native_mode.GATE],
    ),
    "a gate of its own, active": Case(
        PLAIN, {"schedulingGates": [OWN_GATE]}, _required(_all(_not_in("plain"))), [OWN_GATE]
    ),
    "not enforced": Case({"app": "beyond"}, {}, None),
    "part of a canary": Case(
        {"app": "canary", "track": "canary"}, {}, _required(_all(_not_in("canary"), _not_in("native-canary")))
    ),
    "not part of a canary": Case({"app": "canary"}, {}, _required(_all(_not_in("native-canary")))),
    "stepped back": Case({"app": "stepped-back"}, {}, _required(_all(_not_in("stepped-back-before")))),
    "mode Shadow": Case({"app": "shadow"}, {}, None),
    "enforced, with the status of the mode Shadow": Case(
        {"app": "not-shadow-now"}, {}, _required(_all(_not_in("not-shadow-now"))), [native_mode.GATE]
    ),
    "beyond the budget of labels": Case({"app": "no-label"}, {}, None),
    "one rule rejects missing values": Case({"app": "reject"}, {}, None, selector={"<reject>": "ok"}),
    "all parts reject missing values": Case({"app": "all-reject"}, {}, None, selector={"<all-reject>": "ok"}),
    "a rule that rejects missing values, and terms": Case(
        {"app": "reject"},
        {"affinity": _required(_all(ZONE), NAME)},
        _required(_all(ZONE), NAME),
        selector={"<reject>": "ok"},
    ),
    **{
        f"a rule that rejects missing values, and {name}": Case(
            {"app": "reject"}, {"nodeSelector": before}, None, selector=before | {"<reject>": "ok"}
        )
        for name, before in {
            "an empty node selector": {},
            "a node selector": {"zone": "z"},
            "the requirement": {"<reject>": "ok", "zone": "z"},
            "another value of the label": {"<reject>": "violating"},
        }.items()
    },
    "a policy that rejects missing values, and another one": Case(
        {"app": "wide", "telemetry-policy": "cool"},
        {},
        _required(_all(_not_in("cool"))),
        selector={"<native-wide>": "ok"},
    ),
    "some parts reject missing values": Case(
        {"app": "some-reject"}, {}, _required(_all(_not_in("some-reject")))
    ),
    **{
        f"preferred, {name}": Case(
            {"app": "preferred"},
            {} if before is None else {"affinity": before},
            (before or {})
            | {"nodeAffinity": (before or {}).get("nodeAffinity", {}) | _preference_for("preferred")},
        )
        for name, before in {
            "no affinity": None,
            "empty affinity": {},
            "other affinity": SPREAD,
            "empty node affinity": {"nodeAffinity": {}},
            "required node affinity": _required(_all(ZONE), NAME),
        }.items()
    },
    "preferred, with another preference": Case(
        {"app": "preferred"},
        {"affinity": {"nodeAffinity": PREFERRED}},
        {"nodeAffinity": {PREFERS: [*PREFERRED[PREFERS], *_preference_for("preferred")[PREFERS]]}},
    ),
    "the preference is there": Case(
        {"app": "preferred"},
        {"affinity": {"nodeAffinity": _preference_for("preferred")}},
        {"nodeAffinity": _preference_for("preferred")},
    ),
    "preferred in a cluster policy": Case(
        {"app": "preferred", "wide": ""},
        {},
        {"nodeAffinity": _preference_for("native-preferred")},
        namespace=OTHER_NAMESPACE,
    ),
    "one required, one preferred that is not active": Case(
        PLAIN | {"preferred": ""},
        {},
        {
            "nodeAffinity": _required(_all(_not_in("plain")))["nodeAffinity"]
            | _preference_for("preferred-new")
        },
    ),
    **{
        f"nodes excluded by name, {name}": Case(
            {"app": "excluding"}, {} if before is None else {"affinity": before}, (before or {}) | after
        )
        for name, before, after in (
            ("no affinity", None, _required(_all(_not_in("excluding")) | _fields("node-2", "node-3"))),
            ("other affinity", SPREAD, _required(_all(_not_in("excluding")) | _fields("node-2", "node-3"))),
            (
                "terms",
                _required(_all(ZONE), {}, NAME),
                _required(
                    _all(ZONE, _not_in("excluding")) | _fields("node-2", "node-3"),
                    {},
                    _all(_not_in("excluding"))
                    | {"matchFields": [*NAME["matchFields"], *_fields("node-2", "node-3")["matchFields"]]},
                ),
            ),
            (
                "one of them already",
                _required(_all(_not_in("excluding")) | _fields("node-3")),
                _required(_all(_not_in("excluding")) | _fields("node-3", "node-2")),
            ),
        )
    },
    **{
        f"nodes excluded by name and missing values rejected, {name}": Case(
            {"app": "excluding-reject"},
            {} if before is None else {"affinity": before},
            after,
            selector={"<excluding-reject>": "ok"},
        )
        for name, before, after in (
            ("no affinity", None, _required(_fields("node-2", "node-3"))),
            ("other affinity", SPREAD, SPREAD | _required(_fields("node-2", "node-3"))),
            ("a term", _required(_all(ZONE)), _required(_all(ZONE) | _fields("node-2", "node-3"))),
        )
    },
    "nodes excluded by name by two policies": Case(
        {"app": "excluding", "wide": ""},
        {},
        _required(
            _all(*map(_not_in, ("excluding", "native-excluding"))) | _fields("node-2", "node-3", "node-4")
        ),
    ),
    "nodes excluded by name by a TASPolicy": Case(
        {"telemetry-policy": "excluding-named"},
        {},
        _required(_all(_not_in("excluding-named")) | _fields("node-2", "node-3")),
    ),
    **{
        f"only preferences, {name}": Case(
            {"app": "prefers"},
            {} if before is None else {"affinity": before},
            (before or {})
            | {"nodeAffinity": (before or {}).get("nodeAffinity", {}) | {PREFERS: _classes_of("prefers")}},
        )
        for name, before in (
            ("no affinity", None),
            ("empty affinity", {}),
            ("other affinity", SPREAD),
            ("empty node affinity", {"nodeAffinity": {}}),
            ("required affinity", _required(_all(ZONE))),
        )
    },
    "only preferences, of a policy that observes": Case({"app": "prefers-shadow"}, {}, None),
    "preferences of two policies": Case(
        {"app": "prefers", "wide": ""},
        {},
        {"nodeAffinity": {PREFERS: [*_classes_of("prefers"), *_classes_of("native-prefers")]}},
    ),
    "preferences that the pod has": Case(
        {"app": "prefers"},
        {"affinity": {"nodeAffinity": {PREFERS: _classes_of("prefers")}}},
        {"nodeAffinity": {PREFERS: _classes_of("prefers")}},
    ),
    "preferences, and many of its own": Case(
        {"app": "prefers"},
        {"affinity": {"nodeAffinity": {PREFERS: PREFERRED[PREFERS] * 65}}},
        {"nodeAffinity": {PREFERS: PREFERRED[PREFERS] * 65}},
    ),
    "preferences never deny a pod": Case(
        {"app": "prefers"},
        {"affinity": {"nodeAffinity": {PREFERS: PREFERRED[PREFERS] * 101}}},
        {"nodeAffinity": {PREFERS: PREFERRED[PREFERS] * 101}},
    ),
    "avoid and preferences": Case(
        {"app": "prefers-more"},
        {},
        {
            "nodeAffinity": _required(_all(_not_in("prefers-more")))["nodeAffinity"]
            | {PREFERS: _classes_of("prefers-more", 5)}
        },
    ),
    "avoid with missing values, excluded nodes and preferences": Case(
        {"app": "prefers-reject"},
        {},
        {
            "nodeAffinity": _required(_fields("node-2", "node-3"))["nodeAffinity"]
            | {PREFERS: _classes_of("prefers-reject", 25)}
        },
        selector={"<prefers-reject>": "ok"},
    ),
    "preferred avoid and preferences": Case(
        {"app": "prefers-twice"},
        {},
        {
            "nodeAffinity": {
                PREFERS: [*_preference_for("prefers-twice")[PREFERS], *_classes_of("prefers-twice")]
            }
        },
    ),
    "preferences without a label for avoid": Case(
        {"app": "prefers-no-label"}, {}, {"nodeAffinity": {PREFERS: _classes_of("prefers-no-label")}}
    ),
    "no labels": Case({}, {}, None),
    "other labels": Case({"app": "other"}, {}, None),
    "a policy of another namespace": Case(PLAIN, {}, None, namespace=OTHER_NAMESPACE),
    "a cluster policy": Case(
        {"app": "wide"}, {}, None, namespace=OTHER_NAMESPACE, selector={"<native-wide>": "ok"}
    ),
    "a cluster policy for namespaces with a label": Case(
        {"app": "team"}, {}, _required(_all(_not_in("native-team-a"))), [native_mode.GATE]
    ),
    "a cluster policy for namespaces without a label": Case(
        {"app": "team"}, {}, _required(_all(_not_in("native-not-team-a"))), namespace=OTHER_NAMESPACE
    ),
    **{
        f"pods of {namespace} are left alone": Case({"app": "wide"}, {}, None, namespace=namespace)
        for namespace in ("kube-system", native_mode.NAMESPACE)
    },
    "bound when created": Case(PLAIN | {"telemetry-policy": "none"}, {"nodeName": "node-1"}, None),
    "a TASPolicy": Case({"telemetry-policy": "cool"}, {}, _required(_all(_not_in("cool")))),
    "a TASPolicy that rejects missing values": Case(
        {"telemetry-policy": "strict"}, {}, None, selector={"<strict>": "ok"}
    ),
    "a TASPolicy with allOf, of which one rejects": Case(
        {"telemetry-policy": "all-of"}, {}, _required(_all(_not_in("all-of")))
    ),
    "a TASPolicy with allOf, of which all reject": Case(
        {"telemetry-policy": "all-strict"}, {}, None, selector={"<all-strict>": "ok"}
    ),
    "a TASPolicy that is not active": Case(
        {"telemetry-policy": "fresh"}, {}, _required(_all(_not_in("fresh"))), [native_mode.GATE]
    ),
    "a TASPolicy beyond the budget of labels": Case({"telemetry-policy": "over-budget"}, {}, None),
    "a TASPolicy that only ranks": Case(
        {"telemetry-policy": "ranks"},
        {},
        {"nodeAffinity": _required(_all(_not_in("ranks")))["nodeAffinity"] | {PREFERS: _classes_of("ranks")}},
    ),
    "a TASPolicy and terms": Case(
        {"telemetry-policy": "cool"},
        {"affinity": _required(NAME, {}, _all(ZONE))},
        _required(NAME | _all(_not_in("cool")), {}, _all(ZONE, _not_in("cool"))),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_added_fields(cluster: Cluster, case: Case) -> None:
    admitted = cluster.admit(_pod(case.labels, **cluster.filled(case.spec)), case.namespace)
    expected = {"spec": {"affinity": cluster.filled(case.affinity)}} if case.affinity else {"spec": {}}
    for pod in (admitted, expected):
        _sort_requirements(pod)
    assert admitted["spec"].get("affinity") == expected["spec"].get("affinity")
    assert admitted["spec"].get("nodeSelector") == cluster.filled(case.selector)
    assert admitted["spec"].get("schedulingGates") == case.gates


def test_a_pod_that_is_created_again_from_its_own_manifest_does_not_change(cluster: Cluster) -> None:
    labels = PLAIN | {"both": "", "telemetry-policy": "fresh"}
    first = cluster.admit(_pod(labels, affinity=_required(_all(ZONE), NAME)))
    again = {"metadata": {"name": "probe", "labels": labels}, "spec": first["spec"]}
    created_again = cluster.admit(again)
    for pod in (first, created_again):
        _sort_requirements(pod)
    assert created_again["spec"] == first["spec"]


def test_updates_of_pods_change_nothing(cluster: Cluster) -> None:
    path = path_of(cluster.api.create(_pod({}) | {"metadata": {"name": "old", "namespace": NAMESPACE}}))
    for labels in (PLAIN, {"app": None, "telemetry-policy": "none"}):
        changed = cluster.api.patch(path, {"metadata": {"labels": labels}}, MERGE)
        assert "affinity" not in changed["spec"]
    cluster.api.delete(path)


@pytest.mark.parametrize(
    ("labels", "namespace", "message"),
    [
        (
            {"telemetry-policy": "none"},
            NAMESPACE,
            "found the pod label telemetry-policy: none, expected the name of a TASPolicy in the namespace native",
        ),
        ({"telemetry-policy": ""}, NAMESPACE, "expected the name of a TASPolicy"),
        (
            {"telemetry-policy": "cool"},
            OTHER_NAMESPACE,
            f"label telemetry-policy: cool, expected the name of a TASPolicy in the namespace {OTHER_NAMESPACE}",
        ),
    ],
)
def test_a_pod_that_names_no_policy_of_its_namespace_is_denied(
    cluster: Cluster, labels: Object, namespace: str, message: str
) -> None:
    pod = _pod(labels)
    forged = {"annotations": {native_mode.POLICY_ANNOTATION: cluster.uids["cool"]}}
    for metadata in (pod["metadata"], pod["metadata"] | forged):
        with pytest.raises(ApiError, match="nodewise-native-named") as refused:
            cluster.admit(pod | {"metadata": metadata}, namespace)
        assert message in str(refused.value)


@pytest.mark.parametrize("namespace", [NAMESPACE, OTHER_NAMESPACE])
@pytest.mark.parametrize("name", ["cool", "none"])
def test_pods_that_no_scheduler_places_are_left_alone_in_every_namespace(
    cluster: Cluster, namespace: str, name: str
) -> None:
    labels = PLAIN | {"telemetry-policy": name}
    for pod in native_mode.admit_pods_that_are_left_alone(cluster.api, namespace, labels):
        assert native_mode.LABEL_PREFIX not in str(pod["spec"])
        assert native_mode.POLICY_ANNOTATION not in pod["metadata"].get("annotations", {})


def test_a_pod_without_the_requirement_of_its_policy_is_denied(cluster: Cluster) -> None:
    """Without the mutations, as after their deletion, only pods that name a policy are denied."""
    named = [
        document
        for document in native_mode.MANIFEST
        if document["kind"] == "MutatingAdmissionPolicyBinding"
        and document["metadata"]["name"] in {native_mode.NAMED, "nodewise-native-reset"}
    ]

    def admit(labels: Object, affinity: Object, policy: str = "cool", **selector: str) -> Object:
        annotated = {native_mode.POLICY_ANNOTATION: cluster.uids[policy]}
        constraints = cluster.filled({"affinity": affinity, "nodeSelector": selector})
        pod = _pod(labels, **constraints)
        return cluster.admit(pod | {"metadata": pod["metadata"] | {"annotations": annotated}})

    cool, strict = {"telemetry-policy": "cool"}, {"telemetry-policy": "strict"}
    for document in named:
        cluster.api.delete(path_of(document))
    admission_policy_waits.wait_denied(lambda: admit(cool, {}))
    try:
        admit(cool, _required(_all(ZONE, _not_in("cool")), {}, NAME | _all(_not_in("cool"))))
        admit({}, {})
        for affinity in (
            {},
            _required(_all(ZONE)),
            _required(_all(_not_in("cool")), NAME),
            _required(_all(_in("cool"))),
            _required(_all(_not_in("cool") | {"values": ["other"]})),
            _required(_all(_not_in("plain"))),
        ):
            with pytest.raises(ApiError, match=r"cool, expected .* NotIn \[violating\] in every term"):
                admit(cool, affinity)
        admit(strict, {}, "strict", **{"<strict>": "ok", "zone": "z"})
        for selector in ({}, {"zone": "z"}, {"<strict>": "violating"}, {"<cool>": "ok"}):
            with pytest.raises(ApiError, match=r"strict, expected .*: ok in its node selector"):
                admit(strict, _required(_all(_in("strict"))), "strict", **selector)
        with pytest.raises(ApiError, match="nodewise-native-named"):
            admit({"telemetry-policy": "fresh"}, _required(_all(_not_in("fresh"))))  # another policy's uid
    finally:
        for document in named:
            cluster.api.create(document)
        admission_policy_waits.wait_allowed(lambda: admit(cool, {}))
