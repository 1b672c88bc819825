"""Requeueing makes an event for every node that is gained, and no other, however nodes flap and are numbered."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise.engine.pod_requeueing import MOST_PAUSE_S, TRIES, PodGroup
from nodewise.observe import logs
from tests.unit.engine.test_pod_requeueing import PERIOD_S, VICTIM, RequeueingCluster, pod
from tests.unit.kube import virtual_time

NODES = "abcd"
STEPS = st.lists(st.tuples(st.permutations(NODES), st.sets(st.sampled_from(NODES))), min_size=1, max_size=60)
"""By period, the order of the nodes in the index and those that pass."""


@pytest.fixture(autouse=True)
def _no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "emit", lambda *_, **__: None)


@given(STEPS)
def test_each_gain_of_a_node_makes_an_event_within_the_longest_pause_and_nothing_else_does(
    steps: list[tuple[list[str], set[str]]],
) -> None:
    cluster = RequeueingCluster()
    cluster.put(pod("web", "shop", VICTIM))
    order, passing = steps[-1]
    rest = [(order, passing)] * (int(MOST_PAUSE_S / PERIOD_S) + TRIES)

    async def main() -> None:
        known, repeats, pauses = set[str](), TRIES, PodGroup("shop", VICTIM)
        async with cluster.watching():
            for names, passing in steps + rest:
                cluster.name_nodes(*names)
                cluster.agent.passing = {VICTIM: passing}
                before, now_s = cluster.events(), asyncio.get_running_loop().time()
                await cluster.passes(1)
                known &= passing
                if cluster.events() > before:
                    is_gain = not passing <= known and now_s >= pauses.paused_until_s
                    assert is_gain or (passing and repeats < TRIES)
                    repeats += 1
                    if is_gain:
                        known, repeats = set(passing), 1
                        pauses.begin_pause(now_s)
                await asyncio.sleep(PERIOD_S)
        assert known == passing

    virtual_time.run(main())
