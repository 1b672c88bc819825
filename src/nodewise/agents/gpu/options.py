"""Settings of the gpu agent."""

from typing import Annotated, Final, Literal, get_args

import msgspec

from nodewise.agents.gpu.resource_profile import ResourceProfile
from nodewise.errors import BadSettings, Problem, shown
from nodewise.option import Option

Placement = Literal["first-fit", "pack", "spread", "balanced", "fragmentation"]
PLACEMENTS: Final[tuple[Placement, ...]] = get_args(Placement)


class GpuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whose cards they are, which of those that fit a pod gets, and how much pods may say about it."""

    gpu_placement: Placement = "first-fit"
    """Which of the cards that fit a pod gets, and which nodes score well. `first-fit`: the first by name, as the
    older system did. `pack`: the fullest. `spread`: the emptiest. `balanced`: the one of which the least of
    --balanced-resource is used. `fragmentation`: the one where a placement spoils the least for the pods that usually
    come. A pod's annotation nodewise.io/gpu-placement says otherwise for itself."""

    gpu_profile: Annotated[str, Option(metavar="NAME|FILE")] = "intel"
    """Names of resources, and how a node says which cards it has. `intel`: gpu.intel.com/, by labels. `generic`:
    nvidia.com/gpu, shared by gpu-milli, gpumem and gpucores; the number of cards is the node label
    nvidia.com/gpu.count or, without it, the allocatable nvidia.com/gpu. Anything else is a YAML file with prefix,
    counts, shares, monitoring, tiles, cards and count_label. The node annotation nodewise.io/gpu-cards wins over
    labels and counts."""

    gpu_typical_pods: Annotated[str, Option(metavar="FILE")] = ""
    """YAML, JSON or CSV file of the pods that usually come, for the placement `fragmentation`. Empty: the pods of the
    last seven days, kept in a ConfigMap; while there are none `fragmentation` is `pack`."""

    enable_allowlist: bool = False
    """Obey the pod annotation gas-allow: only these cards, by name. Off, as the older system had it: names mean other
    cards on other nodes."""

    enable_denylist: bool = False
    """Obey the pod annotation gas-deny: none of these cards, by name. Off for the same reason."""

    balanced_resource: Annotated[str, Option(metavar="RESOURCE")] = ""
    """Placement `balanced` by this resource, named without the prefix (millicores). Empty: where a pod or
    --gpu-placement asks for `balanced`, it is by the resources that count cards."""

    bind_errors: Literal["status", "field"] = "status"
    """How a bind is refused. `status`: with HTTP 404, as the older system did; kube-scheduler then shows the number
    and not the words. `field`: with HTTP 200 and the words in `Error`, which end up in the pod's event."""

    gpu_check_period_s: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    """How often what we hold of nodes, pods and ledgers is compared with a fresh list. A difference is logged, counted,
    and mended by beginning anew. 0: never."""

    gpu_card_metrics: Annotated[int, msgspec.Meta(ge=0)] = 256
    """Up to so many cards in the cluster, each has a gauge of its own; with more there are totals only. 1,000 of them
    hold a scrape up for 7 ms, and requests meanwhile."""

    def __post_init__(self) -> None:
        """BadSettings if two of them say different things. First-fit, as the default, gives way."""
        if self.balanced_resource and self.gpu_placement not in ("first-fit", "balanced"):
            seen = f"{shown(self.balanced_resource)} beside --gpu-placement {self.gpu_placement}"
            problem = Problem("--balanced-resource", seen, "it without --gpu-placement, or with balanced")
            raise BadSettings("settings", [problem])

    @property
    def placement(self) -> Placement:
        """The placement of pods that name none."""
        return "balanced" if self.balanced_resource else self.gpu_placement

    def balanced_by(self, profile: ResourceProfile) -> tuple[str, ...]:
        """The resources whose used amounts, summed up, `balanced` keeps even; full names."""
        return (profile.prefix + self.balanced_resource,) if self.balanced_resource else profile.counts
