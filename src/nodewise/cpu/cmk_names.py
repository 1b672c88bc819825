"""Names that the older CPU manager gave to things in a cluster, and that its users' manifests rely upon.

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
"""What they are called below Kubernetes 1.8."""

LABEL: Final = "cmk.intel.com/cmk-node"
"""Of nodes that have pools: `true`."""
TAINT: Final = "cmk"
"""Its value is `true`, its effect NoSchedule."""
MUTATE: Final = "cmk.intel.com/mutate"
"""Of a pod that wants the mounts without asking for cores: `true`, `True` or `1`."""
INJECTED: Final = "cmk.intel.com/resources-injected"
"""Of a pod that the webhook has seen to: `true`."""

SST_BF: Final = "feature.node.kubernetes.io/cpu-power.sst_bf.enabled"
SST_CP: Final = "feature.node.kubernetes.io/cpu-power.sst_cp.enabled"
"""Labels that Node Feature Discovery writes."""

OWNER: Final = "Owner"
"""The annotation by which the older program locked a state: the holder's pod, or nothing."""
INTENT: Final = "cpu.nodewise.io/reconfiguring"
"""The annotation that says that a node is being reconfigured, and to what."""

PROC_FS: Final = "CMK_PROC_FS"
"""The variable that says where the host's `/proc` is."""
SYSFS: Final = "CMK_DEV_LSCPU_SYSFS"
"""The variable that says where a machine's `sys` and `proc` are, if it is not this one."""
NODE_NAME: Final = "NODE_NAME"
LOG_LEVEL: Final = "CMK_LOG_LEVEL"
LOCK_TIMEOUT: Final = "CMK_LOCK_TIMEOUT"

DEFAULT_SOCKET: Final = "/run/nodewise/cpu.sock"
"""Where the node agent listens, on the host and in containers."""
DEFAULT_INSTALL_DIR: Final = "/opt/bin"


def config_map(node: str) -> str:
    """The ConfigMap that holds a node's state."""
    return f"cmk-config-{node}"
