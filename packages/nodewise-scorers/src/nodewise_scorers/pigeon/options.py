"""Settings of the pigeon agent."""

from typing import Annotated, Literal

import msgspec

from nodewise.base.option import Option
from nodewise_scorers.pigeon.placement_objectives import Scaling
from nodewise_scorers.pigeon.resource_units import GPU, NAMES
from nodewise_scorers.statistics.missing_statistics import MissingRules, Score, When


class PigeonOptions(MissingRules, msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the objective and its resources."""

    num_resources: Annotated[int, msgspec.Meta(ge=1, le=len(NAMES))] = 2
    """Number of resources that count, of cpu, memory, pods, gpu and ephemeral-storage in this order."""

    policy_objective: Literal["", "A_BINPACK", "LOAD_BALANCE", "CONSOLIDATE"] = ""
    """Objective. `A_BINPACK`: nodes differ as much in utilization as pods differ in requests; equal pods are spread,
    and with small and large pods some nodes are kept free for the large ones. `LOAD_BALANCE`: nodes have equal
    utilization. `CONSOLIDATE`: nodes are full or empty. Default: that of pigeon.cfg, else A_BINPACK."""

    policy_resource_index: Annotated[int, msgspec.Meta(ge=0, lt=len(NAMES))] | None = None
    """Resource of LOAD_BALANCE and CONSOLIDATE: 0 is cpu, 1 memory, and so on. Default: that of pigeon.cfg, else 0."""

    pigeon_config: Annotated[str, Option(metavar="FILE")] = ""
    """File of the older system, with lines such as `policyObjective=CONSOLIDATE` and `policyResourceIndex=1`. Default:
    pigeon.cfg in the working directory, if it exists."""

    pigeon_usage: Literal["annotations", "pods"] = "annotations"
    """Source of the requested amounts of a node. `annotations`: its annotations `requested-cpu` and so on, which
    `nodewise annotate` writes once a minute. `pods`: the API server's pods, so that a pod counts as soon as it is
    bound, and several new pods do not all get the same best node."""

    pigeon_scaling: Scaling = "stretch"
    """Conversion of values of the objective into scores. `stretch`: 10 for the best candidate and 1 for the worst that
    the pod fits, however small the difference. `absolute`: 10 for a value of 0, 0 for 1 or more; in clusters with more
    than some tens of nodes one pod makes little difference, and nodes get equal scores."""

    pigeon_gpu_resource: Annotated[str, Option(metavar="RESOURCE")] = GPU
    """Name of the fourth resource on nodes and in pod requests, such as nvidia.com/gpu."""

    when_missing: When = "accept"
    """Treatment of a node with an unknown requested amount of a resource that counts: `accept` lets it pass, `reject`
    does not."""

    score_missing: Score = None
    """Score of such a node, from 0 to 10, if the pod fits. Default: its score with a requested amount of 0."""
