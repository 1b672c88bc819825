"""The results of the benchmarks: results.json has all keys, and README.md shows exactly its figures."""

import json
import re

import pytest
from bench import alternating_rounds, cluster, plots, report, results
from bench.results import Measurement

from tests.unit.bench import svg_content

KEYS = {
    "filter_names_5000_p50_ms",
    "prioritize_names_5000_p50_ms",
    "filter_names_5000_p99_refresh_ms",
    "rss_mib",
    "filter_full_5000_ratio",
    "prioritize_full_5000_ratio",
    "cluster_bind_rate_none",
    "cluster_bind_rate_nothing",
    "cluster_bind_rate_5000",
    "cluster_bind_ratio_5000",
    "ready_s",
    "rss_50000_pods_mib",
    "score_safe_names_5000_p50_ms",
    "score_congestion_names_5000_p50_ms",
    "score_pigeon_names_5000_p50_ms",
    "score_learned_names_5000_p50_ms",
}
PLACE = {"date": "2026-11-22", "machine": {"cores": 2}, "versions": {"python": "3.11.7"}}


def test_results_have_every_key():
    document = results.read()
    assert document.keys() >= KEYS
    assert document.keys() >= {
        "date",
        "client",
        "machine",
        "versions",
        "rounds",
        "growth",
        "starts",
    }


@pytest.mark.parametrize("part", results.PARTS)
def test_every_measured_part_says_where_it_was_measured(part):
    document = results.read()
    if not any(key in document for key, figure in results.FIGURES.items() if figure.part == part):
        assert part not in document["parts"] or part == results.GROWTH
        return
    place = document["parts"][part]
    assert place.keys() >= {"date", "machine", "versions"}
    assert place["machine"].keys() >= {"cpu", "cores", "kernel", "others_share"}
    assert place["versions"].keys() >= {"python", "openssl", *results.PROGRAMS}


MEASURED_ONCE = (
    results.BACKTEST,
    results.BACKTEST_REAL,
    results.LOAD,
    results.LOAD_SCHEDULERS,
    results.SHARDS,  # label writes: one burst of each controller
)
WITHOUT_STORED_ROUNDS = (results.NATIVE_LABELS, results.NATIVE_TENANTS, results.TENANTS)
"""Parts that were last measured before spreads were stored."""


def test_ratios_and_durations_have_the_spread_of_their_rounds():
    document = results.read()
    timed = [key for key, figure in results.FIGURES.items() if figure.unit in ("", "s", "ms", "µs", "1/s")]
    without = {key for key in timed if key in document and key not in document["spread"]}
    parts = {results.FIGURES[key].part for key in without if "writes_at_rest" not in key}
    assert parts <= {*MEASURED_ONCE, *WITHOUT_STORED_ROUNDS}
    assert all(least <= document[key] <= most for key, (least, most) in document["spread"].items())


def test_figures_follow_from_the_rounds():
    document = results.read()
    figures = results.figures(document["rounds"])
    assert figures.items() <= document.items()
    assert {key: list(value.spread) for key, value in figures.items()}.items() <= document["spread"].items()


def test_every_round_has_requests_enough():
    for name, series in results.read()["rounds"].items():
        assert len(series) >= 3
        fewest = 5 if results.WHOLE in name else 100 if name in (results.ISOLATED, results.PLAIN) else 300
        assert all(each["requests"] >= fewest for each in series)


def test_readme_shows_exactly_the_figures():
    text = report.README.read_text()
    assert report.replace_figures(text, report.block(results.read())) == text


def test_load_page_shows_exactly_the_figures():
    text = report.LOAD_PAGE.read_text()
    assert report.replace_figures(text, report.load_block(results.read())) == text


def test_readme_without_its_markers_is_an_error():
    with pytest.raises(ValueError, match="lacks the lines"):
        report.replace_figures("# How fast\n", "")


@pytest.fixture(scope="module")
def drawn_plots(tmp_path_factory):
    """The folder of the plots of results.json, drawn anew."""
    folder = tmp_path_factory.mktemp("plots")
    plots.write(results.read(), folder)
    return folder


@pytest.mark.parametrize("name", plots.TITLES)
def test_the_plots_are_those_of_the_results(drawn_plots, name):
    assert svg_content.differences(drawn_plots / f"{name}.svg", plots.FOLDER / f"{name}.svg") == []


@pytest.mark.parametrize(
    ("name", "key", "factor"),
    [
        ("binding", "cluster_bind_rate_nothing", 1.01),
        ("binding", "cluster_bind_rate_none", 0.9995),
        ("growth", "growth", 1.002),
    ],
)
def test_a_plot_of_other_results_differs(tmp_path, drawn_plots, name, key, factor):
    document = results.read()
    if key == "growth":
        *rows, last = document[key]
        document[key] = [
            *rows,
            {
                quantity: amount if quantity == "nodes" else amount * factor
                for quantity, amount in last.items()
            },
        ]
    else:
        document[key] *= factor
    plots.write(document, tmp_path)
    assert svg_content.differences(tmp_path / f"{name}.svg", drawn_plots / f"{name}.svg")
    assert svg_content.differences(tmp_path / "load.svg", drawn_plots / "load.svg") == []


def test_a_last_digit_and_other_ids_are_no_difference(tmp_path, drawn_plots):
    text = (drawn_plots / "growth.svg").read_text()
    (identifier, *_) = re.findall(r"#(m[0-9a-f]{10})", text)
    numbers = re.findall(r"L \d+\.\d+ (\d+\.\d{6})", text)
    changed = text.replace(identifier, "m0123456789").replace(numbers[0], f"{float(numbers[0]) + 1e-6:.6f}")
    assert changed != text
    (tmp_path / "growth.svg").write_text(changed)
    assert svg_content.differences(tmp_path / "growth.svg", drawn_plots / "growth.svg") == []


@pytest.mark.parametrize(
    ("share", "wanted"), [(0.5, 50), (0.99, 99), (0.0, 1), (1.0, 100)], ids=["median", "p99", "least", "most"]
)
def test_percentile_is_the_nearest_rank(share, wanted):
    assert alternating_rounds.percentile(range(1, 101), share) == wanted


def test_a_ratio_compares_within_rounds():
    slow_second = [{"p50_ms": 2.0}, {"p50_ms": 20.0}, {"p50_ms": 4.0}]
    nothing = [{"p50_ms": 1.0}, {"p50_ms": 10.0}, {"p50_ms": 1.0}]
    assert alternating_rounds.ratio(slow_second, nothing, "p50_ms") == 2.0


@pytest.mark.parametrize(
    ("key", "value", "verdict"),
    [
        pytest.param("filter_names_5000_p50_ms", 1.5, "at most 1.5 ms: met", id="at most, equal"),
        pytest.param("filter_names_5000_p50_ms", 1.51, "at most 1.5 ms: not met", id="at most, over"),
        pytest.param("cluster_bind_ratio_5000", 0.95, "at least 0.95: met", id="at least, equal"),
        pytest.param("cluster_bind_ratio_5000", 0.94, "at least 0.95: not met", id="at least, under"),
    ],
)
def test_a_target_is_met_up_to_its_limit(key, value, verdict):
    row = next(row for row in report.rows({key: value}) if row[0] == key)
    assert row[4] == verdict


def test_a_figure_with_a_target_that_is_not_measured_is_shown_as_such():
    rows = {row[0]: row[1:] for row in report.rows({})}
    assert rows["filter_names_5000_p50_ms"][1:] == ("not measured", "", "at most 1.5 ms")
    assert "filter_names_5000_p99_ms" not in rows


def test_the_spread_of_the_rounds_is_stored_and_shown_until_the_figure_is_measured_once():
    figure = alternating_rounds.of_rounds([2.04, 1.0, 7.0], 1)
    document = results.merged({"rounds": {}}, results.START, Measurement({"ready_s": figure}, {}, ""), PLACE)
    assert (document["ready_s"], document["spread"]) == (2.0, {"ready_s": [1.0, 7.0]})
    assert next(row for row in report.rows(document) if row[0] == "ready_s")[2:4] == ("2 s", "1 to 7")
    document = results.merged(document, results.START, Measurement({"ready_s": 3.5}, {}, ""), PLACE)
    assert document["spread"] == {}


def test_a_part_measured_anew_leaves_the_others_as_they_are():
    known = results.read()
    document = results.merged(
        known, results.START, Measurement({"ready_s": 3.5}, {}, "", {"starts": []}), PLACE
    )
    assert document["ready_s"] == 3.5
    assert document["starts"] == []
    assert document["parts"][results.START] == PLACE
    assert "ready_s" not in document["spread"]
    changed = {"ready_s", "starts", "parts", "spread"}
    assert {key: document[key] for key in known.keys() - changed} == {
        key: known[key] for key in known.keys() - changed
    }
    assert {name: document["parts"][name] for name in document["parts"].keys() - {results.START}} == {
        name: known["parts"][name] for name in known["parts"].keys() - {results.START}
    }


def test_a_part_keeps_the_rounds_of_the_others():
    series = [{"p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0, "requests": 5}]
    known = {"rounds": {"filter": series}}
    document = results.merged(
        known, results.WHOLE_NODES, Measurement({}, {"whole nodes: filter": series}, ""), PLACE
    )
    assert document["rounds"] == {"filter": series, "whole nodes: filter": series}


def test_where_names_were_measured_stands_at_the_top():
    document = results.merged(
        {}, results.NAMES, Measurement({"rss_mib": 1.0}, {}, "go"), PLACE | {"client": "go"}
    )
    assert document["date"] == PLACE["date"]
    assert document["client"] == "go"
    assert list(document)[-2:] == ["parts", "rounds"]


@pytest.mark.parametrize("comparison", [name for name, part in cluster.PARTS.items() if part])
def test_the_schedulers_figures_are_those_of_its_own_run(comparison):
    run = json.loads(cluster.PATH.read_text())[f"{comparison} {cluster.MERGED_NODES}"]
    document, part = results.read(), cluster.PARTS[comparison]
    keys = [key for key, figure in results.FIGURES.items() if figure.part == part and key in run["figures"]]
    assert keys
    assert {key: document[key] for key in keys} == {key: run["figures"][key] for key in keys}
    assert document["parts"][part]["machine"] == run["machine"]
