"""Formats of CPU sets, of the kernel and of CMK."""

import pytest

from nodewise.base.errors import BadInput
from nodewise_cpu import cpu_set_formats


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ()),
        ("\n", ()),
        ("0", (0,)),
        ("0-2,8-10\n", (0, 1, 2, 8, 9, 10)),
        ("2,6,3,7", (2, 6, 3, 7)),
        ("3,1,3", (3, 1)),
        (" 1 , 2 ", (1, 2)),
        ("0-62:2/16", (0, 1, 16, 17, 32, 33, 48, 49)),
        ("1-8:1/2", (1, 3, 5, 7)),
        ("007", (7,)),
        ("5-5", (5,)),
    ],
)
def test_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert cpu_set_formats.parse_cpu_numbers(text) == cpus


@pytest.mark.parametrize(
    ("text", "cpus"), [("all", (0, 1, 2, 3)), ("2-N", (2, 3)), ("N", (3,)), ("0,N", (0, 3))]
)
def test_the_last_cpu_has_a_name_where_it_is_known(text: str, cpus: tuple[int, ...]) -> None:
    assert cpu_set_formats.parse_cpu_numbers(text, last=3) == cpus
    with pytest.raises(BadInput):
        cpu_set_formats.parse_cpu_numbers(text)


@pytest.mark.parametrize(
    ("text", "piece", "wanted"),
    [
        (",", "''", "numbers and ranges"),
        ("0,", "''", "numbers and ranges"),
        ("-", "'-'", "numbers and ranges"),
        ("1-", "'1-'", "numbers and ranges"),
        ("-3", "'-3'", "numbers and ranges"),
        ("1-2-3", "'1-2-3'", "numbers and ranges"),
        ("0x3", "'0x3'", "numbers and ranges"),
        ("1_0", "'1_0'", "numbers and ranges"),
        ("٣", "'٣'", "numbers and ranges"),
        ("3-1", "'3-1'", "not above"),
        ("0-8:3/2", "'0-8:3/2'", "stride"),
        ("0-8:0/2", "'0-8:0/2'", "stride"),
        ("65536", "'65536'", "up to 65535"),
        ("0-99999999999999999999", "'0-99999999999999999999'", "up to 65535"),
        ("9" * 5000, "'999", "up to 65535"),
    ],
)
def test_an_invalid_list_is_named(text: str, piece: str, wanted: str) -> None:
    with pytest.raises(BadInput) as caught:
        cpu_set_formats.parse_cpu_numbers(text, "--excl-non-isolcpus")
    problem = caught.value.problems[0]
    assert problem.field == "--excl-non-isolcpus"
    assert problem.found.startswith(piece)
    assert wanted in problem.expected


def test_all_errors_are_reported_together() -> None:
    with pytest.raises(BadInput) as caught:
        cpu_set_formats.parse_cpu_numbers("1,a,2-1,3")
    assert [problem.found for problem in caught.value.problems] == ["'a'", "'2-1'"]


def test_lists_are_written_short_or_in_order() -> None:
    assert cpu_set_formats.format_cpu_ranges([10, 8, 9, 0, 1, 2, 5]) == "0-2,5,8-10"
    assert cpu_set_formats.format_cpu_ranges([]) == ""
    assert cpu_set_formats.format_cpu_list_without_ranges([2, 6, 3, 7]) == "2,6,3,7"


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", set()),
        ("01", {0}),
        ("0101\n", {0, 8}),
        ("0000,00000001,00000001", {0, 32}),
        ("00000000,0000ffff", set(range(16))),
        ("10000000000000000", {64}),
        ("0x3", {0, 1}),
    ],
)
def test_masks(text: str, cpus: set[int]) -> None:
    assert cpu_set_formats.parse_cpu_mask(text) == cpus


@pytest.mark.parametrize("text", ["", "g", "1 2", "-1", ",", "f" * 100_000])
def test_an_invalid_mask_is_named(text: str) -> None:
    with pytest.raises(BadInput, match="cpu0/topology/thread_siblings"):
        cpu_set_formats.parse_cpu_mask(text, "cpu0/topology/thread_siblings")


def test_masks_are_written_in_one_piece() -> None:
    assert cpu_set_formats.format_cpu_mask([0, 11]) == "801"
    assert cpu_set_formats.format_cpu_mask([64]) == "10000000000000000"


@pytest.mark.parametrize(
    ("line", "cpus"),
    [
        ("quiet root=/dev/sda1", set()),
        ("isolcpus=2-3 quiet", {2, 3}),
        ("isolcpus=nohz,domain,managed_irq,2-4", {2, 3, 4}),
        ("isolcpus=1,5 isolcpus=2,6", {1, 5}),
        ("isolcpus=managed_irq,1-3 isolcpus=4", {4}),
        ("isolcpus= isolcpus=6-7", {6, 7}),
        ("isolcpus=2-N", {2, 3, 4, 5, 6, 7}),
        ("isolcpus=N", set()),
        ("isolcpus=", set()),
        ("isolcpus", set()),
        ("isolcpus=all", set()),
        ("isolcpus=all,5", {5}),
        ("isolcpus=domain", set()),
        ("isolcpus=managed_irq,2-3", set()),
        ("isolcpus=nohz,managed_irq,4", set()),
        ("isolcpus=managed_irq,domain,4", {4}),
        ("isolcpus=some_flag,4-5", {4, 5}),
        ("isolcpus=some_flag,nohz,4-5", set()),
        ('isolcpus="1-2" quiet', {1, 2}),
        ("quiet -- isolcpus=1-2", set()),
        ("nohz_full=1-2 xisolcpus=3", set()),
    ],
)
def test_isolated_cpus_of_a_command_line(line: str, cpus: set[int]) -> None:
    assert cpu_set_formats.parse_isolcpus(line, last=7) == (cpus, ())


def test_an_invalid_isolcpus_field_is_reported() -> None:
    cpus, problems = cpu_set_formats.parse_isolcpus(
        "isolcpus=1,2- isolcpus=3,nohz isolcpus=flag2,4 isolcpus=5"
    )
    assert cpus == {5}
    assert [problem.found for problem in problems] == ["'2-'", "'nohz'", "'flag2'"]
