"""A PlacementPolicy with an extender: the modes, a canary by percent, and the step-back from a bad edit.

`test_policy_lifecycle` has the same for native mode.
"""

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

from tests.cluster import extender_process, kubernetes_objects
from tests.cluster.api_client import MERGE, Object, path_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

WEB: Final = {"app": "web"}
WORKLOADS: Final = [f"web-{number}" for number in range(40)]
PERCENT: Final = 50


class Trial:
    """A policy that avoids node `a`, and an extender."""

    def __init__(self, sandbox: Sandbox, served: ExtenderProcess, spec: Mapping[str, Any]) -> None:
        self.sandbox, self.served = sandbox, served
        self.path = path_of(sandbox.put(policy({"podSelector": {"matchLabels": WEB}, **spec}, name="cool")))

    def edit(self, **spec: Any) -> None:
        self.sandbox.api.patch(self.path, {"spec": spec}, MERGE)

    def status(self) -> Object:
        status: Object = self.sandbox.api.get(self.path).get("status", {})
        return status

    def until(self, **expected: Any) -> None:
        def has_them() -> bool | None:
            status = self.status()
            return all(status.get(name) == value for name, value in expected.items()) or None

        wait(f"the status has {expected}", has_them, show=self.status)

    def rejected(self) -> set[str]:
        """The workloads whose pods node `a` does not take."""
        namespace = self.sandbox.namespace
        return {name for name in WORKLOADS if self.served.rejects(namespace, "a", labels=WEB, pod=name)}

    def canary(self) -> set[str] | None:
        """The same twice in a row, so that an edit applied to all of them; None otherwise."""
        rejected = self.rejected()
        return rejected if rejected and rejected == self.rejected() else None

    def events(self) -> list[str]:
        """The reasons of the events of the policy."""
        about = "involvedObject.kind=PlacementPolicy,involvedObject.name=cool"
        path = f"/api/v1/namespaces/{self.sandbox.namespace}/events"
        return [event["reason"] for event in self.sandbox.api.get(path, fieldSelector=about)["items"]]


def test_a_policy_goes_from_shadow_to_enforce_and_steps_back_from_a_bad_edit(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    extender_process.define(plane.api)
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    metrics.set("heat", {"a": 90, "b": 20})
    spec = {
        "avoid": [{"metric": "heat", "above": 80}],
        "mode": "Shadow",
        "canary": {"percent": PERCENT},
        "guard": {"maxRejectedShare": "0.5", "within": "3s"},
    }
    with extender_process.extender(plane, tmp_path) as served:
        trial = Trial(sandbox, served, spec)
        served.wait_fetched("heat")
        trial.until(mode="Shadow", rejectedNodes=1)
        assert trial.rejected() == set()
        trial.edit(mode="Canary")
        canary = wait("some workloads are in the canary", trial.canary, show=trial.status)
        assert len(canary) < len(WORKLOADS)
        trial.edit(mode="Enforce")
        wait("all are affected", lambda: trial.rejected() == set(WORKLOADS) or None, show=trial.status)
        with plane.start_scheduler({"extenders": [served.entry()]}):
            # the harm: an edit that rejects every node
            trial.edit(avoid=[{"metric": "heat", "above": 10}])
            is_harmed = partial(served.rejects, sandbox.namespace, "b", labels=WEB)
            # on a busy machine, it may have stepped back before the first call
            wait(
                "no node is left", lambda: is_harmed() or trial.status().get("steppedBack"), show=trial.status
            )
            sandbox.pods(kubernetes_objects.pod("waits", labels=WEB, limits=extender_process.LIMITS))
            sandbox.expect_bound("waits")
        trial.until(mode="Shadow")
        message = trial.status()["steppedBack"]["message"]
        assert message.startswith("it rejected 2 of 2 nodes, more than the share 0.5 for ")
        wait("an event reports it", lambda: "GuardExceeded" in trial.events() or None, show=trial.events)
        assert trial.rejected() == set()
        # a correction ends it
        trial.edit(avoid=[{"metric": "heat", "above": 80}])
        wait("it is enforced again", lambda: trial.rejected() == set(WORKLOADS) or None, show=trial.status)
        trial.until(mode="Enforce", rejectedNodes=1)


def test_every_call_is_answered_while_the_mode_changes(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """Node `b`, which no mode rejects, is never rejected; node `a` in the end as the last mode says."""
    extender_process.define(plane.api)
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    metrics.set("heat", {"a": 90, "b": 20})
    spec = {"avoid": [{"metric": "heat", "above": 80}], "canary": {"percent": PERCENT}}
    with extender_process.extender(plane, tmp_path) as served, ThreadPoolExecutor(2) as pool:
        trial = Trial(sandbox, served, spec)
        served.wait_fetched("heat")
        wait("it is enforced", lambda: trial.rejected() == set(WORKLOADS) or None, show=trial.status)
        ended = Event()

        def call(node: str) -> list[bool]:
            """Whether each call rejected the node. Raises an error for a call without a valid response."""
            pods = itertools.cycle(WORKLOADS)
            return [
                served.rejects(sandbox.namespace, node, labels=WEB, pod=next(pods))
                for _ in iter(ended.is_set, True)
            ]

        calls = [pool.submit(call, node) for node in "ab"]
        try:
            for mode in ("Shadow", "Enforce", "Canary", "Shadow", "Canary", "Enforce") * 2:
                trial.edit(mode=mode)
                trial.until(mode=mode)
        finally:
            ended.set()
        rejected_a, rejected_b = (called.result() for called in calls)
        assert {*rejected_a} == {True, False}
        assert {*rejected_b} == {False}
        wait("it is enforced again", lambda: trial.rejected() == set(WORKLOADS) or None, show=trial.status)
