"""Metrics from custom.metrics.k8s.io and from files."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nodewise.base import clock
from nodewise.base.errors import BadInput, NodewiseError, Unavailable
from nodewise.kube.api_server_interface import NotFound
from nodewise.metrics.custom_metrics_api import CustomMetricsSource, choose_version
from nodewise.metrics.metric_files import FileSource
from nodewise.metrics.metrics_source import MetricRequest, NoValues
from nodewise.metrics.series import DifferingValues, Sample, Series
from tests.unit.metrics.custom_metrics_objects import group, item

NANO = 10**9


class Answers:
    """An API server with a response or an error for each path."""

    def __init__(self, **answers: Any) -> None:
        self.requests: list[str] = []
        self.answers = answers

    async def get(self, path: str, *_: Any, **__: Any) -> bytes:
        self.requests.append(path)
        answer = self.answers["group" if path.endswith("metrics.k8s.io") else "metric"]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def fetch(metric: Any, offered: Any = None) -> tuple[Series, list[str]]:
    api: Any = Answers(group=offered or group("v1beta1", "v1beta1"), metric=metric)
    return asyncio.run(CustomMetricsSource(api).fetch(MetricRequest("m"), 100.0)), api.requests


def test_replica_keeps_only_values_of_its_own_nodes() -> None:
    def fetch_own(nodes: set[str], items: list[Any]) -> Series:
        api: Any = Answers(group=group("v1beta1", "v1beta1"), metric={"items": items})
        source = CustomMetricsSource(api, own_nodes=nodes)
        return asyncio.run(source.fetch(MetricRequest("m"), 100.0))

    items = [item("rack-1", "1"), item("rack-2", "2"), item("rack-3", "invalid"), item("rack-4", "invalid")]
    series = fetch_own({"rack-2", "rack-4"}, items)
    assert {node: sample.value for node, sample in series.samples.items()} == {"rack-2": 2 * NANO}
    assert series.invalid.keys() == {"rack-4"}
    assert not fetch_own({"rack-9"}, items).samples, "the metric has values, of other replicas' nodes"
    for empty in ([], ["no item"]):
        with pytest.raises(NoValues):
            fetch_own({"rack-9"}, empty)


VERSIONS = {
    "the preferred one": (group("v1beta2", "v1beta2", "v1beta1"), "v1beta2"),
    "else the first that is known": (group("v2", "v2", "v1beta1", "v1beta2"), "v1beta1"),
}


@pytest.mark.parametrize(("offered", "chosen"), VERSIONS.values(), ids=VERSIONS)
def test_version(offered: Any, chosen: str) -> None:
    assert choose_version(json.dumps(offered).encode()) == chosen


def test_unsupported_version_is_named() -> None:
    with pytest.raises(Unavailable, match="offers only v3"):
        choose_version(json.dumps(group("v3", "v3")).encode())


OVERFLOW = "-9223372036854775808m"


class TestOverflow:
    """prometheus-adapter turns infinite and too large numbers into one number, which is below every threshold."""

    @pytest.mark.parametrize("text", [OVERFLOW, "-9223372036854775.808"])
    def test_overflow_is_invalid_on_its_own_node(self, text: str) -> None:
        series, _ = fetch({"items": [item("rack-1", text), item("rack-2", "-3")]})
        assert {node: sample.value for node, sample in series.samples.items()} == {"rack-2": -3 * NANO}
        reason = f"{text} is what prometheus-adapter makes of infinite and too large numbers, no value"
        assert series.invalid == {"rack-1": reason}

    @pytest.mark.parametrize(
        "text",
        ["-9223372036854775807m", "-9223372036854775809m", "9223372036854775807m", "-9223372036854775808"],
    )
    def test_neighbours_are_values(self, text: str) -> None:
        series, _ = fetch({"items": [item("rack-1", text)]})
        assert series.invalid == {}

    @pytest.mark.parametrize("is_table", [False, True], ids=["a list", "a CSV file"])
    def test_overflow_in_files_is_invalid(self, tmp_path: Path, *, is_table: bool) -> None:
        file = tmp_path / ("m.csv" if is_table else "m.json")
        value = {
            "apiVersion": "custom.metrics.k8s.io/v1beta2",
            "kind": "MetricValue",
            "metric": {"name": "m"},
        }
        file.write_text(
            f"rack-1,m,{OVERFLOW}\n" if is_table else json.dumps(value | item("rack-1", OVERFLOW))
        )
        series = asyncio.run(FileSource([str(file)]).fetch(MetricRequest("m"), 100.0))
        assert "prometheus-adapter" in series.invalid["rack-1"]

    def test_maximum_of_several_values_does_not_hide_it(self) -> None:
        api: Any = Answers(
            group=group("v1beta1", "v1beta1"),
            metric={"items": [item("rack-1", OVERFLOW), item("rack-1", "5"), item("rack-2", "5")]},
        )
        source = CustomMetricsSource(api)
        series = asyncio.run(source.fetch(MetricRequest("m", aggregate="sum"), 100.0))
        assert list(series.samples) == ["rack-2"]


class TestCustom:
    def test_one_call_a_metric_without_a_query(self) -> None:
        _, requests = fetch({"items": [item("a", "1")]})
        assert requests == ["/apis/custom.metrics.k8s.io", "/apis/custom.metrics.k8s.io/v1beta1/nodes/%2A/m"]

    def test_values_windows_and_times(self) -> None:
        stamp = "2026-11-21T00:00:00Z"
        series, _ = fetch(
            {
                "items": [
                    item("a", "50", windowSeconds=30, timestamp=stamp),
                    item("b", "1500m", window=20),
                    item("c", 2),
                ]
            }
        )
        at = clock.parse_rfc3339(stamp)
        assert series.samples == {
            "a": Sample(50 * NANO, at, 30),
            "b": Sample(1500 * NANO // 1000, None, 20),
            "c": Sample(2 * NANO, None, 60),
        }

    @pytest.mark.parametrize("stamps", [(None, None), ("2026-11-21T00:00:00Z", "2026-11-21T00:01:00Z")])
    def test_two_values_of_a_node_that_differ_are_none(self, stamps: tuple[str | None, ...]) -> None:
        items = [item("x", "1", timestamp=stamps[0]), item("x", "9", timestamp=stamps[1]), item("y", "3")]
        series = fetch({"items": items})[0]
        assert list(series.samples) == ["y"]
        assert series.invalid == {
            "x": "2 values of one node differ: set aggregate: max or give the source one value"
        }

    def test_rule_that_all_differing_values_meet_can_reject_the_node(self) -> None:
        values = [item("x", "7"), item("x", "900m"), item("y", "3"), item("z", "4"), item("z", "four")]
        differing = fetch({"items": values})[0].differing
        assert differing == {"x": DifferingValues(900_000_000, 7 * NANO, None)}

    def test_two_values_of_a_node_that_are_equal_are_one(self) -> None:
        assert fetch({"items": [item("x", "1"), item("x", "1000m")]})[0].samples["x"].value == NANO

    @pytest.mark.parametrize(("aggregate", "value"), [("max", 9), ("min", 1), ("sum", 10), ("avg", 5)])
    def test_a_rule_may_aggregate_them(self, aggregate: str, value: int) -> None:
        api: Any = Answers(
            group=group("v1beta1", "v1beta1"), metric={"items": [item("x", "1"), item("x", "9")]}
        )
        series = asyncio.run(CustomMetricsSource(api).fetch(MetricRequest("m", aggregate=aggregate), 100.0))
        assert series.samples["x"].value == value * NANO

    @pytest.mark.parametrize("bad", ["NaN", "12 apples", "", None, True, [], {"a": 1}])
    def test_one_bad_value_spoils_its_own_node_only(self, bad: Any) -> None:
        series, _ = fetch({"items": [item("a", bad), item("b", "1")]})
        assert list(series.samples) == ["b"]
        assert "Kubernetes quantity" in series.invalid["a"]

    def test_a_bad_time_spoils_its_own_node_only(self) -> None:
        series, _ = fetch({"items": [item("a", "1", timestamp="noon"), item("b", "1")]})
        assert (list(series.samples), list(series.invalid)) == (["b"], ["a"])

    def test_an_item_that_is_no_object_is_passed_over(self) -> None:
        assert list(fetch({"items": [3, item("b", "1"), {"describedObject": 7}]})[0].samples) == ["b"]

    @pytest.mark.parametrize("empty", [{"items": []}, {"items": None}, {}])
    def test_an_empty_list_is_no_answer(self, empty: Any) -> None:
        with pytest.raises(Unavailable, match="an empty list; expected a value of a node"):
            fetch(empty)

    @pytest.mark.parametrize("body", [b"garbage", b"[]", b"", b"[" * 100_000])
    def test_another_document_than_a_list_is_bad_input(self, body: bytes) -> None:
        with pytest.raises(BadInput, match="a MetricValueList"):
            fetch(body)

    def test_missing_api_names_the_program_to_install(self) -> None:
        api: Any = Answers(group=NotFound("get /apis/custom.metrics.k8s.io"))
        with pytest.raises(Unavailable, match=r"not registered.*install prometheus-adapter"):
            asyncio.run(CustomMetricsSource(api).fetch(MetricRequest("m"), 0.0))

    def test_after_a_failure_the_version_is_looked_up_again(self) -> None:
        api: Any = Answers(group=group("v1beta1", "v1beta1"), metric=NotFound("gone"))
        source = CustomMetricsSource(api)

        async def twice() -> Series:
            with pytest.raises(NodewiseError):
                await source.fetch(MetricRequest("m"), 0.0)
            api.answers = {"group": group("v1beta2", "v1beta2"), "metric": {"items": [item("a", "1")]}}
            return await source.fetch(MetricRequest("m"), 0.0)

        assert asyncio.run(twice()).samples
        assert api.requests[-1].startswith("/apis/custom.metrics.k8s.io/v1beta2/")

    def test_a_strange_name_stays_one_part_of_the_path(self) -> None:
        api: Any = Answers(group=group("v1beta1", "v1beta1"), metric={"items": [item("a", "1")]})
        asyncio.run(CustomMetricsSource(api).fetch(MetricRequest("secrets?x"), 0.0))
        assert api.requests[-1].endswith("/nodes/%2A/secrets%3Fx")

    @pytest.mark.parametrize("metric", ["..", "../../secrets", "%2e%2e", "a/b"])
    def test_a_name_that_could_be_another_path_is_not_asked_for(self, metric: str) -> None:
        api: Any = Answers(group=group("v1beta1", "v1beta1"), metric={"items": [item("a", "1")]})
        with pytest.raises(BadInput, match="URL path: segment: "):
            asyncio.run(CustomMetricsSource(api).fetch(MetricRequest(metric), 0.0))
        assert api.requests == ["/apis/custom.metrics.k8s.io"]


class TestFiles:
    def read(self, path: Path, metric: str = "m") -> dict[str, Sample]:
        return asyncio.run(FileSource((str(path),)).fetch(MetricRequest(metric), 0.0)).samples

    def test_csv(self, tmp_path: Path) -> None:
        file = tmp_path / "m.csv"
        file.write_text("node,metric,value\n# a comment\n\na,m,1500m\nb, m ,2,2026-11-21T00:00:00Z\na,k,3\n")
        assert self.read(file) == {
            "a": Sample(1_500_000_000, None),
            "b": Sample(2 * NANO, clock.parse_rfc3339("2026-11-21T00:00:00Z")),
        }

    def test_a_folder_may_hold_both(self, tmp_path: Path) -> None:
        (tmp_path / "m.csv").write_text("a,m,1\n")
        listed = {"apiVersion": "custom.metrics.k8s.io/v1beta2", "kind": "MetricValueList"}
        (tmp_path / "k.json").write_text(
            json.dumps(listed | {"items": [item("b", "2", metric={"name": "m"})]})
        )
        assert sorted(self.read(tmp_path)) == ["a", "b"]

    def test_a_line_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "m.csv"
        file.write_text("a,m\n")
        with pytest.raises(BadInput, match=r"m\.csv, line 1: a,m; expected node,metric,value"):
            self.read(file)

    def test_an_item_without_a_metric_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "m.yaml"
        file.write_text(
            "apiVersion: custom.metrics.k8s.io/v1beta1\nkind: MetricValueList\nitems: [{value: '1'}]\n"
        )
        with pytest.raises(BadInput, match=r"items\[0\].*no metric or no node"):
            self.read(file)

    def test_values_of_one_node_that_differ_need_an_aggregation(self, tmp_path: Path) -> None:
        file = tmp_path / "m.csv"
        file.write_text("a,m,1\na,m,9\nb,m,3\n")
        source = FileSource((str(file),))
        plain = asyncio.run(source.fetch(MetricRequest("m"), 0.0))
        assert (list(plain.samples), list(plain.invalid)) == (["b"], ["a"])
        assert (plain.differing["a"].lowest, plain.differing["a"].highest) == (NANO, 9 * NANO)
        highest = asyncio.run(source.fetch(MetricRequest("m", aggregate="max"), 0.0))
        assert {node: sample.value // NANO for node, sample in highest.samples.items()} == {"a": 9, "b": 3}

    def test_a_metric_that_is_not_there(self, tmp_path: Path) -> None:
        (tmp_path / "m.csv").write_text("a,m,1\n")
        with pytest.raises(Unavailable, match="metric k is not in"):
            self.read(tmp_path, "k")

    def test_files_are_read_again_when_they_change(self, tmp_path: Path) -> None:
        file = tmp_path / "m.csv"
        file.write_text("a,m,1\n")
        source = FileSource((str(tmp_path),))
        assert asyncio.run(source.fetch(MetricRequest("m"), 0.0)).samples["a"].value == NANO
        file.write_text("a,m,22\n")
        assert asyncio.run(source.fetch(MetricRequest("m"), 0.0)).samples["a"].value == 22 * NANO
