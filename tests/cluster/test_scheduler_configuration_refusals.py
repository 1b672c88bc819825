"""doctor and the real kube-scheduler refuse the same configurations."""

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from nodewise.doctor.parsing.scheduler_configuration import list_refusals, parse
from nodewise.install.scheduler_versions import SchedulerVersion
from tests.cluster import program_cache

pytestmark = pytest.mark.kubernetes_versions

HEAD: Final = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
ENTRY: Final = "extenders: [{urlPrefix: 'https://n:9001/scheduler', filterVerb: filter, %s}]"
PROFILE: Final = "profiles: [{%s}]"
ARGS: Final = "profiles: [{pluginConfig: [{name: %s, args: %s}]}]"

REFUSED: Final = {
    "a removed version": "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration",
    "an alpha version": "apiVersion: kubescheduler.config.k8s.io/v1alpha1\nkind: KubeSchedulerConfiguration",
    "another group": "apiVersion: componentconfig/v1alpha1\nkind: KubeSchedulerConfiguration",
    "no version": "kind: KubeSchedulerConfiguration",
    "a field of v1alpha1": HEAD + "algorithmSource: {provider: DefaultProvider}",
    "a field of v1beta2": HEAD + "healthzBindAddress: 0.0.0.0:10251",
    "a misspelt field": HEAD + "profile: [{schedulerName: a}]",
    "a field in another case": HEAD + "Parallelism: 4",
    "a misspelt field of an entry": HEAD + ENTRY % "nodeCacheCapabel: true",
    "an entry's field in another case": HEAD + ENTRY % "enableHttps: true",
    "the field of the old policy file": HEAD + ENTRY % "tlsConfig: {caCert: /ca}",
    "a misspelt field of a resource": HEAD
    + ENTRY % "managedResources: [{name: a.b/c, ignoredByschedulers: true}]",
    "a text as a number": HEAD + ENTRY % 'weight: "10"',
    "a fraction as a whole number": HEAD + ENTRY % "weight: 1.5",
    "a number as a text": HEAD + ENTRY % "bindVerb: 1",
    "a text as a boolean": HEAD + ENTRY % 'ignorable: "false"',
    "a name that YAML reads as a boolean": HEAD + ENTRY % "tlsConfig: {serverName: n}",
    "a number as a duration": HEAD + ENTRY % "httpTimeout: 5",
    "null as a duration": HEAD + ENTRY % "httpTimeout: null",
    "a duration without a unit": HEAD + ENTRY % 'httpTimeout: "5"',
    "a duration in days": HEAD + ENTRY % "httpTimeout: 1d",
    "no base64": HEAD + ENTRY % "tlsConfig: {caData: '***'}",
    "an entry that is no list": HEAD + "extenders: {urlPrefix: 'https://n:9001'}",
    "a profile that is a text": HEAD + "profiles: [default-scheduler]",
    "a number that is too large": HEAD + "percentageOfNodesToScore: 3000000000",
    "a percentage that is too large": HEAD + "percentageOfNodesToScore: 101",
    "a duplicate key": HEAD + "parallelism: 4\nparallelism: 4",
    "a duplicate key of an entry": HEAD + ENTRY % "filterVerb: filter",
    "a duplicate key in JSON": '{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"KubeSchedulerConfiguration",'
    '"parallelism":4,"parallelism":5}',
    "no YAML": HEAD + "extenders: [",
    "an unknown extension point": HEAD + PROFILE % "plugins: {postFilters: {enabled: []}}",
    "a misspelt field of a plugin": HEAD + PROFILE % "plugins: {score: {enable: [{name: NodeResourcesFit}]}}",
    "a removed plugin": HEAD + PROFILE % "plugins: {filter: {enabled: [{name: EBSLimits}]}}",
    "an unknown argument": HEAD + ARGS % ("NodeResourcesFit", "{scoringStrategy: {kind: MostAllocated}}"),
    "an argument of another type": HEAD + ARGS % ("InterPodAffinity", "{hardPodAffinityWeight: high}"),
    "arguments of an old version": HEAD
    + ARGS % ("NodeAffinity", "{apiVersion: kubescheduler.config.k8s.io/v1beta3, kind: NodeAffinityArgs}"),
    "arguments of another plugin": HEAD + ARGS % ("NodeAffinity", "{kind: NodeResourcesFitArgs}"),
    "a misspelt field of an affinity": HEAD
    + ARGS
    % (
        "NodeAffinity",
        "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerm: []}}}",
    ),
    "a misspelt field of a constraint": HEAD
    + ARGS
    % ("PodTopologySpread", "{defaultConstraints: [{maxSkew: 1, topologykey: a}], defaultingType: List}"),
    "two binders": HEAD
    + "extenders: [{urlPrefix: 'http://a', bindVerb: b}, {urlPrefix: 'http://b', bindVerb: b}]",
    "two profiles of one scheduler": HEAD + "profiles: [{schedulerName: a}, {schedulerName: a}]",
    "a profile of an empty name": HEAD + "profiles: [{schedulerName: ''}]",
    "two default profiles": HEAD + "profiles: [{schedulerName: default-scheduler}, {}]",
    "a profile without a name beside another one": HEAD + "profiles: [{}, {schedulerName: a}]",
    "no parallelism": HEAD + "parallelism: 0",
    "arguments twice": HEAD + PROFILE % "pluginConfig: [{name: NodeName}, {name: NodeName}]",
    "a resource without a domain": HEAD + ENTRY % "managedResources: [{name: gpu}]",
    "a resource of Kubernetes": HEAD + ENTRY % "managedResources: [{name: kubernetes.io/gpu}]",
    "a resource twice": HEAD + ENTRY % "managedResources: [{name: a.b/c}, {name: a.b/c}]",
}
ACCEPTED: Final = {
    "only its kind": HEAD,
    "everything at once": HEAD
    + """
parallelism: 8
leaderElection: {leaderElect: true, leaseDuration: 15s, renewDeadline: 10s, retryPeriod: 2s, resourceLock: leases,
  resourceName: kube-scheduler, resourceNamespace: kube-system}
clientConnection: {qps: 50.5, burst: 100, contentType: application/json, acceptContentTypes: "", kubeconfig: ""}
enableProfiling: yes
enableContentionProfiling: false
percentageOfNodesToScore: 0
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 10
delayCacheUntilActive: true
profiles:
- schedulerName: a
  percentageOfNodesToScore: 50
  plugins:
    multiPoint: {enabled: [{name: NodeResourcesFit, weight: 3}], disabled: [{name: ImageLocality}]}
    score: {disabled: [{name: "*"}]}
    preBind: {}
  pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      ignoredResources: [a.b/c]
      ignoredResourceGroups: [a.b]
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu, weight: 1}]
        requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}
  - {name: DefaultPreemption, args: {minCandidateNodesPercentage: 10, minCandidateNodesAbsolute: 100}}
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: 1, ignorePreferredTermsOfExistingPods: true}}
  - {name: NodeResourcesBalancedAllocation, args: {resources: [{name: cpu, weight: 1}]}}
  - {name: VolumeBinding, args: {bindTimeoutSeconds: 600}}
  - {name: DynamicResources, args: {filterTimeout: 10s}}
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchExpressions: [{key: a, operator: In, values: [b]}]
            matchFields: [{key: metadata.name, operator: In, values: [rack3]}]
        preferredDuringSchedulingIgnoredDuringExecution:
        - {weight: 1, preference: {matchExpressions: [{key: a, operator: Exists}]}}
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
extenders:
- urlPrefix: https://n:9001/scheduler
  filterVerb: filter
  preemptVerb: preempt
  prioritizeVerb: prioritize
  weight: 10
  bindVerb: bind
  enableHTTPS: true
  httpTimeout: 1m2.5s
  nodeCacheCapable: true
  ignorable: false
  managedResources: [{name: telemetry/scheduling, ignoredByScheduler: true}, {name: gpu.intel.com/i915}]
  tlsConfig: {insecure: false, serverName: nodewise}
""",
    "arguments of a foreign plugin": HEAD + ARGS % ("Foreign", "{anything: [1]}"),
    "null in place of values": HEAD + "profiles: null\nextenders: [{urlPrefix: 'https://n', weight: null}]",
    "null arguments": HEAD + ARGS % ("NodeAffinity", "null"),
    "a whole number with a point": HEAD + "parallelism: 4.0",
    "a whole number with an exponent": HEAD + "parallelism: 1e1",
    "a date as a text": HEAD + PROFILE % "schedulerName: 2026-11-30",
    "a second document": HEAD + "---\nanything: else",
    "JSON with tabs": '{\t"apiVersion":"kubescheduler.config.k8s.io/v1",\n\t"kind":"KubeSchedulerConfiguration"\t}',
}
SINCE: Final = {
    35: HEAD + ARGS % ("DynamicResources", "{bindingTimeout: 10m}"),
    36: HEAD + PROFILE % "plugins: {placementScore: {}}",
    37: HEAD + PROFILE % "plugins: {podGroupPostFilter: {}}",
    38: HEAD + "percentageOfPlacementsToScore: 10",
}


def refusals_of_doctor(text: str) -> list[str]:
    configuration = parse(text.encode())
    if configuration.problem:
        return [configuration.problem]
    refusals = list_refusals(configuration.document, SchedulerVersion(program_cache.MINOR))
    return [*configuration.duplicate_keys, *refusals]


@pytest.fixture
def refusal(control_plane_programs: Path, tmp_path: Path) -> Any:
    """Runs kube-scheduler until it has loaded a configuration; returns its error, or an empty text."""

    def run(text: str) -> str:
        file = tmp_path / "configuration"
        file.write_text(text)
        flags = (
            f"--config={file}",
            f"--write-config-to={file}.out",
            "--master=http://127.0.0.1:1",
            "--secure-port=0",
        )
        completed = subprocess.run(
            [control_plane_programs / "kube-scheduler", *flags],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return completed.stderr if completed.returncode else ""

    return run


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_doctor_refuses_a_configuration_that_stops_kube_scheduler(refusal: Any, text: str) -> None:
    assert refusal(text)
    assert refusals_of_doctor(text)


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_doctor_accepts_a_configuration_that_kube_scheduler_loads(refusal: Any, text: str) -> None:
    assert refusal(text) == ""
    assert refusals_of_doctor(text) == []


@pytest.mark.parametrize("minor", SINCE)
def test_a_field_is_refused_before_the_version_that_has_it(refusal: Any, minor: int) -> None:
    is_refused = minor > program_cache.MINOR
    assert bool(refusal(SINCE[minor])) == is_refused
    assert bool(refusals_of_doctor(SINCE[minor])) == is_refused
