"""Patches of nodes, in one burst."""

import contextlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from nodewise.annotator.planning import NodePlan
from nodewise.errors import BadInput, NodewiseError, Unavailable
from nodewise.kube.api import Api, NotFound
from nodewise.kube.bulk import every
from nodewise.kube.resources import NODES

FIELD_MANAGER: Final = "nodewise-annotator"
QPS: Final = 1000.0
BURST: Final = 10_000
"""Of the API client that writes: a burst is bounded by how many calls are under way at once (`kube.bulk`), for one that
is spread over minutes has waiting pods tried again all the time.
"""


class Written(NamedTuple):
    """What came of a burst, in nodes."""

    done: int = 0
    failed: int = 0
    gone: int = 0
    """Deleted, or made anew, since they were read."""
    error: str = ""
    """The first one."""


async def write(api: Api, plans: Iterable[NodePlan]) -> Written:
    """Write what the plans say, a few nodes at a time; one that fails stops no other."""
    due = [plan for plan in plans if plan.patch]
    outcomes: list[str] = []
    errors: list[str] = []

    async def one(plan: NodePlan) -> None:
        try:
            outcomes.append(await _written(api, plan))
        except NodewiseError as error:
            errors.append(f"node {plan.name}: {error}")
            if isinstance(error, Unavailable):
                raise  # so that a server that answers nobody is left alone

    with contextlib.suppress(Unavailable):
        await every(one(plan) for plan in due)
    done, gone = outcomes.count("done"), outcomes.count("gone")
    return Written(done, len(due) - done - gone, gone, errors[0] if errors else "")


async def _written(api: Api, plan: NodePlan) -> str:
    # with the uid, so that nothing is said of another node of that name
    body = {"metadata": {"uid": plan.uid, "annotations": plan.patch}}
    try:
        await api.patch(NODES.path(name=plan.name), body, "merge", {"fieldManager": FIELD_MANAGER})
    except NotFound:
        return "gone"
    except BadInput as error:
        if any(problem.field == "metadata.uid" for problem in error.problems):
            return "gone"  # this node is another one; the API server calls the uid immutable
        raise
    return "done"
