"""`nodewise cpu topology` and `nodewise cpu plan`, run as a user runs them, on real and synthetic machines."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import chain
from pathlib import Path

import pytest
from tests import forked_commands

from cpu_tests.conformance import case_cpu_topologies as made_up
from cpu_tests.conformance import case_table_rows
from cpu_tests.conformance.case_table_rows import PoolsRow
from cpu_tests.conformance.node_commands import json_output
from cpu_tests.unit import recorded_machine_files
from nodewise_cpu import cpu_set_formats

NODEWISE = Path(sys.executable).parent / "nodewise"
PICTURES = Path(__file__).parents[4] / "docs" / "pictures"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked_commands.run([NODEWISE, "cpu", *map(str, arguments)])


def folder(texts: dict[str, str], at: Path) -> Path:
    for name, text in texts.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(text)
    return at


@pytest.mark.parametrize("name", recorded_machine_files.NAMES)
def test_real_machines(name: str, tmp_path: Path) -> None:
    root = recorded_machine_files.unpack(name, tmp_path)
    document = json_output("topology", "--sysfs", root, "-o", "json")
    machine = recorded_machine_files.machine(name)
    assert (document["sockets"], document["cores"]) == (len(machine.sockets), len(machine.cores))
    assert [cpu["cpu"] for cpu in document["cpus"]] == [cpu.cpu for cpu in machine.cpus]
    fields = {"cpu", "core", "socket", "numa", "online", "isolated", "siblings"}
    assert all(fields <= set(cpu) for cpu in document["cpus"])
    online = {cpu["cpu"] for cpu in document["cpus"] if cpu["online"]}
    for mode in ("packed", "spread"):
        counts = ("--num-exclusive-cores", len(machine.cores) // 2, "--num-shared-cores", 0)
        modes = (f"--exclusive-mode={mode}", f"--shared-mode={mode}")
        plan = json_output("plan", "--sysfs", root, *counts, *modes, "-o", "json")["pools"]
        lists = chain.from_iterable(lists for sockets in plan.values() for lists in sockets.values())
        cpus = list(chain.from_iterable(map(cpu_set_formats.parse_cpu_numbers, lists)))
        assert len(cpus) == len(set(cpus))
        assert set(cpus) == online


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in case_table_rows.read("pools", PoolsRow)
        if row.number in {41, 46, 57, 64, 66, 70, 79, 85, 87}
    ],
    ids=lambda row: row.id,
)
def test_cases(row: PoolsRow, tmp_path: Path) -> None:
    root = folder(made_up.texts(row.machine, row.isolated), tmp_path)
    modes = dict(zip(("--exclusive-mode", "--shared-mode"), row.modes.split("/"), strict=True))
    options: dict[str, object] = modes | {"--excl-non-isolcpus": row.listed}
    options |= {"--num-exclusive-cores": row.exclusive, "--num-shared-cores": row.shared}
    options |= {"--sst-bf": row.fast} if row.fast else {}
    if row.preferences:
        threads = 8
        cores = {name: cpu_set_formats.parse_cpu_numbers(text) for name, text in row.preferences.items()}
        lists = {
            name: cpu_set_formats.format_cpu_list_without_ranges([*ids, *(cpu + threads for cpu in ids)])
            for name, ids in cores.items()
        }
        options["--sst-cp"] = ";".join(f"{name}={text}" for name, text in lists.items())
    done = run("plan", "--sysfs", root, "-o", "json", *(f"{name}={value}" for name, value in options.items()))
    assert done.returncode == (1 if row.error else 0)
    errors = done.stderr.splitlines()
    if row.error:
        assert [part for part in row.error if part not in errors[0]] == []
        assert done.stdout == ""
        return
    plan = json.loads(done.stdout)["pools"]
    brief = {
        pool: {int(socket): " ".join(lists) for socket, lists in sockets.items() if lists}
        for pool, sockets in plan.items()
    }
    assert brief == row.pools
    assert len(errors) == len(row.warns)


def test_a_plain_list_for_core_power_names_the_first_of_two_classes(tmp_path: Path) -> None:
    root = folder(made_up.texts("T8", "1-4,9-12"), tmp_path)
    counts = ("--num-exclusive-cores=2", "--num-shared-cores=2", "-o", "json")
    plan = json_output("plan", "--sysfs", root, *counts, "--sst-cp", "1-4,9-12")["pools"]
    assert plan["exclusive"] == {"0": ["1,9", "2,10"]}
    assert plan["shared"] == {"0": ["3,11,4,12"]}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--num-exclusive-cores", "many"), 2, "--num-exclusive-cores"),
        (("--num-exclusive-cores", "-1"), 1, "number of exclusive cores: -1; expected 0 or more"),
        (("--sst-bf", "1-"), 2, "--sst-bf: '1-'"),
        (("--sst-bf", "2,99"), 2, "--sst-bf: CPUs 99; expected CPUs that are online: 0-15"),
        (("--sst-cp", "turbo=1"), 2, "--sst-cp: 'turbo=1'; expected CLASS=LIST"),
        (("--excl-non-isolcpus", "20"), 1, "--excl-non-isolcpus: cores that are not on this machine: 20"),
    ],
)
def test_an_impossible_plan_names_the_option(
    options: tuple[str, str], code: int, message: str, tmp_path: Path
) -> None:
    done = run("plan", "--sysfs", folder(made_up.texts("T8"), tmp_path), *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


def test_a_folder_without_a_machine_is_an_error(tmp_path: Path) -> None:
    done = run("topology", "--sysfs", tmp_path)
    assert done.returncode == 1
    assert "no CPU that is online; expected the folders `sys` and `proc` of a machine" in done.stderr


def test_the_older_programs_variable_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMK_DEV_LSCPU_SYSFS", str(folder(made_up.texts("SP"), tmp_path)))
    done = run("topology", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cores"] == 6


def test_forms_for_people(tmp_path: Path) -> None:
    root = folder(made_up.texts("Ddoc"), tmp_path)
    table = run("topology", "--sysfs", root).stdout.splitlines()
    assert table[0].split() == ["CPU", "CORE", "SOCKET", "NUMA", "ONLINE", "ISOLATED", "SIBLINGS"]
    assert table[9].split() == ["8", "4", "1", "-", "yes", "no", "8,12"]
    counts = ("--num-exclusive-cores=3", "--num-shared-cores=3")
    table = run("plan", "--sysfs", root, *counts).stdout.splitlines()
    assert table[1].split() == ["exclusive", "0", "6", "0,4", "1,5", "2,6"]
    drawn = run("plan", "--sysfs", root, *counts, "-o", "svg").stdout
    assert ET.fromstring(drawn).tag.endswith("svg")


def test_picture_in_docs_equals_output(tmp_path: Path) -> None:
    root = recorded_machine_files.unpack("64amd64-4s2n4ca2co", tmp_path)
    counts = ("--num-exclusive-cores=12", "--num-shared-cores=4")
    modes = ("--exclusive-mode=spread", "--shared-mode=spread")
    drawn = run("plan", "--sysfs", root, *counts, *modes, "-o", "svg")
    assert drawn.stdout == (PICTURES / "cpu-plan.svg").read_text()
