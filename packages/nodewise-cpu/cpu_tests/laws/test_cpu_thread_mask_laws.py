"""Properties of every thread when the cpuset of its container changes."""

from hypothesis import given
from hypothesis import strategies as st

from nodewise_cpu.cpusets.enforcer import affinity_after_cpuset_change

CPUS = st.frozensets(st.integers(0, 7), min_size=1)


@given(mask=CPUS, old=CPUS, new=CPUS)
def test_a_thread_stays_within_the_cpuset_and_is_never_left_without_a_cpu(
    mask: frozenset[int], old: frozenset[int], new: frozenset[int]
) -> None:
    after = affinity_after_cpuset_change(mask, old, new, None)
    assert after
    assert after <= new
    # an unchanged cpuset leaves the affinity unchanged
    assert affinity_after_cpuset_change(after, new, new, None) == after


@given(mask=CPUS, old=CPUS, new=CPUS, data=st.data())
def test_thread_keeps_its_choice_among_the_cpus_of_its_task(
    mask: frozenset[int], old: frozenset[int], new: frozenset[int], data: st.DataObject
) -> None:
    own = data.draw(st.frozensets(st.sampled_from(sorted(new)), min_size=1))
    after = affinity_after_cpuset_change(mask, old, new, own)
    assert after
    assert after <= own
    assert after == (mask & own or own)
    assert affinity_after_cpuset_change(after, new, new, own) == after
