"""The feature file for Node Feature Discovery."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodewise.base.errors import Refused
from nodewise_cpu.agent import agent
from nodewise_cpu.allocation_store import StoredAllocations
from nodewise_cpu.node import machine_features
from nodewise_cpu.node.task_garbage_collection import CollectionRound
from nodewise_cpu.pool_allocations import Allocations
from nodewise_cpu.topology import CPUS

WANTED = "feature.node.kubernetes.io/cpu-power.sst_cp.enabled=true\n"


def test_different_power_classes_are_reported(tmp_path: Path) -> None:
    assert machine_features.write_feature_file(tmp_path, ["power", "performance", "power"])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"nodewise-cpu": WANTED}


def test_an_unchanged_feature_file_is_not_written(tmp_path: Path) -> None:
    machine_features.write_feature_file(tmp_path, ["power", "performance"])
    before = (tmp_path / "nodewise-cpu").stat()
    assert not machine_features.write_feature_file(tmp_path, ["performance", "power"])
    assert (tmp_path / "nodewise-cpu").stat().st_ino == before.st_ino


@pytest.mark.parametrize("preferences", [[], ["power", "power"]])
def test_a_feature_file_is_removed(preferences: list[str], tmp_path: Path) -> None:
    machine_features.write_feature_file(tmp_path, ["power", "performance"])
    assert machine_features.write_feature_file(tmp_path, preferences)
    assert not machine_features.write_feature_file(tmp_path, preferences)
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_the_older_script_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text("power.sst_cp.enabled\nother\n")
    machine_features.write_feature_file(tmp_path, ["power", "performance"])
    machine_features.write_feature_file(tmp_path, ["power"])
    assert (tmp_path / "cpu").read_text() == "power.sst_cp.enabled\nother\n"


def test_missing_folder_writes_nothing(tmp_path: Path) -> None:
    assert not machine_features.write_feature_file(tmp_path / "none", ["power", "performance"])
    assert list(tmp_path.iterdir()) == []


def test_the_agent_looks_at_all_cpus(tmp_path: Path) -> None:
    for cpu, word in enumerate(["power", "performance"]):
        folder = tmp_path / CPUS / f"cpu{cpu}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "energy_performance_preference").write_text(f"{word}\n")
    (tmp_path / "features.d").mkdir()
    publisher = agent.FeaturePublisher(tmp_path / "features.d", tmp_path)
    done = CollectionRound((), (), (), {}, StoredAllocations(Allocations({}), "1"))
    publisher.publish(done)
    assert (tmp_path / "features.d" / "nodewise-cpu").read_text() == WANTED


def test_full_disk_keeps_previous_file(tmp_path: Path) -> None:
    """The test simulates a full disk by a process whose limit of file sizes is 0."""
    (tmp_path / "nodewise-cpu").write_text("old\n")
    program = (
        "import resource, signal; from pathlib import Path; from nodewise_cpu.node import machine_features\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        f"machine_features.write_feature_file(Path({str(tmp_path)!r}), ['power', 'performance'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert Refused.__name__ in done.stderr
    assert os.strerror(errno.EFBIG) in done.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"nodewise-cpu": "old\n"}
