"""Settings of the gpu agent."""

from typing import Annotated, Final, Literal, get_args

import msgspec

from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base.errors import BadSettings, Problem, shown
from nodewise.base.option import Option

Placement = Literal["first-fit", "pack", "spread", "balanced", "fragmentation"]
PLACEMENTS: Final[tuple[Placement, ...]] = get_args(Placement)


class GpuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the GPU vendor, the placement, and the annotations that pods may use."""

    gpu_placement: Placement = "first-fit"
    """Choice of GPUs for a pod, and scores of nodes. `first-fit`: the first by name, as in the older system. `pack`:
    the fullest. `spread`: the emptiest. `balanced`: the one with the least used amount of --balanced-resource.
    `fragmentation`: the one where the placement leaves the most capacity usable for typical pods. The pod annotation
    nodewise.io/gpu-placement overrides it."""

    gpu_profile: Annotated[str, Option(metavar="NAME|FILE")] = "intel"
    """Names of resources, and the source of a node's GPUs. `intel`: gpu.intel.com/, by labels. `nvidia`:
    nvidia.com/gpu, shared by gpu-milli, gpumem and gpucores, with the number, model and memory of GPUs by the labels
    of GPU feature discovery. `amd`: amd.com/gpu, shared by gpumem, by the labels of AMD's node labeller. `generic`:
    as nvidia, without models and memory. Without labels the allocatable resource counts the GPUs. Anything else is a
    YAML file with prefix, counts, shares, monitoring, tiles, cards and count_label. The node annotation
    nodewise.io/gpu-cards overrides labels and counts."""

    gpu_typical_pods: Annotated[str, Option(metavar="FILE")] = ""
    """YAML, JSON or CSV file of typical pods, for the placement `fragmentation`. Empty: the pods of the last seven
    days, kept in a ConfigMap; as long as there are none, `fragmentation` is the same as `pack`."""

    enable_allowlist: bool = False
    """Apply the pod annotation gas-allow: only these GPUs, by name, on whatever node."""

    enable_denylist: bool = False
    """Apply the pod annotation gas-deny: none of these GPUs, by name."""

    balanced_resource: Annotated[str, Option(metavar="RESOURCE")] = ""
    """Resource of the placement `balanced`, without the prefix (millicores). Empty: if a pod or --gpu-placement
    requests `balanced`, the resources that count cards."""

    bind_errors: Literal["status", "field"] = "status"
    """Form of a refused bind. `status`: HTTP 404, as in the older system; kube-scheduler then shows the number but not
    the message. `field`: HTTP 200 and the message in `Error`, which appears in the pod's event."""

    gpu_check_period_s: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    """Period of a comparison of nodes, pods and allocation records in memory with a fresh list. A difference is logged
    and counted, and everything is read again. 0: never."""

    gpu_card_metrics: Annotated[int, msgspec.Meta(ge=0)] = 256
    """Number of GPUs in the cluster up to which each has its own gauge; with more GPUs there are totals only. 1,000
    GPUs delay requests by 7 ms per scrape."""

    def __post_init__(self) -> None:
        """`BadSettings` for contradictory settings. The default, first-fit, contradicts nothing."""
        if self.balanced_resource and self.gpu_placement not in ("first-fit", "balanced"):
            seen = f"{shown(self.balanced_resource)} beside --gpu-placement {self.gpu_placement}"
            problem = Problem("--balanced-resource", seen, "it without --gpu-placement, or with balanced")
            raise BadSettings("settings", [problem])

    @property
    def placement(self) -> Placement:
        """The placement of pods without an annotation."""
        return "balanced" if self.balanced_resource else self.gpu_placement

    def balanced_by(self, profile: ResourceProfile) -> tuple[str, ...]:
        """The resources whose sum of used amounts `balanced` keeps even; full names."""
        return (profile.prefix + self.balanced_resource,) if self.balanced_resource else profile.counts
