"""The comparison of two commits: ratios, their spread, the limit, and the build of the other commit."""

import subprocess
from pathlib import Path

import pytest
from bench import commit_build, commit_comparison, comparison_table
from bench.commit_build import BuildError
from bench.comparison_table import ComparedFigure, ComparedRounds, Comparison

LATENCY = ComparedFigure("filter: median", "ms")
RATE = ComparedFigure("pods bound", "1/s", is_rate=True)


def test_ratio_is_median_of_the_ratios_of_rounds():
    rounds = ComparedRounds(LATENCY, [1.0, 10.0, 2.0], [1.1, 9.0, 2.4])
    assert rounds.ratios() == pytest.approx([1.1, 0.9, 1.2])
    assert rounds.ratio() == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("figure", "after", "limit", "worse"),
    [
        pytest.param(LATENCY, 1.06, 1.05, True, id="slower"),
        pytest.param(LATENCY, 1.04, 1.05, False, id="within the limit"),
        pytest.param(LATENCY, 0.5, 1.05, False, id="faster"),
        pytest.param(RATE, 0.9, 1.05, True, id="lower rate"),
        pytest.param(RATE, 1.5, 1.05, False, id="higher rate"),
    ],
)
def test_figure_is_worse_than_limit_in_its_own_direction(figure, after, limit, worse):
    rounds = [ComparedRounds(figure, [1.0, 1.0], [after, after])]
    assert comparison_table.worse_than(rounds, limit) == ([figure.meaning] if worse else [])


def test_table_shows_medians_ratio_and_spread_of_each_figure():
    comparison = Comparison()
    for before, after in ((1.0, 1.1), (2.0, 1.8), (3.0, 3.6)):
        comparison.add(LATENCY, is_after=True, value=after)
        comparison.add(LATENCY, is_after=False, value=before)
    comparison.add(RATE, is_after=False, value=1234.5678)
    comparison.add(RATE, is_after=True, value=617.2839)
    lines = comparison_table.table(comparison.rounds()).splitlines()
    assert [line.split() for line in lines] == [
        ["figure", "before", "after", "ratio", "spread"],
        ["filter:", "median", "2", "ms", "1.8", "ms", "1.100", "0.90", "to", "1.20"],
        ["pods", "bound", "1235", "1/s", "617.3", "1/s", "0.500", "0.50", "to", "0.50"],
    ]
    assert len({len(line) for line in lines}) == 1


def test_states_without_equal_numbers_of_rounds_are_an_error():
    with pytest.raises(ValueError, match="shorter"):
        ComparedRounds(LATENCY, [1.0, 2.0], [1.0]).ratio()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with two commits, whose Makefile installs a program that prints the commit's number."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(commit_build, "ROOT", folder)
    _git(folder, "init", "--quiet")
    for number, target in enumerate(("venv", ".venv/.run")):
        recipe = f"mkdir -p .venv/bin; echo 'echo {number}' > .venv/bin/nodewise"
        (folder / "Makefile").write_text(f"{target}:\n\t{recipe}\n")
        _git(folder, "add", "Makefile")
        _git(
            folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", f"Number {number}"
        )
    return folder


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True)


@pytest.mark.parametrize(("commit", "number"), [("HEAD~1", 0), ("HEAD", 1)])
def test_commit_is_built_with_the_target_that_its_makefile_has(repository, commit, number):
    with commit_build.built(commit, None) as folder:
        assert (folder / ".venv/bin/nodewise").read_text() == f"echo {number}\n"
        assert commit_build.describe(folder).endswith(f"Number {number}")
    assert not folder.exists()
    listed = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, check=True)
    assert len(listed.stdout.splitlines()) == 1


def test_kept_build_is_used_again_for_the_same_commit_only(repository, tmp_path):
    kept = tmp_path / "kept"
    for _ in range(2):
        with commit_build.built("HEAD", kept) as folder:
            assert folder == kept
    assert (kept / ".venv/bin/nodewise").exists()
    with pytest.raises(BuildError, match="contains commit"), commit_build.built("HEAD~1", kept):
        pass


def test_unknown_commit_is_an_error(repository, capsys):
    assert commit_comparison.main(["no-such-commit"]) == 2
    assert "no such commit" in capsys.readouterr().err
