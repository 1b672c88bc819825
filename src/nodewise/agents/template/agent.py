"""Answers requests from the agent's state. Add your own calculation to `filter` and `score`."""

from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import FilterPlugin, Names, ScorePlugin, Scores, Snapshot, Verdict
from nodewise.agents.template.options import TemplateOptions
from nodewise.agents.template.state import TemplateState, read_number


class PodMetadata(msgspec.Struct, frozen=True):
    labels: dict[str, str] | None = None


class PodFields(msgspec.Struct, frozen=True):
    """The fields of a Pod that are read, with the names of its JSON."""

    metadata: PodMetadata = PodMetadata()


class LimitExceeded(msgspec.Struct, frozen=True):
    """Why a node is rejected. kube-scheduler shows the text on the pod, once for all nodes with the same text."""

    limit: float
    is_failure: ClassVar[bool] = False
    is_unresolvable: ClassVar[bool] = True  # evicting pods from the node does not change its number

    def text(self) -> str:
        return f"template: above {self.limit:g}"

    def remedy(self) -> str:
        return "give the pod a higher limit"


class TemplateAgent(FilterPlugin[PodFields, TemplateState], ScorePlugin[PodFields, TemplateState]):
    """The agent `template`. All arrays are by candidate, in the order of the request."""

    name = "template"

    def __init__(self, options: TemplateOptions) -> None:
        self._label = options.template_label
        self.predicates = {"template": self.filter}
        self.priorities = {"template": self.score}

    def equivalence_key(self, pod: PodFields, snapshot: Snapshot) -> str | None:
        """The pod's label, on which the results depend. None would mean that the pod does not concern the agent."""
        return (pod.metadata.labels or {}).get(self._label, "")

    def filter(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        """Reject candidates: code 0 accepts, code k rejects for the k-th reason."""
        values, limit = self._values(candidates, snapshot), self._limit(pod)
        # Your own calculation, such as `rejected = ~(values <= limit)`, which rejects missing values too.
        rejected = np.zeros(len(values), bool)
        return Verdict(rejected.astype(np.int16), (LimitExceeded(limit),))

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """Score candidates with whole numbers from 0 to 10."""
        values = self._values(candidates, snapshot)
        # Your own calculation, such as `points = np.clip(10 - values, 0, 10)`, with a score for missing values.
        points = np.ones(len(values))
        return Scores(np.nan_to_num(points).round().astype(np.int64))

    def _values(self, candidates: Names, snapshot: Snapshot) -> NDArray[np.float64]:
        """The numbers of the candidates."""
        state = self.state(snapshot)
        assert state is not None
        values: NDArray[np.float64] = state.values[candidates.numbers]
        return values

    def _limit(self, pod: PodFields) -> float:
        """The number in the pod's label; infinite if there is none."""
        limit = read_number((pod.metadata.labels or {}).get(self._label, ""))
        return np.inf if np.isnan(limit) else limit
