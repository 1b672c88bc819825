"""`docs/differences.md` and the tables are consistent, and the tables are complete.

The numbers are those of the observations of CMK. They have gaps.
"""

import re
from pathlib import Path

from tests.conformance import differences_page

from cpu_tests.conformance import case_table_rows
from cpu_tests.conformance.case_table_rows import (
    ArgumentsRow,
    ClaimRow,
    ClusterRow,
    CmkRow,
    ContainerRow,
    DiscoverRow,
    InitRow,
    LineRow,
    ListRow,
    MaskRow,
    MovedRow,
    MoveRow,
    NameRow,
    PoolsRow,
    PublishRow,
    StoryRow,
    SweepRow,
    VersionRow,
    WebhookHttpRow,
    WebhookRow,
    WordsRow,
)

HEADING = "CPU Manager for Kubernetes"
NUMBERS = {
    *range(3, 8),
    *range(9, 14),
    *(18, 19, 20, 22),
    *range(24, 29),
    *range(30, 34),
    *(36, 38, 39),
    *range(41, 56),
    *range(57, 68),
    *range(70, 83),
    *range(84, 88),
    *range(89, 94),
    *range(96, 105),
    *range(106, 126),
    *range(127, 132),
    *range(134, 144),
    145,
    *range(148, 171),
    *range(172, 178),
    *range(179, 184),
    *range(185, 191),
    *range(193, 201),
    202,
    *range(204, 215),
    *range(216, 226),
}
ELSEWHERE = {28, 30, 96, 98, 100, 101, 104, 134, 143, 145, 225}
"""Cases without a table; tests have them in their names."""
FAULTS = {"B": 76}
"""The number of faults by letter."""
FIXED = (
    "B1 (100, 101), B2 (107, 127, 128), B3 (109, 110, 111), B4 (129), B5 (104, 139, 149, 204), B6 (143, "
    "145), B7 (206, 207), B8 (125), B9 (122, 125), B10 (97), B11 (211), B12 (217, 220), B14 (10), B15 "
    "(138), B16 (168), B17 (130), B19, B21 (89), B23 (212, 214), B26 (121, 122), B27 (70, 74, 75, 77), "
    "B28 (26, 27), B30 (66, 161), B34, B35 (103), B36 (102), B37, B38, B39 (141), B40 (106), B41 (99), "
    "B42 (99), B43, B44, B46 (162, 163), B47 (164), B48 (167), B49 (166), B50, B51, B52 (219, 221), B54 "
    "(150, 223), B55, B56, B57 (157), B59 (179, 180, 181, 182, 183), B60 (185), B61 (168, 176, 177), B62 "
    "(168), B64 (168), B65, B66 (168), B67, B68, B69 (127), B71 (225), B72 (155, 157), B75, B76"
)
"""Faults that do not stand on the page, with the rows that describe them."""
SHOWN = {
    18: "conformance/test_isolate_errors_and_signals.py::test_a_cpuset_that_forbids_the_pool_is_an_error",
    22: "conformance/test_isolate_errors_and_signals.py::test_isolate_waits_for_a_free_list_and_ends_at_a_signal",
    34: "conformance/test_isolate_errors_and_signals.py::test_a_list_that_names_a_cpu_that_is_offline_is_an_error",
    38: "unit/store/test_configmap.py::test_keys_and_annotations_of_others_are_kept",
    43: "conformance/test_node_commands.py::test_a_full_disk_frees_no_cpu_list",
    45: "unit/cli/test_cpu_common_options.py::test_is_never_guessed",
    50: "unit/webhook/test_manifests.py::test_options_are_applied",
    51: "tests/cluster/test_cpu_node_setup_and_removal.py::test_api_server_knows_all_fields_of_created_objects",
    55: "tests/cluster/test_cpu_node_agent.py::test_a_kubelet_that_takes_the_cores_back_is_put_right",
    56: "unit/cluster/test_node_setup_objects.py::test_commands_are_plain_words_or_the_options_are_refused",
    65: "conformance/test_webhook.py::test_silent_clients_delay_no_others",
    75: "unit/webhook/test_manifests.py::"
    "test_the_webhook_has_no_token_and_no_rights_and_reads_its_files_beside_the_systems",
    76: "tests/unit/test_docs_match_code.py::",
}
"""The tests of faults without a row, if they are not in `test_known_cmk_bugs.py`."""
HERE = Path(__file__).parent
TESTS = [*HERE.glob("test_*.py"), HERE.parents[3] / "tests" / "node" / "test_program_in_minimal_images.py"]
TABLES: dict[str, type[CmkRow]] = {
    "arguments": ArgumentsRow,
    "lists": ListRow,
    "masks": MaskRow,
    "lines": LineRow,
    "pools": PoolsRow,
    "isolate": ClaimRow,
    "words": WordsRow,
    "isolate_process": StoryRow,
    "reconcile": SweepRow,
    "reconfigure": MoveRow,
    "moving": MovedRow,
    "versions": VersionRow,
    "names": NameRow,
    "init": InitRow,
    "discover": DiscoverRow,
    "publish": PublishRow,
    "container": ContainerRow,
    "cluster": ClusterRow,
    "webhook": WebhookRow,
    "webhook_http": WebhookHttpRow,
    "webhook_process": StoryRow,
}


def tables() -> list[CmkRow]:
    return [row for table, kind in TABLES.items() for row in case_table_rows.read(table, kind)]


def test_every_table_is_asked() -> None:
    assert {path.stem for path in HERE.glob("*.yaml")} == TABLES.keys()


def test_every_row_is_in_the_tables() -> None:
    assert {row.number for row in tables()} == NUMBERS - ELSEWHERE


def test_every_other_row_has_a_test_of_its_number() -> None:
    sources = "".join(path.read_text() for path in TESTS)
    assert {int(number) for number in re.findall(r"def test_(\d+)_", sources)} == ELSEWHERE


def test_every_difference_is_on_the_page_once() -> None:
    assert sorted(differences_page.rows(HEADING)) == sorted({row.number for row in tables() if row.differs})


def test_page_names_outcome_and_rows_of_every_fault() -> None:
    differences_page.check_faults(HEADING, FAULTS, NUMBERS, FIXED)


def test_every_fault_has_a_test_or_a_row() -> None:
    silent = {
        fault.number
        for fault in differences_page.known_faults(HEADING, FIXED)
        if not fault.rows and not fault.text.startswith("unchanged")
    }
    here = {
        int(number)
        for number in re.findall(r"def test_b(\d+)_", (HERE / "test_known_cmk_bugs.py").read_text())
    }
    assert silent <= here | SHOWN.keys()
    for place in SHOWN.values():
        path, _, name = place.partition("::")
        folder = HERE.parents[3] if path.startswith("tests/") else HERE.parent
        assert f"def {name}" in (folder / path).read_text() or not name, place
