"""The source `prometheus` with each metric back end: the same values, whatever its server does differently.

docs/reference/metric-back-ends.md names these tests.
"""

import asyncio
import base64
import json
import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from nodewise.base import clock
from nodewise.base.errors import BadInput, Refused, Unavailable
from nodewise.metrics import missing_values
from nodewise.metrics.metrics_source import MetricRequest, NoValues
from nodewise.metrics.prometheus import query_responses
from tests.cluster import (
    changing_exporter,
    child_processes,
    metric_back_ends,
    prometheus_process,
    read_only_commands,
)
from tests.cluster.child_processes import Process
from tests.cluster.conftest import get_or_skip
from tests.cluster.debian_packages import VICTORIA_METRICS_1_112, PrometheusPrograms
from tests.cluster.metric_back_ends import MetricBackEnd, Server
from tests.cluster.namespace_sandboxes import wait
from tests.cluster.prometheus_and_exporters import NodeExporter
from tests.unit.metrics.prometheus_suite import (
    NANO,
    NUMBERS,
    Holding,
    PrometheusSuite,
    fetch,
    source,
    values,
)


@pytest.mark.parametrize(
    "metric_back_end", metric_back_ends.parameters(metric_back_ends.VICTORIA_METRICS), indirect=True
)
class TestSuite(PrometheusSuite):
    """The suite of the source with VictoriaMetrics; test_prometheus_source.py runs it with Prometheus."""

    @pytest.fixture
    def prometheus(self, metric_back_end: MetricBackEnd) -> Holding:
        return lambda series: metric_back_end.start(series=series).url

    @pytest.mark.parametrize(("aggregate", "value"), [("max", {"a": 2.0}), ("sum", {})])
    def test_max_and_min_ignore_invalid_values(
        self, prometheus: Holding, aggregate: str, value: dict[str, float]
    ) -> None:
        """VictoriaMetrics does not store NaN."""
        url = prometheus({'temp{instance="a",x="1"}': "-Inf", 'temp{instance="a",x="2"}': "2"})
        assert values(fetch(url, aggregate=aggregate)) == value

    @pytest.mark.parametrize("text", ["+Inf", "-Inf"])
    def test_invalid_value_affects_only_its_node(self, prometheus: Holding, text: str) -> None:
        super().test_invalid_value_affects_only_its_node(prometheus, text)

    @pytest.mark.parametrize(
        ("text", "nano"), [(text, nano) for text, nano in NUMBERS.items() if nano < 10**9 * NANO]
    )
    def test_values_are_exact(self, prometheus: Holding, text: str, nano: int) -> None:
        """VictoriaMetrics stores about 15 digits."""
        super().test_values_are_exact(prometheus, text, nano)

    @pytest.mark.parametrize("metric", ["absent", "gpu-temp", "9lives"])
    def test_a_metric_that_is_not_there_says_so(self, prometheus: Holding, metric: str) -> None:
        super().test_a_metric_that_is_not_there_says_so(prometheus, metric)

    def test_invalid_query_has_the_message_of_prometheus(self, prometheus: Holding) -> None:
        with pytest.raises(BadInput, match=r"query temp\{ to http://127.*422: bad_data: .*unexpected token"):
            fetch(prometheus({}), query="temp{")

    def test_a_number_is_no_series(self, prometheus: Holding) -> None:
        """VictoriaMetrics returns a number as a series without labels."""
        with pytest.raises(NoValues, match="1 series, none of a node"):
            fetch(prometheus({}), query="1")


@pytest.mark.long
@pytest.mark.parametrize(
    "metric_back_end", metric_back_ends.parameters(metric_back_ends.PROMETHEUS)[1:], indirect=True
)
class TestSuiteOfNewerVersions(PrometheusSuite):
    """The suite with the newer versions of Prometheus."""

    @pytest.fixture
    def prometheus(self, metric_back_end: MetricBackEnd) -> Holding:
        return lambda series: metric_back_end.start(series=series).url


def points(series: str, ages_and_values: Iterable[tuple[float, float]]) -> list[str]:
    """Samples of a series, by ages in seconds in descending order."""
    now = time.time()
    return [f"{series} {value} {now - age_s:.3f}" for age_s, value in ages_and_values]


def wait_for(server: Server, query: str, *expected: str) -> None:
    """Waits until the result of a query has these values."""
    wait(
        f"{query} is {expected}",
        lambda: sorted(result["value"][1] for result in server.ask(query)) == sorted(expected) or None,
        show=lambda: json.dumps(server.ask(query)),
    )


def test_query_is_evaluated_at_the_time_of_the_request(metric_back_end: MetricBackEnd) -> None:
    """VictoriaMetrics answers an instant query as of 30 s ago by default."""
    server = metric_back_end.start(samples=points('fan_rpm{node="a"}', ((90, 700), (60, 700), (2, 0))))
    assert values(fetch(server.url, "fan", query="fan_rpm * 1")) == {"a": 0.0}


def test_history_has_the_samples_at_their_times(metric_back_end: MetricBackEnd) -> None:
    """By default VictoriaMetrics moves the times of a range query, and repeats an older value for the last 30 s."""
    now = time.time()
    server = metric_back_end.start(samples=points('fan_rpm{node="a"}', ((100, 1), (70, 2), (40, 3), (10, 4))))

    async def read() -> list[list[tuple[float, str]]]:
        metric_source = source(server.url)
        try:
            response = await metric_source._client.query_range("fan_rpm", now - 95, now - 5, 30.0)
        finally:
            await metric_source.close()
        return [json.loads(series)["values"] for series in map(bytes, response.series)]

    [history] = asyncio.run(read())
    assert [value for _, value in history] == ["1", "2", "3", "4"]
    assert history[0][0] == pytest.approx(now - 95, abs=0.01)


class TestSeriesOfOneGpu:
    """The labels of a GPU's series change at each start and end of a job, as those of the DCGM exporter do."""

    IDLE = 'gpu_temp{instance="a",gpu="0"} 44\ngpu_temp{instance="a",gpu="1"} 41\n'
    BUSY = 'gpu_temp{instance="a",gpu="0",pod="train"} 90\ngpu_temp{instance="a",gpu="1"} 41\n'

    def test_new_series_counts_at_once_and_the_ended_one_no_longer(
        self, metric_back_end: MetricBackEnd
    ) -> None:
        with changing_exporter.exporting(self.IDLE) as exporter:
            server = metric_back_end.start(exporter.scrape_configuration())
            wait_for(server, "gpu_temp", "41", "44")
            exporter.text = self.BUSY
            wait_for(server, 'last_over_time(gpu_temp{pod="train"}[1m])', "90")
            results = {
                aggregate: fetch(server.url, "gpu_temp", aggregate=aggregate) for aggregate in ("max", "sum")
            }
        assert values(results["max"]) == {"a": 90.0}
        assert values(results["sum"]) == {"a": 131.0}
        assert results["sum"].invalid == {}


def test_failed_scrape_does_not_make_the_value_invalid(metric_back_end: MetricBackEnd) -> None:
    """VictoriaMetrics ends the range of a series with NaN after a failed scrape."""
    with changing_exporter.exporting('load_share{instance="a"} 0.25\n') as exporter:
        server = metric_back_end.start(exporter.scrape_configuration())
        wait_for(server, "load_share", "0.25")
        exporter.status = 503
        wait_for(server, "up", "0")
        wait_for(server, "load_share")
        series = fetch(server.url, "load_share")
    assert (values(series), series.invalid) == ({"a": 0.25}, {})


def test_series_that_ended_long_ago_does_not_count_beside_a_current_one(
    metric_back_end: MetricBackEnd,
) -> None:
    """Both products end a series without new samples after at most five minutes."""
    server = metric_back_end.start(
        series={'temp{node="a",pod="old"}': ("97", 400.0), 'temp{node="a",pod="new"}': ("2", 5.0)}
    )
    assert values(fetch(server.url, max_age_s=600.0, aggregate="sum")) == {"a": 2.0}


def test_replicas_count_once_at_any_offset_of_their_scrapes(metric_back_end: MetricBackEnd) -> None:
    series = {
        f'watts{{node="{node}",psu="{psu}",prometheus_replica="{replica}"}}': (f"{100 + replica}", age_s)
        for offset, node in enumerate("abc")
        for psu in (1, 2)
        for replica, age_s in ((0, 1.0 + 4 * offset), (1, 10.0 - 4 * offset))
    }
    server = metric_back_end.start(series=series)
    assert values(fetch(server.url, "watts", aggregate="sum")) == {"a": 200.0, "b": 200.0, "c": 202.0}


def test_exported_node_names_the_node(metric_back_end: MetricBackEnd) -> None:
    server = metric_back_end.start(
        series={
            'pressure{node="a",exported_node="b"}': ("1", 5.0),
            'pressure{node="a",exported_node="c"}': ("0", 5.0),
        }
    )
    assert values(fetch(server.url, "pressure", aggregate="max")) == {"b": 1.0, "c": 0.0}


def test_recording_rule_is_read_by_name(metric_back_end: MetricBackEnd) -> None:
    server = metric_back_end.start(series={'node:fan:min{node="a"}': ("7", 5.0)})
    assert values(fetch(server.url, "node:fan:min")) == {"a": 7.0}


@pytest.mark.parametrize("age_s", [120.0, 1200.0, 20000.0])
def test_end_of_a_series_and_parse_errors_are_known(metric_back_end: MetricBackEnd, age_s: float) -> None:
    now = time.time()
    ages_and_values = [(age_s + 30.0 * before, 1.0) for before in range(200, -1, -1)]
    server = metric_back_end.start(samples=points('node_fan{node="a"}', ages_and_values))

    async def ask() -> tuple[float | None, list[str]]:
        prometheus = source(server.url)
        try:
            end = await prometheus.series_end(MetricRequest("node_fan"))
            queries = ("sum by (node) (node_fan)", "sum(node_fan", "rate(node_fan[5m)", "node_fan >")
            return end, [await prometheus._client.parse_error(query) for query in queries]
        finally:
            await prometheus.close()

    end, (valid, *invalid) = asyncio.run(ask())
    assert end == pytest.approx(now - age_s, abs=2.0)
    assert valid == ""
    assert all(invalid)


def test_name_with_dots_is_read_where_the_back_end_has_such_names(metric_back_end: MetricBackEnd) -> None:
    """Prometheus before version 3 has none, and answers that there is no series."""
    has_dots = metric_back_end.is_victoria_metrics or metric_back_end.version.number.startswith("3.")
    exposed = '# TYPE "k8s.node.load" gauge\n{"k8s.node.load",instance="a"} 3\n' if has_dots else "other 1\n"
    if metric_back_end.is_victoria_metrics:
        exposed = 'k8s.node.load{instance="a"} 3\n'
    with changing_exporter.exporting(exposed) as exporter:
        server = metric_back_end.start(exporter.scrape_configuration())
        wait_for(server, "up", "1")
        if not has_dots:
            with pytest.raises(NoValues, match="no series"):
                fetch(server.url, "k8s.node.load")
            return
        wait_for(server, '{__name__="k8s.node.load"}', "3")
        assert values(fetch(server.url, "k8s.node.load")) == {"a": 3.0}


def test_empty_result_is_one_only_where_it_means_healthy(metric_back_end: MetricBackEnd) -> None:
    server = metric_back_end.start(series={'errors{node="a"}': ("0", 5.0)})
    with pytest.raises(NoValues) as caught:
        fetch(server.url, "e", query="errors > 0")
    assert caught.value.cause.reason == "NoSeries"
    series = fetch(server.url, "e", query="errors > 0", empty_is_healthy=True)
    assert (series.samples, series.invalid) == ({}, {})


ERRORS = {
    "a bracket": "sum(errors",
    "an unknown function": "summ(errors)",
    "a wrong label": "errors{node~=1}",
}


@pytest.mark.parametrize("query", ERRORS.values(), ids=ERRORS)
def test_error_of_a_query_is_shown_in_the_status_of_the_policy(
    metric_back_end: MetricBackEnd, query: str
) -> None:
    server = metric_back_end.start(series={'errors{node="a"}': ("0", 5.0)})
    with pytest.raises(BadInput) as caught:
        fetch(server.url, "e", query=query)
    cause = missing_values.cause_of_error(caught.value, "prometheus")
    assert cause.reason == "InvalidQuery"
    assert cause.text.startswith("Prometheus cannot run the query: ")
    assert server.url not in cause.text


@pytest.mark.parametrize(
    "metric_back_end", metric_back_ends.parameters(metric_back_ends.PROMETHEUS), indirect=True
)
def test_timeout_on_the_server_is_a_timeout(metric_back_end: MetricBackEnd) -> None:
    """The request of nodewise would end at the same time, so this one has another timeout than the server's.

    VictoriaMetrics measures its timeouts in seconds; tests/unit/metrics/test_victoria_metrics.py has its answer.
    """
    server = metric_back_end.start(samples=points('fan_rpm{node="a"}', ((90, 700), (60, 700), (2, 0))))
    expensive = "count_over_time(count_over_time(fan_rpm[12h:1s])[12h:1s])"
    query = f"count_over_time(({' + '.join([expensive] * 8)})[5m:1s]) + fan_rpm"
    response = server.client.get(f"{server.url}/api/v1/query", params={"query": query, "timeout": "1ms"})
    error = query_responses.error_from_response(
        "query", response.status_code, response.content, timeout_s=0.001
    )
    assert isinstance(error, Unavailable), response.text
    assert missing_values.cause_of_error(error, "prometheus").reason == "SourceTimesOut"


class TestGateway:
    """vmauth of VictoriaMetrics before each back end: it serves a request with the right header only."""

    @pytest.fixture
    def url(
        self, request: pytest.FixtureRequest, metric_back_end: MetricBackEnd, tmp_path: Path
    ) -> Iterator[str]:
        server = metric_back_end.start(series={'temp{node="a"}': ("3", 5.0)})
        user = {"username": "nodewise", "password": "of-the-lab", "url_prefix": server.url}
        (tmp_path / "users.yaml").write_text(yaml.safe_dump({"users": [user]}))
        port = child_processes.free_port()
        program = get_or_skip(request, VICTORIA_METRICS_1_112.get) / "bin" / "vmauth"
        flags = [f"-auth.config={tmp_path / 'users.yaml'}", f"-httpListenAddr=127.0.0.1:{port}"]
        with Process([program, *flags], tmp_path / "vmauth.log") as gateway:
            gateway.wait_ready(
                lambda: prometheus_process.answers(f"http://127.0.0.1:{port}/health", server.client)
            )
            yield f"http://127.0.0.1:{port}"

    def test_header_of_a_file_opens_it(self, url: str, tmp_path: Path) -> None:
        file = tmp_path / "authorization"
        file.write_text("Basic " + base64.b64encode(b"nodewise:of-the-lab").decode() + "\n")
        options = {"prometheus_header_file": (f"Authorization={file}",)}
        assert values(fetch(url, options=options)) == {"a": 3.0}

    def test_refusal_names_the_flag_and_hides_the_value(self, url: str) -> None:
        wrong = base64.b64encode(b"nodewise:of-another-lab").decode()
        with pytest.raises(Refused, match=r"401.*--prometheus-header") as caught:
            fetch(url, options={"prometheus_header": (f"Authorization=Basic {wrong}",)})
        assert wrong not in str(caught.value)


class TestRecipes:
    """The queries of docs/how-to/metrics.md."""

    def test_growth_of_a_counter(self, metric_back_end: MetricBackEnd) -> None:
        """`increase` would reject nodes for ten minutes on VictoriaMetrics when a counter is new."""
        ages = range(1500, 0, -15)
        counters = {
            "new": [(age_s, 7) for age_s in ages if age_s < 180],
            "steady": [(age_s, 4) for age_s in ages],
            "grown": [(age_s, 2 if age_s > 300 else 5) for age_s in ages],
            "reset": [(age_s, 9 if age_s > 300 else 0) for age_s in ages],
            "grown-after-reset": [(age_s, 9 if age_s > 300 else int(age_s < 120)) for age_s in ages],
            "grown-long-ago": [(age_s, 1 if age_s > 1200 else 3) for age_s in ages],
        }
        name = "node_disk_errors_total"
        server = metric_back_end.start(
            samples=[
                line for node, own in counters.items() for line in points(f'{name}{{node="{node}"}}', own)
            ]
        )
        result = server.ask(f"{name} - min_over_time({name}[10m]) > 0")
        assert {series["metric"]["node"]: series["value"][1] for series in result} == {
            "grown": "3",
            "grown-after-reset": "1",
        }

    def test_age_of_a_text_file(
        self, metric_back_end: MetricBackEnd, prometheus_programs: PrometheusPrograms, tmp_path: Path
    ) -> None:
        """The value of a text file has the time of the scrape, even if nothing writes the file any longer."""
        exporter = NodeExporter(prometheus_programs.node_exporter, tmp_path / "files")
        try:
            exporter.write("node_health_metric", 0)
            file = tmp_path / "files" / "node_health_metric.prom"
            os.utime(file, (time.time() - 900, time.time() - 900))
            target = {"targets": [f"127.0.0.1:{exporter.port}"], "labels": {"node": "a"}}
            server = metric_back_end.start(
                {
                    "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                    "scrape_configs": [{"job_name": "files", "static_configs": [target]}],
                }
            )
            wait_for(server, "node_health_metric", "0")
            query = 'time() - node_textfile_mtime_seconds{file=~".*/node_health_metric.prom"}'
            assert values(fetch(server.url, "age", query=query))["a"] == pytest.approx(900, abs=60)
            sample = fetch(server.url, "node_health_metric").samples["a"]
            assert sample.at is not None
            assert time.time() - sample.at < 60
        finally:
            exporter.process.stop()


RACK = [f"rack-{number}" for number in range(20)]
POLICY = """
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: cool, namespace: web}
spec:
  podSelector: {matchLabels: {app: web}}
  avoid:
  - {metric: inlet_temp, above: 30, for: 90s}
"""


class TestRuleWithFor:
    """A rule that is always true rejects the same nodes at each scrape interval."""

    FOR_S = 90.0

    @pytest.mark.parametrize("interval_s", [15, 60])
    def test_all_nodes_are_rejected_and_stay_so(
        self, metric_back_end: MetricBackEnd, tmp_path: Path, interval_s: int
    ) -> None:
        """Targets have different offsets, and each scrape has a small delay, as in a real server."""
        now, chance = time.time(), random.Random(interval_s)
        begin = now - 1200
        lines = [
            f'inlet_temp{{node="{node}"}} 35 {begin + offset_s + number * interval_s + chance.uniform(0, 0.3):.3f}'
            for node, offset_s in ((node, chance.uniform(0, interval_s)) for node in RACK)
            for number in range((1200 - interval_s) // interval_s)
        ]
        server = metric_back_end.start(samples=lines)
        nodes = [f"---\n{{apiVersion: v1, kind: Node, metadata: {{name: {node}}}}}\n" for node in RACK]
        (tmp_path / "objects.yaml").write_text(POLICY + "".join(nodes))
        done = read_only_commands.run(
            "policy",
            "backtest",
            str(tmp_path / "objects.yaml"),
            f"--prometheus-url={server.url}",
            "--since=20m",
            "--step=15s",
            f"--until={clock.format_rfc3339(now - 120)}",
            "--output=json",
        )
        assert done.returncode == 0, done.stderr
        [policy] = json.loads(done.stdout)["policies"]
        rejections = policy["rules"][0]["rejections"]
        assert sorted(entry["node"] for entry in rejections) == sorted(RACK), "each node once, without a gap"
        for entry in rejections:
            rejected_at = clock.parse_rfc3339(entry["from"])
            assert rejected_at <= begin + self.FOR_S + 3 * interval_s + 1
