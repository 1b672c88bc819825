"""Settings of the learned agent."""

from typing import Annotated

import msgspec

from nodewise.base.option import Option
from nodewise_scorers.statistics.missing_statistics import MissingRules, Score


class LearnedOptions(MissingRules, msgspec.Struct, frozen=True, kw_only=True):
    """Learning rate, prior and half-life of rewards."""

    learned_half_life_s: Annotated[float, msgspec.Meta(ge=0)] = 6 * 3600.0
    """Time after which half of an estimate of a pod type on a node is forgotten, so that a node that failed is tried
    again. 0: never."""

    learned_prior: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Reward, from 0 to 1, of a node on which a pod type was never tried. Estimates decay to this value."""

    learned_exploration: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    """Bonus for nodes with few tries: this factor times the root of ln(1 + tries on all nodes) / (1 + tries on the
    node), where tries decay as rewards do. 0: none."""

    learned_namespaces: Annotated[tuple[str, ...], Option(metavar="NAMESPACE")] = ()
    """Namespaces from whose pods the agent learns; repeat it for several. Default: all."""

    learned_mttf_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0
    """Time between two terminations of a container below which the later one counts as failed, otherwise as
    suspicious."""

    score_missing: Score = None
    """Score of a node on which the pod type was never tried. Default: 10 times --learned-prior."""
