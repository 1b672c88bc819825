"""Settings of the learned agent."""

from typing import Annotated

import msgspec

from nodewise.option import Option
from nodewise.statistics.missing_statistics import MissingRules, Score


class LearnedOptions(MissingRules, msgspec.Struct, frozen=True, kw_only=True):
    """What is learned from pods, and how fast it is forgotten."""

    learned_half_life_s: Annotated[float, msgspec.Meta(ge=0)] = 6 * 3600.0
    """How long until half of what is known of a pod type on a node is forgotten, so that a node that failed is tried
    again. 0: never."""

    learned_prior: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """The reward, from 0 to 1, of a node on which a pod type was never tried, and to which what is known fades."""

    learned_exploration: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    """How much nodes gain of which little is known, so that they are tried: times the root of ln(1 + tries on all
    nodes) / (1 + tries on the node), where tries fade as rewards do. 0: nothing."""

    learned_namespaces: Annotated[tuple[str, ...], Option(metavar="NAMESPACE")] = ()
    """Namespaces whose pods are learned from; repeat it for several. None: all."""

    learned_mttf_s: Annotated[float, msgspec.Meta(ge=0)] = 600.0
    """A container that ended again sooner than this after it had ended before counts as failed, and later as
    suspicious only."""

    score_missing: Score = None
    """The score of a node on which the pod type was never tried; not given: 10 times --learned-prior."""
