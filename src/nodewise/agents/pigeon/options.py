"""Settings of the pigeon agent."""

from typing import Annotated, Literal

import msgspec

from nodewise.agents.pigeon.resources import GPU, NAMES
from nodewise.agents.pigeon.score_scaling import Scaling
from nodewise.option import Option
from nodewise.statistics.missing_statistics import MissingRules, Score, When


class PigeonOptions(MissingRules, msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster is to be like, and by which resources."""

    num_resources: Annotated[int, msgspec.Meta(ge=1, le=len(NAMES))] = 2
    """How many resources count, of cpu, memory, pods, gpu and ephemeral-storage, in this order."""

    policy_objective: Literal["", "A_BINPACK", "LOAD_BALANCE", "CONSOLIDATE"] = ""
    """What a pod's node is chosen for. `A_BINPACK`: that nodes differ as much in how full they are as pods differ in
    what they ask for; equal pods are spread, and where small ones come beside large ones, nodes are kept free for
    these. `LOAD_BALANCE`: that nodes are equally full. `CONSOLIDATE`: that they are not, but full or empty. Not given:
    that of pigeon.cfg, else A_BINPACK."""

    policy_resource_index: Annotated[int, msgspec.Meta(ge=0, lt=len(NAMES))] | None = None
    """The resource by which LOAD_BALANCE and CONSOLIDATE go: 0 is cpu, 1 memory, and so on. Not given: that of
    pigeon.cfg, else 0."""

    pigeon_config: Annotated[str, Option(metavar="FILE")] = ""
    """The older system's file, with lines such as `policyObjective=CONSOLIDATE` and `policyResourceIndex=1`. Not given:
    pigeon.cfg in the working folder, if it is there."""

    pigeon_usage: Literal["annotations", "pods"] = "annotations"
    """Where it comes from how much is requested of a node. `annotations`: its annotations `requested-cpu` and so on,
    which `nodewise annotate` writes once a minute. `pods`: the API server's pods, so that a pod counts as soon as it is
    bound, and many that come together do not all see the same best node."""

    pigeon_scaling: Scaling = "stretch"
    """How values of the objective become scores. `stretch`: the best of the nodes that are asked about gets 10, the
    worst that the pod fits 1, however little they differ. `absolute`: 10 for a value of 0, 0 for one of 1 or more; in
    clusters of more than some tens of nodes one pod makes little difference, and nodes score alike."""

    pigeon_gpu_resource: Annotated[str, Option(metavar="RESOURCE")] = GPU
    """What the fourth resource is called on nodes and in pods' requests, such as nvidia.com/gpu."""

    when_missing: When = "accept"
    """Of a resource that counts nobody says how much is requested on the node: `accept` lets the node pass, `reject`
    does not."""

    score_missing: Score = None
    """The score of such a node, from 0 to 10, where the pod fits; not given: that which it has if none is requested."""
