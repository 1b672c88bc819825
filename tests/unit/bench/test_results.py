"""What the bench has written: results.json has its keys, README.md shows exactly its figures."""

import pytest
from bench import report, results, rounds

KEYS = {
    "filter_names_5000_p50_ms",
    "prioritize_names_5000_p50_ms",
    "filter_names_5000_p99_refresh_ms",
    "rss_mib",
}


def test_results_have_every_key():
    found = results.read()
    assert found.keys() >= KEYS | results.FIGURES.keys()
    assert found.keys() >= {"date", "client", "machine", "versions", "rounds"}
    assert found["machine"].keys() >= {"cpu", "cores", "kernel"}
    assert found["versions"].keys() >= {"python", "openssl", *results.PROGRAMS}


def test_figures_follow_from_the_rounds():
    found = results.read()
    assert results.figures(found["rounds"]).items() <= found.items()


def test_every_round_has_requests_enough():
    assert all(len(series) >= 3 for series in results.read()["rounds"].values())
    assert all(each["requests"] >= 300 for series in results.read()["rounds"].values() for each in series)


def test_readme_shows_exactly_the_figures():
    text = report.README.read_text()
    assert report.inserted(text, results.read()) == text


def test_readme_without_its_markers_is_an_error():
    with pytest.raises(ValueError, match="lacks the lines"):
        report.inserted("# How fast\n", results.read())


@pytest.mark.parametrize(
    ("share", "wanted"), [(0.5, 50), (0.99, 99), (0.0, 1), (1.0, 100)], ids=["median", "p99", "least", "most"]
)
def test_percentile_is_the_nearest_rank(share, wanted):
    assert rounds.percentile(range(1, 101), share) == wanted


def test_a_ratio_compares_within_rounds():
    slow_second = [{"p50_ms": 2.0}, {"p50_ms": 20.0}, {"p50_ms": 4.0}]
    nothing = [{"p50_ms": 1.0}, {"p50_ms": 10.0}, {"p50_ms": 1.0}]
    assert rounds.ratio(slow_second, nothing, "p50_ms") == 2.0


@pytest.mark.parametrize(("value", "verdict"), [(1.5, "met"), (1.51, "not met")], ids=["equal", "over"])
def test_a_target_is_met_up_to_its_limit(value, verdict):
    found = results.read() | {"filter_names_5000_p50_ms": value}
    row = next(row for row in report.rows(found) if row[0] == "filter_names_5000_p50_ms")
    assert row[3] == f"at most 1.5 ms: {verdict}"
