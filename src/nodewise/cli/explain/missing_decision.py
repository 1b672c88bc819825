"""Diagnosis of a missing decision: possible reasons, the most likely one first."""

from collections.abc import Iterator, Sequence
from typing import Final

from nodewise import clock
from nodewise.agents.telemetry.agent import POLICY_LABEL, SCHEDULING_RESOURCE
from nodewise.cli.explain.pods import DEFAULT_SCHEDULER, Seen, State
from nodewise.cli.explain.replicas import Answer

_MANAGED: Final = "telemetry/scheduling or gpu.intel.com/i915"


def reasons(seen: Seen, answers: Sequence[Answer]) -> list[str]:
    """Each in one sentence."""
    causes = [*(_of_state(seen.state) if seen.state else _of_unseen(seen)), *_of_rings(seen.state, answers)]
    return causes or ["kube-scheduler has not asked about it yet"]


def of_labels(state: State) -> str:
    """Why the pod's policy has no effect, which holds beside a decision as well; empty if it may have one."""
    if state.misspelt:
        return (
            f"it has the label {state.misspelt} and no label {POLICY_LABEL}, so no TASPolicy applies: rename the label "
            "in the pod's template"
        )
    if state.policy is not None and SCHEDULING_RESOURCE not in state.asks:
        return (
            f"it names TASPolicy {state.policy} and does not request {SCHEDULING_RESOURCE}, so kube-scheduler does not "
            f"ask nodewise about it, unless its entry has no managedResources: add the limit {SCHEDULING_RESOURCE}: 1 "
            "to a container of the pod's template"
        )
    return ""


def _of_unseen(seen: Seen) -> Iterator[str]:
    if seen.gone:
        yield "there is no such pod now"
        return
    yield (
        f"kube-scheduler asks only about pods that request a resource of its entry's managedResources, such as "
        f"{_MANAGED}; name a --kubeconfig and this looks at the pod"
    )


def _of_state(state: State) -> Iterator[str]:
    if state.gates:
        yield f"it has scheduling gates ({', '.join(state.gates)}): nobody tries to place it while they are there"
    mislabelled = of_labels(state)
    if mislabelled:
        yield mislabelled
    elif not state.asks:
        yield (
            "it requests no extended resource: kube-scheduler asks only about pods that request a resource of its "
            f"entry's managedResources, such as {_MANAGED}"
        )
    if state.scheduler != DEFAULT_SCHEDULER:
        yield f"its scheduler is {state.scheduler}: is nodewise an extender in that one's configuration?"
    if state.message and not state.gates:
        yield (
            f"kube-scheduler says: {state.message}; it asks extenders only about nodes that its own rules leave"
        )
    elif not state.node and not state.gates:
        yield "no scheduler has said anything about it yet"


def _of_rings(state: State | None, answers: Sequence[Answer]) -> Iterator[str]:
    """Whether the decisions may have been there once."""
    pages = [response.page for response in answers if response.page]
    if pages and not any(page.kept for page in pages):
        yield (
            "nodewise has decided nothing at all since it started: is it in the extenders of kube-scheduler's "
            "configuration?"
        )
    created = clock.parse_rfc3339(state.created) if state and state.created else None
    for answer in answers:
        yield from _of_ring(answer, created)


def _of_ring(answer: Answer, created: float | None) -> Iterator[str]:
    """Whether the decision about a pod of this age may have been in the replica's ring."""
    url, page = answer.replica.url, answer.page
    if page is None:
        yield f"{url} did not answer: what it decided is not known"
    elif page.kept_since and (created is None or clock.parse_rfc3339(page.kept_since) > created):
        yield (
            f"{url} remembers {page.kept:,} decisions, the oldest of {page.kept_since}: older ones made room "
            "(--decisions-bytes) or were lost when it started again"
        )
