"""Writes the patches of nodes in one burst."""

import contextlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from nodewise.base.errors import BadInput, NodewiseError, Unavailable
from nodewise.kube.api_server_interface import Api, NotFound, run_api_calls
from nodewise.kube.resource_kinds import NODES
from nodewise_scorers.annotator.patch_planning import NodePlan

FIELD_MANAGER: Final = "nodewise-annotator"
QPS: Final = 1000.0
BURST: Final = 10_000
"""Rate limit of the API client that writes. The number of concurrent calls (`kube.concurrent_calls`) limits a
burst instead: one that is spread over minutes makes kube-scheduler retry unschedulable pods all the time.
"""


class WriteResult(NamedTuple):
    """Numbers of nodes of a burst."""

    done: int = 0
    failed: int = 0
    gone: int = 0
    """Deleted or recreated since they were read."""
    error: str = ""
    """The first one."""


async def write_patches(api: Api, plans: Iterable[NodePlan]) -> WriteResult:
    """Write the patches, a few nodes at a time; a failure does not stop the others."""
    due = [plan for plan in plans if plan.patch]
    outcomes: list[str] = []
    errors: list[str] = []

    async def write(plan: NodePlan) -> None:
        try:
            outcomes.append(await _write_patch(api, plan))
        except NodewiseError as error:
            errors.append(f"node {plan.name}: {error}")
            if isinstance(error, Unavailable):
                raise  # stops the burst: an unavailable API server gets no further requests

    with contextlib.suppress(Unavailable):
        await run_api_calls(write(plan) for plan in due)
    done, gone = outcomes.count("done"), outcomes.count("gone")
    return WriteResult(done, len(due) - done - gone, gone, errors[0] if errors else "")


async def _write_patch(api: Api, plan: NodePlan) -> str:
    # with the uid, so that a new node of the same name is not written
    body = {"metadata": {"uid": plan.uid, "annotations": plan.patch}}
    try:
        await api.patch(NODES.path(name=plan.name), body, "merge", {"fieldManager": FIELD_MANAGER})
    except NotFound:
        return "gone"
    except BadInput as error:
        if any(problem.field == "metadata.uid" for problem in error.problems):
            return "gone"  # a new node: the API server rejects a change of the uid as immutable
        raise
    return "done"
