"""Laws of the CPU manager's core."""

from hypothesis import given
from hypothesis import strategies as st

from nodewise.cpu import cpulist

CPUS = st.sets(st.integers(0, 300), max_size=80)


@given(CPUS)
def test_a_list_of_ranges_reads_as_what_it_was_written_from(cpus: set[int]) -> None:
    assert cpulist.parse_list(cpulist.format_ranges(cpus)) == tuple(sorted(cpus))


@given(st.lists(st.integers(0, 300), unique=True))
def test_a_list_keeps_its_order(cpus: list[int]) -> None:
    assert list(cpulist.parse_list(cpulist.format_list(cpus))) == cpus


@given(CPUS)
def test_a_mask_reads_as_what_it_was_written_from(cpus: set[int]) -> None:
    assert cpulist.parse_mask(cpulist.format_mask(cpus)) == cpus
    assert cpulist.parse_mask(cpulist.format_kernel_mask(cpus)) == cpus
