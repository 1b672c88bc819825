"""The fields of kube-scheduler's configuration, and why kube-scheduler refuses a configuration.

kube-scheduler decodes its configuration strictly and does not start with an unknown field, a duplicate key or a value
of another type. Field names are case-sensitive. Source: `config/v1/types.go` and `types_pluginargs.go` of
k8s.io/kube-scheduler v0.34 to v0.38, `config/v1alpha1/types.go` of component-base, and for values
`pkg/scheduler/apis/config/validation/validation.go`. A test runs kube-scheduler with the same configurations.
"""

import base64
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nodewise.base.errors import Problem, closest_names, did_you_mean, shown
from nodewise.install.scheduler_versions import GROUP, SchedulerVersion

KIND: Final = "KubeSchedulerConfiguration"
_GROUP_VERSION: Final = f"{GROUP}/v1"
_ARGS: Final = "Args"
_PLUGIN_SETS: Final = (
    "preEnqueue queueSort preFilter filter postFilter preScore score reserve permit preBind bind postBind multiPoint"
    " placementGenerate@36 placementScore@36 podGroupPostFilter@37 placementFeasible@38"
)
_TYPES: Final[Mapping[str, str]] = {
    KIND: "apiVersion kind parallelism:int32 leaderElection:LeaderElection clientConnection:ClientConnection"
    " enableProfiling:bool enableContentionProfiling:bool percentageOfNodesToScore:int32"
    " percentageOfPlacementsToScore@38:int32 podInitialBackoffSeconds:int64 podMaxBackoffSeconds:int64"
    " profiles:[]Profile extenders:[]Extender delayCacheUntilActive:bool",
    "LeaderElection": "leaderElect:bool leaseDuration:duration renewDeadline:duration retryPeriod:duration"
    " resourceLock resourceName resourceNamespace",
    "ClientConnection": "kubeconfig acceptContentTypes contentType qps:float burst:int32",
    "Profile": "schedulerName percentageOfNodesToScore:int32 percentageOfPlacementsToScore@38:int32 plugins:Plugins"
    " pluginConfig:[]PluginConfig",
    "Plugins": " ".join(f"{name}:PluginSet" for name in _PLUGIN_SETS.split()),
    "PluginSet": "enabled:[]Plugin disabled:[]Plugin",
    "Plugin": "name weight:int32",
    "PluginConfig": "name args:any",
    "Extender": "urlPrefix filterVerb preemptVerb prioritizeVerb weight:int64 bindVerb enableHTTPS:bool"
    " tlsConfig:TLSConfig httpTimeout:duration nodeCacheCapable:bool managedResources:[]ManagedResource ignorable:bool",
    "ManagedResource": "name ignoredByScheduler:bool",
    "TLSConfig": "insecure:bool serverName certFile keyFile caFile certData:bytes keyData:bytes caData:bytes",
    "DefaultPreemptionArgs": "minCandidateNodesPercentage:int32 minCandidateNodesAbsolute:int32",
    "DynamicResourcesArgs": "filterTimeout:duration? bindingTimeout@35:duration?",
    "InterPodAffinityArgs": "hardPodAffinityWeight:int32 ignorePreferredTermsOfExistingPods:bool",
    "NodeAffinityArgs": "addedAffinity:NodeAffinity",
    "NodeResourcesBalancedAllocationArgs": "resources:[]Resource",
    "NodeResourcesFitArgs": "ignoredResources:[]string ignoredResourceGroups:[]string scoringStrategy:ScoringStrategy",
    "PodTopologySpreadArgs": "defaultConstraints:[]TopologySpreadConstraint defaultingType",
    "VolumeBindingArgs": "bindTimeoutSeconds:int64 shape:[]ShapePoint",
    "Resource": "name weight:int64",
    "ScoringStrategy": "type resources:[]Resource requestedToCapacityRatio:RequestedToCapacityRatio",
    "RequestedToCapacityRatio": "shape:[]ShapePoint",
    "ShapePoint": "utilization:int32 score:int32",
    "NodeAffinity": "requiredDuringSchedulingIgnoredDuringExecution:NodeSelector"
    " preferredDuringSchedulingIgnoredDuringExecution:[]PreferredTerm",
    "NodeSelector": "nodeSelectorTerms:[]NodeSelectorTerm",
    "PreferredTerm": "weight:int32 preference:NodeSelectorTerm",
    "NodeSelectorTerm": "matchExpressions:[]Requirement matchFields:[]Requirement",
    "Requirement": "key operator values:[]string",
    "TopologySpreadConstraint": "maxSkew:int32 topologyKey whenUnsatisfiable labelSelector:LabelSelector"
    " minDomains:int32 nodeAffinityPolicy nodeTaintsPolicy matchLabelKeys:[]string",
    "LabelSelector": "matchLabels:map matchExpressions:[]Requirement",
}
"""The fields of each type as `name@FIRST-MINOR-VERSION:type`; without a type a string, without a version in all
versions; `?` after a duration that may be null. The arguments of a plugin are of the type `<plugin>Args`, which may
have apiVersion and kind, too."""
_FIELDS: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    name: {
        field.partition(":")[0].partition("@")[0]: (
            int(field.partition(":")[0].partition("@")[2] or 0),
            field.partition(":")[2] or "string",
        )
        for field in (f"apiVersion kind {fields}" if name.endswith(_ARGS) else fields).split()
    }
    for name, fields in _TYPES.items()
}
_DURATION: Final = re.compile(r"[-+]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)")
_EXPECTED: Final = {
    "string": "a string",
    "bool": "true or false",
    "float": "a number",
    "map": "a map of strings",
    "duration": "a duration such as 1s",
    "bytes": "base64",
    "int32": "a whole number",
    "int64": "a whole number",
}
_REMOVED_PLUGINS: Final = frozenset({"AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"})
_FIRST_WITHOUT_PLUGINS: Final = 31
"""First minor version without these plugins."""
_PLUGINS: Final = _REMOVED_PLUGINS | frozenset(
    [
        "DefaultBinder",
        "DefaultPreemption",
        "DeferredPodScheduling",
        "DynamicResources",
        "GangScheduling",
        "ImageLocality",
        "InterPodAffinity",
        "NodeAffinity",
        "NodeDeclaredFeatures",
        "NodeName",
        "NodePorts",
        "NodeResourcesBalancedAllocation",
        "NodeResourcesFit",
        "NodeUnschedulable",
        "NodeVolumeLimits",
        "PodGroupPodsCount",
        "PodTopologySpread",
        "PrioritySort",
        "SchedulingGates",
        "SelectorSpread",
        "TaintToleration",
        "TopologyPlacementGenerator",
        "VolumeBinding",
        "VolumeRestrictions",
        "VolumeZone",
    ]
)
"""The plugins of kube-scheduler 1.27 to 1.37. Source: `pkg/scheduler/framework/plugins/names/names.go`."""
_SIMILAR: Final = 0.85
"""Of a misspelt plugin. Names of others are as similar as 0.8: Coscheduling and GangScheduling."""
_RESOURCE_NAME: Final = re.compile(
    r"(?=.{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/"
    r"(?=.{1,63}\Z)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_MAX_PROBLEMS: Final = 20
NEWEST_FIELD: Final = max(first for fields in _FIELDS.values() for first, _ in fields.values())
"""The minor version with the newest field. Later versions may have fields that are not listed here."""


def list_problems(document: Mapping[str, Any], version: SchedulerVersion) -> list[Problem]:
    """Why kube-scheduler does not start with a document of the kind KubeSchedulerConfiguration; empty if it does. Of an
    apiVersion other than v1, which has other fields, only clientConnection and the extenders are checked.

    A weight that is missing beside prioritizeVerb is left out.
    """
    if document.get("apiVersion") != _GROUP_VERSION:
        document = {field: document.get(field) for field in ("clientConnection", "extenders")}
    problems = [*_check_type(document, KIND, "", version)]
    return (problems or [*_check_values(document, version)])[:_MAX_PROBLEMS]


def _check_type(value: Any, type_: str, path: str, version: SchedulerVersion) -> Iterator[Problem]:
    """Unknown fields and values of another type. kube-scheduler takes null for a missing value, except of a duration
    that it does not store by a pointer.
    """
    if (value is None and type_ != "duration") or type_ == "any":
        return
    type_ = type_.removesuffix("?")
    if type_.startswith("[]"):
        if not isinstance(value, list):
            yield Problem(path, shown(value), "a list")
            return
        for number, item in enumerate(value):
            yield from _check_type(item, type_[2:], f"{path}[{number}]", version)
    elif type_ not in _FIELDS:
        if not _has_type(value, type_):
            yield Problem(path, shown(value), _EXPECTED[type_])
    elif not isinstance(value, dict):
        yield Problem(path, shown(value), "an object")
    else:
        yield from _check_fields(value, type_, path, version)


def _check_fields(
    value: dict[str, Any], type_: str, path: str, version: SchedulerVersion
) -> Iterator[Problem]:
    fields = _FIELDS[type_]
    for name, item in value.items():
        first_minor, field_type = fields.get(name, (0, ""))
        inner = f"{path}.{name}" if path else name
        if not field_type and version.minor > NEWEST_FIELD:
            continue
        if not field_type:
            missing = [
                field for field, (first, _) in fields.items() if first <= version.minor and field not in value
            ]
            yield Problem(inner, f"unknown field{did_you_mean(str(name), missing)}", "")
        elif first_minor > version.minor:
            unknown = f"unknown field in kube-scheduler {version}; it exists since 1.{first_minor}"
            yield Problem(inner, unknown, "")
        else:
            yield from _check_type(item, field_type, inner, version)
    args_type = f"{value.get('name')}{_ARGS}"
    if type_ == "PluginConfig" and args_type in _FIELDS:
        yield from _check_args(value.get("args"), args_type, f"{path}.args", version)


def _check_args(args: Any, type_: str, path: str, version: SchedulerVersion) -> Iterator[Problem]:
    """The arguments of a plugin; those of plugins that kube-scheduler does not know are not decoded."""
    for name, expected in (("apiVersion", _GROUP_VERSION), ("kind", type_)):
        actual = args.get(name) if isinstance(args, dict) else None
        # up to 1.28, kube-scheduler decodes arguments of an older version in a configuration of v1
        if isinstance(actual, str) and actual not in ("", expected) and not version.loads(actual):
            yield Problem(f"{path}.{name}", shown(actual), expected)
    yield from _check_type(args, type_, path, version)


def _has_type(value: Any, type_: str) -> bool:  # complexity: one branch for each type of value
    if type_ == "bool":
        return isinstance(value, bool)
    if type_ == "map":
        return isinstance(value, dict) and all(isinstance(item, str | None) for item in value.values())
    if type_ in ("int32", "int64", "float"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        bits = {"int32": 31, "int64": 63, "float": 128}[type_]
        return -(2**bits) <= value < 2**bits and (type_ == "float" or value == int(value))
    if not isinstance(value, str):
        return False
    if type_ == "bytes":
        try:
            base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
        except ValueError:
            return False
    return type_ != "duration" or _DURATION.fullmatch(value) is not None


def _check_values(document: Mapping[str, Any], version: SchedulerVersion) -> Iterator[Problem]:
    """Values that kube-scheduler refuses after it has decoded the configuration."""
    profiles = _objects(document, "profiles")
    yield from _check_percentage(document, "")
    if (parallelism := document.get("parallelism")) is not None and parallelism < 1:
        yield Problem("parallelism", str(parallelism), "1 or more")
    for name, count in Counter(profile.get("schedulerName") for profile in profiles).items():
        if count > 1 and name:
            yield Problem("profiles", f"{count} with the schedulerName {shown(name)}", "one profile")
    for at, profile in enumerate(profiles):
        name = profile.get("schedulerName")
        if name == "" or (name is None and len(profiles) > 1):  # a single profile has a default
            yield Problem(f"profiles[{at}].schedulerName", "no name", "a name")
        yield from _check_profile(profile, f"profiles[{at}].", version)
    yield from _check_extenders(_objects(document, "extenders"))


def _objects(value: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    """The objects of a list; kube-scheduler takes null for an empty one."""
    return [item or {} for item in value.get(field) or []]


def _check_percentage(value: Mapping[str, Any], path: str) -> Iterator[Problem]:
    percentage = value.get("percentageOfNodesToScore") or 0
    if not 0 <= percentage <= 100:  # noqa: PLR2004 - percent
        yield Problem(f"{path}percentageOfNodesToScore", str(percentage), "0 to 100")


def _check_profile(profile: Mapping[str, Any], path: str, version: SchedulerVersion) -> Iterator[Problem]:
    yield from _check_percentage(profile, path)
    plugins = profile.get("plugins") or {}
    # the value of an unknown point, of a newer version, may have any type
    for point in sorted(plugins.keys() & (_FIELDS["Plugins"].keys() - {"multiPoint"})):
        for number, plugin in enumerate(_objects(plugins[point] or {}, "enabled")):
            name = plugin.get("name")
            if name in _REMOVED_PLUGINS and version.minor >= _FIRST_WITHOUT_PLUGINS:
                where = f"{path}plugins.{point}.enabled[{number}]"
                yield Problem(where, f"{name} no longer exists; remove it", "")
    for name, count in Counter(item.get("name") or "" for item in _objects(profile, "pluginConfig")).items():
        if count > 1:
            yield Problem(f"{path}pluginConfig", f"{count} of the plugin {shown(name)}", "one entry")


def list_plugins_without_effect(  # complexity: profiles, extension points and their entries
    document: Mapping[str, Any],
) -> list[Problem]:
    """Misspelt plugins that a profile disables or configures, in a document without `list_problems`. kube-scheduler
    ignores them. Plugins that any profile enables exist in a kube-scheduler with plugins of others. None of an
    apiVersion other than v1, whose profiles `list_problems` does not check.
    """
    if document.get("apiVersion") != _GROUP_VERSION:
        return []
    problems: list[Problem] = []
    profiles = _objects(document, "profiles")
    known = _PLUGINS | {
        item.get("name")
        for profile in profiles
        for plugin_set in _plugin_sets(profile).values()
        for item in _objects(plugin_set, "enabled")
    }
    for at, profile in enumerate(profiles):
        named = [
            (f"plugins.{point}.disabled[{number}].name", item.get("name"))
            for point, plugin_set in _plugin_sets(profile).items()
            for number, item in enumerate(_objects(plugin_set, "disabled"))
        ]
        named += [
            (f"pluginConfig[{number}].name", item.get("name"))
            for number, item in enumerate(_objects(profile, "pluginConfig"))
        ]
        for path, name in named:
            if not name or name in known:
                continue
            if similar := closest_names(name, sorted(_PLUGINS), 1, _SIMILAR):
                actual = f'{shown(name)}, which is no plugin; did you mean "{similar[0]}"?'
                problems.append(Problem(f"profiles[{at}].{path}", actual, ""))
    return problems[:_MAX_PROBLEMS]


def _plugin_sets(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The plugins of a profile by extension point."""
    return {
        point: plugin_set
        for point, plugin_set in (profile.get("plugins") or {}).items()
        if point in _FIELDS["Plugins"] and plugin_set
    }


def _check_extenders(extenders: list[Mapping[str, Any]]) -> Iterator[Problem]:
    binders = [f"extenders[{at}]" for at, extender in enumerate(extenders) if extender.get("bindVerb")]
    if len(binders) > 1:
        yield Problem(" and ".join(binders[:2]), f"bindVerb in {len(binders)} entries", "one entry")
    seen: set[str] = set()
    for at, extender in enumerate(extenders):
        for number, resource in enumerate(_objects(extender, "managedResources")):
            name = resource.get("name") or ""
            place = f"extenders[{at}].managedResources[{number}].name"
            if not _RESOURCE_NAME.fullmatch(name) or "kubernetes.io/" in name or name.startswith("requests."):
                yield Problem(place, shown(name), "an extended resource such as example.com/name")
            elif name in seen:
                yield Problem(place, f"{shown(name)} twice in the configuration", "once")
            seen.add(name)
