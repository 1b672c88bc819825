"""CMK's names of objects, labels, annotations and variables, which manifests of its users depend on.

Standard library only.
"""

from typing import Final

EXCLUSIVE_CORES: Final = "cmk.intel.com/exclusive-cores"
NON_ISOLCPUS_CORES: Final = "cmk.intel.com/exclusive-non-isolcpus-cores"
"""Extended resources: one unit is one CPU list of the pool."""
OPAQUE: Final = {
    EXCLUSIVE_CORES: "pod.alpha.kubernetes.io/opaque-int-resource-cmk",
    NON_ISOLCPUS_CORES: "pod.alpha.kubernetes.io/opaque-int-resource-cmk-excl-non-isolcpus",
}
"""The names before Kubernetes 1.8."""

LABEL: Final = "cmk.intel.com/cmk-node"
"""The label of nodes that have pools, with the value `true`."""
TAINT: Final = "cmk"
"""The taint, with the value `true` and the effect NoSchedule."""
MUTATE: Final = "cmk.intel.com/mutate"
"""The annotation of a pod that gets the mounts without requesting cores: `true`, `True` or `1`."""
INJECTED: Final = "cmk.intel.com/resources-injected"
"""The annotation of a pod that the webhook has processed: `true`."""

SST_BF: Final = "feature.node.kubernetes.io/cpu-power.sst_bf.enabled"
SST_CP: Final = "feature.node.kubernetes.io/cpu-power.sst_cp.enabled"
"""Labels that Node Feature Discovery writes."""

OWNER: Final = "Owner"
"""The annotation that is CMK's lock: the pod of the owner, or empty."""
INTENT: Final = "cpu.nodewise.io/reconfiguring"
"""The annotation with the intent of a reconfiguration in progress."""

PROC_FS: Final = "CMK_PROC_FS"
"""The variable with the path of the host's `/proc`."""
SYSFS: Final = "CMK_DEV_LSCPU_SYSFS"
"""The variable with the folder of another machine's `sys` and `proc`."""
NODE_NAME: Final = "NODE_NAME"
LOG_LEVEL: Final = "CMK_LOG_LEVEL"
LOCK_TIMEOUT: Final = "CMK_LOCK_TIMEOUT"

DEFAULT_SOCKET: Final = "/run/nodewise/cpu.sock"
"""The path of the node agent's socket, on the host and in containers."""
DEFAULT_INSTALL_DIR: Final = "/opt/bin"


def config_map(node: str) -> str:
    """The name of the ConfigMap that stores a node's allocations."""
    return f"cmk-config-{node}"
