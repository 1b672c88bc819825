"""The share of mutants that the suites of the shipped policies detect.

    python -m bench.policy_mutants [--no-write]

It follows from the policies and suites alone, so a test compares the published figure with the real one
(`tests/unit/test_policy_suites.py`).
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests import shipped_policy_suites

from bench import report
from bench.results import MUTANTS, MachineLoad, Measurement


def figures(mutants: Mapping[str, bool]) -> dict[str, float]:
    """The share of mutants that a test detects, from whether each is detected."""
    return {"policy_mutants_detected_pct": round(100 * sum(mutants.values()) / len(mutants), 1)}


def measure() -> Measurement:
    """Run the tests of all suites with every mutant."""
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as folder:
        return Measurement(figures(shipped_policy_suites.run(Path(folder)).detected_mutants()), {}, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the figures only")
    options = parser.parse_args()
    machine_load = MachineLoad()
    measured = measure()
    print(json.dumps(measured.figures))
    if options.write:
        report.update(MUTANTS, measured, machine_load.others_share())


if __name__ == "__main__":
    main()
