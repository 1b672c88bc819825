"""Specs of PlacementPolicy and ClusterPlacementPolicy that the API server accepts or rejects."""

import json
from typing import Any, Final

from tests.cluster.api_client import Object

GROUP: Final = "nodewise.io/v1alpha1"
PLURALS: Final = {
    "PlacementPolicy": "placementpolicies",
    "ClusterPlacementPolicy": "clusterplacementpolicies",
}
OPERATORS: Final = ("above", "atLeast", "below", "atMost", "equals", "notEquals")
EXPECTED_OPERATOR: Final = f"expected exactly one of {', '.join(OPERATORS)}, between"
HOT: Final[Object] = {"metric": "temp", "above": 80}
RANK: Final[Object] = {"metric": "temp", "order": "Ascending"}
LABEL: Final[Object] = HOT | {"labels": {"gpu.nodewise.io/suspect": "true"}}
SICK: Final[Object] = HOT | {
    "driver": "gpu.example.com",
    "deviceLabel": "UUID",
    "deviceAttribute": "resource.kubernetes.io/pciBusID",
}
LABEL_WITHOUT_OPERATOR: Final[Object] = {name: value for name, value in LABEL.items() if name != "above"}
QUANTITY: Final = "in body should match '^[+-]?([0-9]+"
COOL: Final[Object] = {
    "podSelector": {"matchLabels": {"app": "web"}},
    "avoid": [
        {
            "metric": "node_hwmon_temp_celsius",
            "aggregate": "max",
            "above": 80,
            "whenMissing": "Allow",
            "maxAge": "2m",
        },
        {"all": [{"metric": "cpu_usage_share", "above": "0.8"}, {"metric": "load_average", "above": 2}]},
    ],
    "enforcement": "Preferred",
    "prefer": [
        {"metric": "package_power", "order": "Ascending", "weight": 2},
        {"metric": "cpu_usage_share", "order": "Descending"},
    ],
}
WIDE: Final[Object] = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {"tier": "batch"}},
    "avoid": [{"query": "max by (node) (node_disk_errors)", "above": 0, "emptyMeans": "Healthy"}],
    "prefer": [{"query": "sum by (node) (power)", "order": "Ascending"}],
    "nodeLabels": [LABEL, {"all": [HOT, {"query": "up", "equals": 0}], "labels": {"pol": "violating"}}],
}


def policy(
    spec: Object, kind: str = "PlacementPolicy", name: str = "pol", namespace: str = "default"
) -> Object:
    """A policy with a spec. Only a PlacementPolicy has a namespace; `Sandbox.put` replaces it."""
    metadata = {"name": name} | ({} if kind.startswith("Cluster") else {"namespace": namespace})
    return {"apiVersion": GROUP, "kind": kind, "metadata": metadata, "spec": spec}


def namespaced(**spec: Any) -> Object:
    return policy({"podSelector": {}} | spec)


def cluster(**spec: Any) -> Object:
    return policy(spec, "ClusterPlacementPolicy")


def avoiding(**rule: Any) -> Object:
    """A PlacementPolicy with one rule, which has other fields than `HOT`; None removes a field."""
    return namespaced(avoid=[{name: value for name, value in (HOT | rule).items() if value is not None}])


def tainting(**rule: Any) -> Object:
    """A ClusterPlacementPolicy with one device rule, which has other fields than `SICK`; None removes a field."""
    return cluster(deviceTaints=[{name: value for name, value in (SICK | rule).items() if value is not None}])


def selecting(**requirement: Any) -> Object:
    return namespaced(podSelector={"matchExpressions": [requirement]}, avoid=[HOT])


ACCEPTED: Final[dict[str, Object]] = {
    "all fields": policy(COOL),
    "all fields of the cluster kind": policy(WIDE, "ClusterPlacementPolicy"),
    "avoid only": namespaced(avoid=[HOT]),
    "a canary by labels": namespaced(
        avoid=[HOT], mode="Canary", canary={"podSelector": {"matchLabels": {"track": "canary"}}}
    ),
    "a canary by percent": namespaced(avoid=[HOT], mode="Canary", canary={"percent": 99}),
    "a canary of another mode": namespaced(avoid=[HOT], mode="Shadow", canary={"percent": 1}),
    "a guard": namespaced(
        avoid=[HOT],
        guard={"maxRejectedShare": "0.5", "maxWaitingPods": 0, "within": "30s", "resumeAfter": "12h"},
    ),
    **{
        f"share {share}": namespaced(avoid=[HOT], guard={"maxRejectedShare": share})
        for share in (".5", "0.01")
    },
    "mode Shadow": namespaced(avoid=[HOT], mode="Shadow"),
    "mode Enforce": namespaced(prefer=[RANK], mode="Enforce"),
    "required": namespaced(avoid=[HOT], enforcement="Required"),
    "times and release": avoiding(**{"for": "2m", "release": 75}),
    "release on the other side": avoiding(above=None, atMost="10Gi", release="10241Mi"),
    "release of another form": avoiding(above=None, atLeast="0.8", release="750m"),
    "times of a group": namespaced(avoid=[{"all": [HOT, HOT], "for": "1m30s", "keepFor": "500ms"}]),
    "release in a group": namespaced(avoid=[{"all": [HOT | {"release": -1}, HOT], "for": "1m"}]),
    "preferred": namespaced(avoid=[HOT], enforcement="Preferred"),
    "prefer only": namespaced(prefer=[RANK]),
    "node labels without selectors": cluster(nodeLabels=[LABEL]),
    **{f"operator {name}": avoiding(**{"above": None, name: "1"}) for name in OPERATORS},
    **{
        f"value {value}": avoiding(above=value)
        for value in (0, -1, 2**63 - 1, "80", "0.8", ".5", "5.", "-0.5", "+1", "250m", "64Gi", "1e3", "1E-99")
    },
    **{
        f"age {value}": avoiding(maxAge=value)
        for value in ("1ms", "30s", "1h30m", "1.5h", "8784h", "0.1s0.1m", "31622400s", f"1.{'0' * 28}ms")
    },
    **{
        f"between {low} and {high}": avoiding(above=None, between=[low, high])
        for low, high in ((60, 80), (5, 5), ("0.5", "800m"), (-1, "1Gi"))
    },
    "between in a group": namespaced(
        avoid=[{"all": [HOT, {"metric": "load", "between": [1, 2]}], "for": "1m"}]
    ),
    "between for node labels": cluster(nodeLabels=[{**LABEL_WITHOUT_OPERATOR, "between": [1, 2]}]),
    "100 rules with between": namespaced(avoid=[{"metric": "temp", "between": [1, 2]}] * 100),
    "100 rules": namespaced(avoid=[HOT] * 100),
    "100 rules in groups of 16": namespaced(avoid=[{"all": [HOT] * 16}] * 6 + [HOT] * 4),
    "100 rules for node labels": cluster(nodeLabels=[LABEL] * 100),
    "16 preferences": namespaced(prefer=[RANK | {"weight": 100}] * 16),
    "a metric of 253 characters": avoiding(metric="m" * 253),
    "a query of 4096 characters": cluster(nodeLabels=[LABEL | {"metric": None, "query": "q" * 4096}]),
    "64 characters": avoiding(above="0" * 63 + "1"),
    "20 labels": namespaced(podSelector={"matchLabels": {f"k{n}": "v" * 63 for n in range(20)}}, avoid=[HOT]),
    "a label with a domain and one without a value": namespaced(
        podSelector={"matchLabels": {"example.com/App_1": ""}}, avoid=[HOT]
    ),
    "50 values": selecting(key="app", operator="In", values=["v"] * 50),
    "no values": selecting(key="app", operator="Exists", values=[]),
    "20 requirements": namespaced(
        podSelector={"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}] * 20}, prefer=[RANK]
    ),
    "16 labels of nodes": cluster(
        nodeLabels=[LABEL | {"labels": {f"gpu.nodewise.io/l{n}": "v" for n in range(16)}}]
    ),
    "the longest domain of a label of nodes": cluster(
        nodeLabels=[LABEL | {"labels": {f"{'a' * 241}.nodewise.io/{'x' * 63}": "v" * 63}}]
    ),
    "a device rule": tainting(**{"for": "1m", "release": 70}),
    "a device rule that keeps the taint": tainting(above=None, between=[1, 2], keepFor="1m", aggregate="max"),
    "a device rule that evicts": tainting(effect="NoExecute", maxTaintedShare=".1"),
    "a device rule by name and query": tainting(
        deviceAttribute=None, metric=None, query="xid > 0", emptyMeans="Healthy"
    ),
    "16 device rules in the mode Shadow": cluster(deviceTaints=[SICK] * 16, mode="Shadow"),
    "labels of the older format": cluster(
        nodeLabels=[LABEL | {"labels": {"telemetry.aware.scheduling.pol/gas-disable-card0": "true"}}]
    ),
}

REJECTED: Final[dict[str, tuple[Object, list[str]]]] = {
    "no spec": (
        {"apiVersion": GROUP, "kind": "PlacementPolicy", "metadata": {"name": "p", "namespace": "default"}},
        ["spec: Required value"],
    ),
    "no selector": (policy({"avoid": [HOT]}), ["spec.podSelector: Required value"]),
    "no rules": (
        namespaced(),
        ["spec: Invalid value", "found no rules, expected at least one of avoid, prefer"],
    ),
    "no rules of the cluster kind": (cluster(podSelector={}), ["at least one of avoid, prefer, nodeLabels"]),
    "an empty list": (namespaced(avoid=[]), ["spec.avoid in body should have at least 1 items"]),
    "a device rule that evicts without a limit": (
        tainting(effect="NoExecute"),
        ["spec.deviceTaints[0]", "found the effect NoExecute without maxTaintedShare, expected a limit"],
    ),
    "a device rule without driver": (tainting(driver=None), ["spec.deviceTaints[0].driver: Required value"]),
    "a device rule without label": (
        tainting(deviceLabel=None),
        ["spec.deviceTaints[0].deviceLabel: Required value"],
    ),
    "a device rule with release and keepFor": (
        tainting(release=70, keepFor="1m"),
        ["spec.deviceTaints[0]", "found release and keepFor together, expected either release or keepFor"],
    ),
    "a device rule with release on the wrong side": (
        tainting(release=90),
        ["spec.deviceTaints[0]", "found release on the wrong side"],
    ),
    "a device rule with metric and query": (
        tainting(query="up"),
        ["spec.deviceTaints[0]", "found both metric and query, expected exactly one of metric, query"],
    ),
    "a device rule with another effect": (
        tainting(effect="PreferNoSchedule"),
        ["spec.deviceTaints[0].effect"],
    ),
    "a device rule for all devices": (
        tainting(maxTaintedShare="1"),
        ["spec.deviceTaints[0].maxTaintedShare"],
    ),
    "a driver with a slash": (tainting(driver="gpu/x"), ["spec.deviceTaints[0].driver"]),
    "an attribute with two slashes": (
        tainting(deviceAttribute="a/b/c"),
        ["spec.deviceTaints[0].deviceAttribute"],
    ),
    "17 device rules": (cluster(deviceTaints=[SICK] * 17), ["spec.deviceTaints: Too many: 17"]),
    "a guard of device rules": (
        cluster(deviceTaints=[SICK], guard={"maxRejectedShare": "0.5"}),
        ["found guard without avoid"],
    ),
    "one selector of two": (
        cluster(podSelector={}, avoid=[HOT]),
        ["found avoid or prefer without both selectors, expected namespaceSelector and podSelector"],
    ),
    "neither metric nor all": (
        avoiding(metric=None),
        ["spec.avoid[0]: Invalid value", "found neither metric nor all, expected exactly one of metric, all"],
    ),
    "both metric and all": (
        namespaced(avoid=[{"metric": "temp", "all": [HOT]}]),
        ["spec.avoid[0]: Invalid value", "found both metric and all, expected exactly one of metric, all"],
    ),
    "both metric and query": (
        cluster(nodeLabels=[LABEL | {"query": "up"}]),
        [
            "spec.nodeLabels[0]: Invalid",
            "found metric query together, expected exactly one of metric, query, all",
        ],
    ),
    "neither metric nor query in a group": (
        cluster(namespaceSelector={}, podSelector={}, avoid=[{"all": [HOT, {"above": 1}]}]),
        [
            "spec.avoid[0].all[1]: Invalid",
            "found neither metric nor query, expected exactly one of metric, query",
        ],
    ),
    "both metric and query in a preference": (
        cluster(namespaceSelector={}, podSelector={}, prefer=[RANK | {"query": "up"}]),
        ["spec.prefer[0]: Invalid", "found both metric and query, expected exactly one of metric, query"],
    ),
    "no operator": (
        avoiding(above=None),
        ["spec.avoid[0]: Invalid", f"found no operator, {EXPECTED_OPERATOR}"],
    ),
    "two operators": (avoiding(notEquals=5), [f"found above notEquals together, {EXPECTED_OPERATOR}"]),
    "between beside another operator": (
        avoiding(between=[1, 2]),
        ["spec.avoid[0]: Invalid", f"found above between together, {EXPECTED_OPERATOR}"],
    ),
    "between with the higher value first": (
        avoiding(above=None, between=["1Gi", 5]),
        ["spec.avoid[0].between: Invalid", "expected a list of two values, the lower one first"],
    ),
    "between with one value": (
        avoiding(above=None, between=[1]),
        ["spec.avoid[0].between", "should have at least 2 items"],
    ),
    "between with three values": (
        avoiding(above=None, between=[1, 2, 3]),
        ["spec.avoid[0].between"],
    ),
    "between with a number": (avoiding(above=None, between=5), ["spec.avoid[0].between"]),
    "between beside a group": (
        namespaced(avoid=[{"all": [HOT], "between": [1, 2]}]),
        ["spec.avoid[0]: Invalid", "found other fields of a rule together with all"],
    ),
    "between beside a group for node labels": (
        cluster(nodeLabels=[{**LABEL_WITHOUT_OPERATOR, "metric": None, "all": [HOT], "between": [1, 2]}]),
        ["spec.nodeLabels[0]: Invalid", "found other fields of a rule together with all"],
    ),
    "release of between": (
        avoiding(above=None, release=1, between=[2, 3]),
        ["spec.avoid[0]", "found release without above, atLeast, below or atMost"],
    ),
    "no operator in a group": (
        namespaced(avoid=[HOT, {"all": [HOT, {"metric": "temp"}]}]),
        ["spec.avoid[1].all[1]: Invalid", f"found no operator, {EXPECTED_OPERATOR}"],
    ),
    **{
        f"{field} beside a group": (
            namespaced(avoid=[{"all": [HOT], field: value}]),
            [
                "spec.avoid[0]: Invalid",
                "found other fields of a rule together with all, expected these fields in the rules of all",
            ],
        )
        for field, value in {
            **dict.fromkeys(OPERATORS, 1),
            "release": 1,
            "whenMissing": "Reject",
            "maxAge": "1m",
            "aggregate": "max",
        }.items()
    },
    **{
        f"release {release} of {operator} {target}": (
            avoiding(**({"above": None, "release": release} | {operator: target})),
            [
                "spec.avoid[0]",
                "found release on the wrong side, expected a value below that of above and atLeast",
            ],
        )
        for operator, target, release in (
            ("above", 80, 80),
            ("above", "0.8", "900m"),
            ("atLeast", 80, "1e3"),
            ("below", 5, 5),
            ("atMost", "1Gi", "1G"),
        )
    },
    **{
        f"release of {operator}": (
            avoiding(**{"above": None, "release": 1, operator: 5}),
            [
                "spec.avoid[0]",
                "found release without above, atLeast, below or atMost, expected release only together",
            ],
        )
        for operator in ("equals", "notEquals")
    },
    "release on the wrong side in a group": (
        namespaced(avoid=[HOT, {"all": [HOT, HOT | {"release": 81}]}]),
        ["spec.avoid[1].all[1]", "found release on the wrong side"],
    ),
    "release that is no quantity": (
        avoiding(release="hot"),
        ['spec.avoid[0].release: Invalid value: "hot"', QUANTITY],
    ),
    **{
        f"release and keepFor {where}": (
            namespaced(avoid=[rule | {"keepFor": "1m"}]),
            ["spec.avoid[0]", "found release and keepFor together, expected either release or keepFor"],
        )
        for where, rule in (
            ("of one rule", HOT | {"release": 75}),
            ("of a group", {"all": [HOT, HOT | {"release": 75}]}),
        )
    },
    **{
        f"{field} {value}": (
            avoiding(**{field: value}),
            [
                f"spec.avoid[0].{field}: Invalid value: {json.dumps(value)}",
                "expected a duration such as 30s or 5m, of at most a year",
            ],
        )
        for field in ("for", "keepFor")
        for value in ("", "5", "0s", "1d")
    },
    "for beside a group that is no duration": (
        namespaced(avoid=[{"all": [HOT], "for": "soon"}]),
        ['spec.avoid[0].for: Invalid value: "soon"'],
    ),
    "emptyMeans of a metric": (
        cluster(nodeLabels=[LABEL | {"emptyMeans": "Healthy"}]),
        [
            "spec.nodeLabels[0]: Invalid",
            "found emptyMeans without query, expected emptyMeans only together with query",
        ],
    ),
    **{
        f"value {value}": (
            avoiding(above=value),
            [f"spec.avoid[0].above: Invalid value: {json.dumps(value)}", QUANTITY],
        )
        for value in ("", "hot", "80 %", "80C", "1e100", "0x10", "1_000", "80\n", "--1", ".")
    },
    **{
        f"value {value}": (
            avoiding(above=value),
            ["spec.avoid[0].above: Invalid value", "must be of type integer,string"],
        )
        for value in (0.8, True, [80], {"value": 80})
    },
    "a whole number with a point": (
        avoiding(above=80.0),
        ["spec.avoid[0]", "to be either a string or integer"],
    ),
    "a value of 65 characters": (
        avoiding(above="0" * 65),
        ["spec.avoid[0].above: Too long: may not be more than 64"],
    ),
    **{
        f"age {value}": (
            avoiding(maxAge=value),
            [
                f"spec.avoid[0].maxAge: Invalid value: {json.dumps(value)}",
                "expected a duration such as 30s or 5m, of at most a year",
            ],
        )
        for value in ("", "5", "0s", "-5s", "8784h1ms", "1d", "5 m", "1m\n", "99999999h", "999999999s", "1.s")
    },
    "an age of 33 characters": (
        avoiding(maxAge="0" * 32 + "s"),
        ["maxAge: Too long: may not be more than 32"],
    ),
    **{
        f"metric {value}": (
            avoiding(metric=value),
            [
                f"spec.avoid[0].metric: Invalid value: {json.dumps(value)}",
                "expected letters, digits, _, :, . and -, not beginning with .",
            ],
        )
        for value in ("a b", 'up{job="a"}', "a/b", "../x", "..", ".a", "a\n")
    },
    "an empty metric": (
        avoiding(metric=""),
        ["spec.avoid[0].metric in body should be at least 1 chars long"],
    ),
    "a metric of 254 characters": (
        avoiding(metric="m" * 254),
        ["spec.avoid[0].metric: Too long: may not be more than 253"],
    ),
    "a query of 4097 characters": (
        cluster(nodeLabels=[LABEL | {"metric": None, "query": "q" * 4097}]),
        ["spec.nodeLabels[0].query: Too long: may not be more than 4096"],
    ),
    **{
        f"{field} of another case": (
            avoiding(**{field: value}),
            [f'spec.avoid[0].{field}: Unsupported value: "{value}"', f"supported values: {valid}"],
        )
        for field, value, valid in (
            ("whenMissing", "reject", '"Allow", "Reject"'),
            ("aggregate", "Max", '"max", "min", "sum", "avg"'),
        )
    },
    "an unknown order": (
        namespaced(prefer=[RANK | {"order": "LessThan"}]),
        [
            'spec.prefer[0].order: Unsupported value: "LessThan"',
            'supported values: "Ascending", "Descending"',
        ],
    ),
    "no order": (namespaced(prefer=[{"metric": "temp"}]), ["spec.prefer[0].order: Required value"]),
    "an unknown mode": (
        namespaced(avoid=[HOT], mode="shadow"),
        ['spec.mode: Unsupported value: "shadow"', 'supported values: "Enforce", "Canary", "Shadow"'],
    ),
    "no canary": (
        namespaced(avoid=[HOT], mode="Canary"),
        ["found the mode Canary without canary, expected podSelector or percent in canary"],
    ),
    "two canaries": (
        namespaced(avoid=[HOT], canary={"percent": 1, "podSelector": {}}),
        ["spec.canary: Invalid value", "expected exactly one of podSelector, percent"],
    ),
    "percent 100": (
        namespaced(avoid=[HOT], canary={"percent": 100}),
        ["spec.canary.percent in body should be less than or equal to 99"],
    ),
    "a misspelt field of the canary": (
        namespaced(avoid=[HOT], canary={"percent": 1, "podselector": {}}),
        ['spec.canary: found field "podselector", expected one of podSelector, percent; did you mean'],
    ),
    "a misspelt field of the canary's selector": (
        namespaced(avoid=[HOT], canary={"podSelector": {"matchlabels": {}}}),
        ['spec.canary.podSelector: found field "matchlabels"', 'did you mean "matchLabels"?'],
    ),
    "a key that no label of a canary has": (
        namespaced(avoid=[HOT], canary={"podSelector": {"matchLabels": {"the app": "web"}}}),
        ['spec.canary.podSelector.matchLabels: found "the app: web", expected a key such as app'],
    ),
    **{
        f"share {share}": (
            namespaced(avoid=[HOT], guard={"maxRejectedShare": share}),
            ["spec.guard.maxRejectedShare: Invalid value", "should match"],
        )
        for share in ("0", "0.0", "1", "1.5", "50%", "0.5\n")
    },
    "a guard without a limit": (
        namespaced(avoid=[HOT], guard={"within": "30s"}),
        ["spec.guard: Invalid value", "found no limit, expected maxRejectedShare, maxWaitingPods or both"],
    ),
    "a guard of nothing": (
        namespaced(prefer=[RANK], guard={"maxWaitingPods": 1}),
        ["found guard without avoid, expected guard only together with avoid"],
    ),
    "a time of a guard": (
        namespaced(avoid=[HOT], guard={"maxWaitingPods": 1, "within": "1m30s"}),
        ["spec.guard.within: Invalid value", "should match"],
    ),
    "a misspelt field of a guard": (
        namespaced(avoid=[HOT], guard={"maxRejected": "0.5", "maxWaitingPods": 1}),
        ['spec.guard: found field "maxRejected"', 'did you mean "maxRejectedShare"?'],
    ),
    "mode of node labels": (
        cluster(nodeLabels=[LABEL], mode="Shadow"),
        ["found mode with node labels only, expected mode only together with avoid or prefer"],
    ),
    "an unknown enforcement": (
        namespaced(avoid=[HOT], enforcement="preferred"),
        ['spec.enforcement: Unsupported value: "preferred"', 'supported values: "Required", "Preferred"'],
    ),
    "enforcement of nothing": (
        namespaced(prefer=[RANK], enforcement="Preferred"),
        ["found enforcement without avoid, expected enforcement only together with avoid"],
    ),
    "weight 0": (
        namespaced(prefer=[RANK | {"weight": 0}]),
        ["spec.prefer[0].weight in body should be greater than or equal to 1"],
    ),
    "weight 101": (
        namespaced(prefer=[RANK | {"weight": 101}]),
        ["spec.prefer[0].weight in body should be less than or equal to 100"],
    ),
    "101 rules": (namespaced(avoid=[HOT] * 101), ["spec.avoid: Too many: 101: must have at most 100 items"]),
    "101 rules in groups": (
        namespaced(avoid=[{"all": [HOT] * 16}] * 6 + [HOT] * 5),
        [
            "spec: Invalid value",
            "found more than 100 rules in avoid, expected at most 100, counting those in all",
        ],
    ),
    "101 rules for node labels in groups": (
        cluster(nodeLabels=[{"all": [HOT] * 16, "labels": {"p": "violating"}}] * 6 + [LABEL] * 5),
        ["found more than 100 rules in nodeLabels, expected at most 100, counting those in all"],
    ),
    "17 rules in a group": (
        namespaced(avoid=[{"all": [HOT] * 17}]),
        ["spec.avoid[0].all: Too many: 17: must have at most 16 items"],
    ),
    "17 preferences": (
        namespaced(prefer=[RANK] * 17),
        ["spec.prefer: Too many: 17: must have at most 16 items"],
    ),
    "a requirement without values": (
        selecting(key="app", operator="In"),
        [
            "spec.podSelector.matchExpressions[0]: Invalid",
            "found no values, expected at least one value with the operators In and NotIn",
        ],
    ),
    "a requirement with values": (
        selecting(key="app", operator="Exists", values=["a"]),
        [
            "matchExpressions[0]: Invalid",
            "found values, expected no values with the operators Exists and DoesNotExist",
        ],
    ),
    "an unknown operator of labels": (
        selecting(key="app", operator="Gt", values=["1"]),
        ['matchExpressions[0].operator: Unsupported value: "Gt"', '"In", "NotIn", "Exists", "DoesNotExist"'],
    ),
    "21 labels": (
        namespaced(podSelector={"matchLabels": {f"k{n}": "v" for n in range(21)}}, avoid=[HOT]),
        ["spec.podSelector.matchLabels: Too many: 21: must have at most 20 items"],
    ),
    "21 requirements": (
        namespaced(podSelector={"matchExpressions": [{"key": "a", "operator": "Exists"}] * 21}, avoid=[HOT]),
        ["spec.podSelector.matchExpressions: Too many: 21: must have at most 20 items"],
    ),
    "51 values": (
        selecting(key="a", operator="In", values=["v"] * 51),
        ["values: Too many: 51: must have at most 50 items"],
    ),
    "a label value of 64 characters": (
        namespaced(podSelector={"matchLabels": {"app": "v" * 64}}, avoid=[HOT]),
        ["spec.podSelector.matchLabels.app: Too long: may not be more than 63"],
    ),
    "a key that no label has": (
        namespaced(podSelector={"matchLabels": {"the app": "web"}}, avoid=[HOT]),
        ['spec.podSelector.matchLabels: found "the app: web", expected a key such as app or example.com/app'],
    ),
    **{
        f"label {key}={value} of nodes": (
            cluster(nodeLabels=[LABEL, LABEL | {"labels": {key: value}}]),
            [
                f'spec.nodeLabels[1].labels: found "{key}: {value}", expected a key whose domain ends in .nodewise.io'
            ],
        )
        for key, value in (
            ("node-role.kubernetes.io/control-plane", ""),
            ("policy.nodewise.node-restriction.kubernetes.io/1", "violating"),
            ("nodewise.io/x", "y"),
            ("evilnodewise.io/x", "y"),
            ("disktype", "ssd"),
            ("gpu.nodewise.io/", "y"),
            ("gpu.nodewise.io/x", "a b"),
            ("-.nodewise.io/x", "y"),
            ("a..nodewise.io/x", "y"),
            (f"{'a' * 242}.nodewise.io/x", "y"),
            ("telemetry.aware.scheduling.-a/x", "y"),
            ("telemetry.aware.scheduling./x", "y"),
        )
    },
    "17 labels of nodes": (
        cluster(nodeLabels=[LABEL | {"labels": {f"gpu.nodewise.io/l{n}": "v" for n in range(17)}}]),
        ["spec.nodeLabels[0].labels: Too many: 17: must have at most 16 items"],
    ),
    "no labels of nodes": (
        cluster(nodeLabels=[LABEL | {"labels": {}}]),
        ["spec.nodeLabels[0].labels in body should have at least 1 properties"],
    ),
    "an unknown field of the spec": (
        namespaced(avoid=[HOT], tolerance=1),
        [
            'spec: found field "tolerance", expected one of podSelector, mode, canary, avoid, enforcement',
            ", prefer, guard",
        ],
    ),
    "a misspelt field of the spec": (
        namespaced(avoid=[HOT], preferred=[RANK]),
        [
            'spec: found field "preferred", expected one of podSelector, mode, canary, avoid, enforcement',
            'did you mean "prefer"?',
        ],
    ),
    "a misspelt field of a selector": (
        namespaced(podSelector={"matchlabels": {"app": "web"}}, avoid=[HOT]),
        [
            'spec.podSelector: found field "matchlabels", expected one of matchLabels, matchExpressions',
            'did you mean "matchLabels"?',
        ],
    ),
    "a misspelt field of a requirement": (
        selecting(key="app", operator="Exists", value=["a"]),
        [
            'spec.podSelector.matchExpressions[0]: found field "value", expected one of key, operator, values',
            'did you mean "values"?',
        ],
    ),
    "a field of TASPolicy": (
        namespaced(avoid=[HOT, HOT | {"when_missing": "reject"}]),
        ['spec.avoid[1]: found field "when_missing", expected one of metric,', 'did you mean "whenMissing"?'],
    ),
    "an unknown field in a group": (
        namespaced(avoid=[{"all": [HOT, HOT | {"for": "5m"}]}]),
        ['spec.avoid[0].all[1]: found field "for", expected one of metric,'],
    ),
    "a misspelt field of a preference": (
        namespaced(prefer=[RANK, RANK | {"weigth": 2}]),
        [
            'spec.prefer[1]: found field "weigth", expected one of metric, aggregate, order, weight, maxAge',
            'did you mean "weight"?',
        ],
    ),
    "a query without the cluster kind": (
        namespaced(avoid=[HOT | {"query": "up"}]),
        ['spec.avoid[0]: found field "query", expected one of metric,', "only ClusterPlacementPolicy has it"],
    ),
    "node labels without the cluster kind": (
        namespaced(avoid=[HOT], nodeLabels=[LABEL]),
        ['spec: found field "nodeLabels"', "only ClusterPlacementPolicy has it"],
    ),
    "whenMissing of node labels": (
        cluster(nodeLabels=[LABEL | {"whenMissing": "Reject"}]),
        ['spec.nodeLabels[0]: found field "whenMissing", expected one of metric,'],
    ),
}
