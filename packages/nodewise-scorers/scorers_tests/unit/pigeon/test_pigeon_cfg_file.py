"""pigeon.cfg, and its contradictions to settings."""

from pathlib import Path
from typing import Any

import pytest

from nodewise.base.errors import BadSettings
from nodewise_scorers import pigeon
from nodewise_scorers.pigeon import options as pigeon_cfg_file
from nodewise_scorers.pigeon.options import PigeonConfig, PigeonOptions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def aim(folder: Path, text: str | bytes | None, **options: Any) -> PigeonConfig:
    if text is not None:
        (folder / "pigeon.cfg").write_bytes(text if isinstance(text, bytes) else text.encode())
    return pigeon_cfg_file.load_config(PigeonOptions(**options))


@pytest.mark.parametrize(
    ("text", "objective", "prime"),
    [
        pytest.param(None, "A_BINPACK", 0, id="there is no file"),
        pytest.param("", "A_BINPACK", 0, id="an empty file"),
        pytest.param(
            "policyObjective=LOAD_BALANCE\npolicyResourceIndex=1\n", "LOAD_BALANCE", 1, id="both keys"
        ),
        pytest.param("# policyObjective=LOAD_BALANCE\n\n", "A_BINPACK", 0, id="comments and empty lines"),
        pytest.param(
            "policyObjective=CONSOLIDATE # why\n", "CONSOLIDATE", 0, id="a comment behind the value"
        ),
        pytest.param(
            " policyObjective = CONSOLIDATE \t\r\n", "CONSOLIDATE", 0, id="blanks and a carriage return"
        ),
        pytest.param(
            "policyObjective=LOAD_BALANCE\npolicyObjective=CONSOLIDATE",
            "CONSOLIDATE",
            0,
            id="the last one counts",
        ),
        pytest.param(
            b"\xef\xbb\xbfpolicyObjective=CONSOLIDATE", "CONSOLIDATE", 0, id="a mark of the byte order"
        ),
    ],
)
def test_files_set_objective_and_resource(
    folder: Path, text: str | bytes | None, objective: str, prime: int
) -> None:
    assert aim(folder, text) == PigeonConfig(objective, prime, 2)


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        pytest.param(
            "\npolicyObjective=BINPACK",
            {},
            "pigeon.cfg line 2: policyObjective: 'BINPACK'; expected one of A_BINPACK, LOAD_BALANCE, CONSOLIDATE",
            id="no objective",
        ),
        pytest.param("policyObjective", {}, "line 1: policyObjective: ''; expected one of", id="no value"),
        pytest.param("policyObjective=consolidate", {}, "'consolidate'; expected one of", id="small letters"),
        pytest.param(
            "policyResourceIndex=2",
            {},
            "line 1: policyResourceIndex: '2'; expected a whole number from 0 to 1, as 2 resources count",
            id="an index beyond the resources",
        ),
        pytest.param("policyResourceIndex=-1", {}, "'-1'; expected a whole number", id="an index below 0"),
        pytest.param(
            "policyResourceIndex=1x", {}, "'1x'; expected a whole number", id="an index that is no number"
        ),
        pytest.param(
            "policyResourceIndex=" + "9" * 9999, {}, "expected a whole number", id="an index without end"
        ),
        pytest.param(
            "policyObjective=CONSOLIDATE",
            {"policy_objective": "LOAD_BALANCE"},
            "CONSOLIDATE, but --policy-objective LOAD_BALANCE; expected the same in both, or one of the two alone",
            id="a contradiction about the objective",
        ),
        pytest.param(
            "policyResourceIndex=0",
            {"policy_resource_index": 1},
            "0, but --policy-resource-index 1; expected the same in both",
            id="a contradiction about the index",
        ),
        pytest.param(
            None,
            {"policy_resource_index": 4},
            "--policy-resource-index: 4; expected a whole number from 0 to 1",
            id="a setting beyond the resources",
        ),
        pytest.param(
            None, {"pigeon_config": "no.cfg"}, "--pigeon-config: no.cfg: ", id="a file that is not there"
        ),
        pytest.param(None, {"pigeon_config": "."}, "--pigeon-config: .: ", id="a folder"),
        pytest.param(b"\xff", {}, "pigeon.cfg: 'utf-8' codec", id="no text"),
        pytest.param("#" * 70000, {}, "more than 65536 bytes", id="a file without end"),
    ],
)
def test_invalid_files_are_refused(
    folder: Path, text: str | bytes | None, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BadSettings) as caught:
        aim(folder, text, **options)
    assert problem in str(caught.value)


def test_a_file_that_cannot_be_looked_up_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pigeon_cfg_file, "DEFAULT", "x" * 256)
    with pytest.raises(BadSettings, match=r"--pigeon-config: x+: .*File name too long"):
        aim(folder, None)


def test_all_problems_are_reported_together(folder: Path) -> None:
    with pytest.raises(BadSettings) as caught:
        aim(folder, "policyObjective=x\npolicyResourceIndex=y")
    assert len(caught.value.problems) == 2


def test_file_and_settings_may_agree(folder: Path) -> None:
    text = "policyObjective=CONSOLIDATE\npolicyResourceIndex=1"
    config = aim(folder, text, policy_objective="CONSOLIDATE", policy_resource_index=1)
    assert config == PigeonConfig("CONSOLIDATE", 1, 2)


def test_a_file_by_another_name(folder: Path) -> None:
    (folder / "mine").write_text("policyObjective=CONSOLIDATE")
    assert aim(folder, None, pigeon_config="mine").objective == "CONSOLIDATE"


def test_unknown_keys_are_reported_and_ignored(folder: Path) -> None:
    config = aim(folder, "policyObjective=CONSOLIDATE\nalpha=3\nbeta\n")
    assert config.objective == "CONSOLIDATE"
    state = pigeon.KIND.state(PigeonOptions(), 5.0)
    assert state.problems({}) == {
        "pigeon.cfg": (
            "pigeon.cfg line 2: 'alpha'; expected policyObjective=… or policyResourceIndex=…",
            "pigeon.cfg line 3: 'beta'; expected policyObjective=… or policyResourceIndex=…",
        )
    }
