"""The kinds of object that are looked at."""

from typing import Final

from nodewise.kube.resources import Resource

DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", "DaemonSet")
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", "StatefulSet")
CRON_JOBS: Final = Resource("batch", "v1", "cronjobs", "CronJob")
WORKLOADS: Final = (DEPLOYMENTS, DAEMON_SETS, STATEFUL_SETS, CRON_JOBS)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
SERVICES: Final = Resource("", "v1", "services", "Service")
SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
POLICIES: Final = Resource("telemetry.intel.com", "v1alpha1", "taspolicies", "TASPolicy")
ADMISSION_POLICIES: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    namespaced=False,
)
ADMISSION_BINDINGS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
API_SERVICES: Final = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)
