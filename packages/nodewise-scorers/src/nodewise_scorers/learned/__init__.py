"""The learned agent: nodes on which pods of the same type failed score low, until they have shown better.

| module | content |
|---|---|
| `__init__.py` | settings |
| `pod_types_and_outcomes.py` | the fields of pods that are read, the type of a pod, and what happened to it |
| `pod_type_rewards.py` | the learning rule, and what is known of each type on each node |
| `agent.py` | learns from the changes of pods, and answers requests, with details and `/state/learned` |

Replaces kubeRL, the reward-biased extender of kube-safe-scheduler.
"""

from typing import Annotated, Final

import msgspec

from nodewise.agent import LoadScoring, Resource, Watched
from nodewise.base.option import Option
from nodewise_scorers.scoring_agent import MissingRules, Score, ScoringAgentKind


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

    in_flight: bool = False
    """Count pods in flight: bound pods, and for some seconds pods that were just prioritized, until the statistics of
    their node include them. Otherwise pods that arrive together see the same best node."""

    score_missing: Score = None
    """Score of a node on which the pod type was never tried. Default: 10 times --learned-prior."""


class LearnedKind(ScoringAgentKind):
    name = "learned"
    summary = "prefer nodes on which pods of the same type did not fail"
    options = LearnedOptions
    load_scoring: LoadScoring = "whole"
    keeps_memory = True

    def watched(self, options: LearnedOptions) -> tuple[Watched, ...]:
        """All pods on nodes from which something can be learned."""
        from nodewise_scorers.learned.agent import PODS
        from nodewise_scorers.learned.pod_types_and_outcomes import ObservedPod, make_pod_reducer

        pods = Resource("", "v1", "pods", "Pod")
        observed = Watched(PODS, pods, ObservedPod, keep=make_pod_reducer(options.learned_namespaces))
        return (observed, *super().watched(options))


KIND: Final = LearnedKind()
