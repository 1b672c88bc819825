"""The Prometheus source with a real Prometheus: the suite that the fake passes too, and authentication."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from nodewise.base import clock
from nodewise.base.errors import NodewiseError
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.series import Series
from tests.cluster import (
    debian_packages,
    extender_process,
    kubernetes_objects,
    prometheus_process,
    read_only_commands,
)
from tests.cluster.api_client import Object
from tests.cluster.certificates import CertificateAuthority
from tests.cluster.changing_exporter import ChangingExporter
from tests.cluster.namespace_sandboxes import wait
from tests.unit.metrics.fake_prometheus import SeriesSamples
from tests.unit.metrics.prometheus_suite import Holding, PrometheusSuite, fetch, source, values

HASH = "$2b$04$uCC4cvupet6tuzk0uSInmuxVKhogVpFL4P72LL2SbdR4WtwFaog3e"
"""The bcrypt hash of `secret`."""


class TestReal(PrometheusSuite):
    @pytest.fixture
    def prometheus(
        self, prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
    ) -> Iterator[Holding]:
        with contextlib.ExitStack() as stack:

            def holding(series: SeriesSamples) -> str:
                return stack.enter_context(
                    prometheus_process.prometheus_with_series(prometheus_programs, tmp_path, series)
                ).url

            yield holding


SENSORS = "node_hwmon_temp_celsius"
HOT = {
    f'{SENSORS}{{node="hot",sensor="temp1"}}': "41",
    f'{SENSORS}{{node="hot",sensor="temp2"}}': "97",
    f'{SENSORS}{{node="warm",sensor="temp1"}}': "40",
    f'{SENSORS}{{node="warm",sensor="temp2"}}': "60",
}


def decide(url: str, folder: Path, **fields: str) -> Object:
    """The decision of `nodewise decide` about a pod with a policy and two nodes, with values from Prometheus."""
    rule = {"metricname": SENSORS, "operator": "GreaterThan", "target": 80, **fields}
    strategies = {"dontschedule": {"rules": [rule]}, "scheduleonmetric": {"rules": [rule]}}
    policy = extender_process.tas_policy("cool", strategies, "default")
    pod = kubernetes_objects.pod("web", labels={"telemetry-policy": "cool"})
    pod["metadata"]["namespace"] = "default"
    trusted = {"name": "default", "labels": {"nodewise.io/trusted": "true"}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": trusted}
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in ("hot", "warm")]
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all([namespace, *nodes, policy, pod]))
    done = read_only_commands.run(
        "decide", str(file), "--metrics=prometheus", f"--prometheus-url={url}", "-o", "json"
    )
    decision: Object = json.loads(done.stdout)["decisions"][0]
    return decision


def test_a_misspelt_metric_is_reported_with_similar_names(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "hot"}}))
    with prometheus_process.prometheus_with_series(prometheus_programs, tmp_path, HOT) as prometheus:
        done = read_only_commands.run(
            "policy",
            "new",
            str(file),
            "--metric=hwmon_temp_celsius",
            "--metrics=prometheus",
            f"--prometheus-url={prometheus.url}",
        )
    assert f"expected a metric of nodes, such as {SENSORS}" in done.stderr


def test_two_sensors_of_a_node_do_not_send_pods_to_the_hottest_node(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> None:
    """Without an aggregation no node has a value. Every node was accepted, even the one at 97 °C."""
    with prometheus_process.prometheus_with_series(prometheus_programs, tmp_path / "held", HOT) as server:
        decision = decide(server.url, tmp_path)
        assert decision["feasible"] == []
        assert decision["error"].startswith(
            f"telemetry policy default/cool: metric {SENSORS} was never fetched"
        )
        assert decide(server.url, tmp_path, aggregate="max")["feasible"] == ["warm"]
        query = f"{SENSORS} > 80"
        assert decide(server.url, tmp_path, query=query)["feasible"] == ["warm"]
        query = f"{SENSORS} > 100"
        assert decide(server.url, tmp_path, query=query)["feasible"] == []
        decision = decide(server.url, tmp_path, query=query, empty_means="healthy")
        assert sorted(decision["feasible"]) == ["hot", "warm"]


def test_a_series_that_its_exporter_no_longer_has_counts_no_longer(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> None:
    """The samples of the old series are still in the requested range, but Prometheus has marked the series as stale."""
    exporter = ChangingExporter('temp{instance="a",pod="old"} 97\n')
    config = exporter.scrape_configuration("500ms")
    server = prometheus_process.PrometheusProcess(prometheus_programs, tmp_path / "scraping", config)
    try:
        server.start()
        wait("the old series is scraped", lambda: server.ask("temp") or None)
        exporter.text = 'temp{instance="a",pod="new"} 2\n'
        wait(
            "it has ended",
            lambda: [sample["metric"]["pod"] for sample in server.ask("temp")] == ["new"] or None,
        )
        assert {sample["metric"]["pod"] for sample in server.ask("temp[1m]")} == {"old", "new"}
        assert [values(fetch(server.url, aggregate=aggregate)) for aggregate in ("", "sum")] == [
            {"a": 2.0}
        ] * 2
    finally:
        server.stop()
        exporter.close()


AGES_S = {"minutes": 600.0, "an_hour": 3599.0, "hours": 5 * 3600.0 + 7, "days": 3 * 86400.0 + 11}


def test_the_end_of_a_series_is_found(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> None:
    now = time.time()
    # one sample a minute for two hours, on two nodes, one of which ended a minute earlier
    lines = [
        f'ended_{name}{{node="{node}"}} 1 {now - age_s - before - 60 * (7200 // 60 - minute):.3f}'
        for name, age_s in AGES_S.items()
        for node, before in (("hot", 0), ("warm", 60))
        for minute in range(1, 121)
    ]
    lines += [
        f'current{{node="hot"}} 1 {now - 20:.3f}',
        f'ended_long_ago{{node="hot"}} 1 {now - 20 * 86400:.3f}',
        # Prometheus returns both, because their last samples are less than five minutes old
        *(f'ended_lately{{node="hot"}} 1 {now - 15 * number:.3f}' for number in range(60, 5, -1)),
        *(f'scraped_rarely{{node="hot"}} 1 {now - 120 * number + 30:.3f}' for number in range(9, 0, -1)),
    ]
    server = prometheus_process.PrometheusProcess(prometheus_programs, tmp_path / "held", {})
    server.hold_samples(sorted(lines, key=lambda line: line.partition(" ")[0]))
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "hot"}}))

    async def ends() -> dict[str, float | None]:
        client = source(server.url)
        try:
            names = [*(f"ended_{name}" for name in AGES_S), "current", "ended_long_ago", "neverr"]
            names += ["ended_lately", "scraped_rarely"]
            measured = {name: await client.series_end(MetricRequest(name)) for name in names}
            for query in ('ended_hours{node="warm"}', "ended_hours > 0"):
                measured[query] = await client.series_end(MetricRequest("query", query))
            return measured
        finally:
            await client.close()

    try:
        server.start()
        measured = asyncio.run(ends())
        assert {name: round(now - end) if end and end < now else end for name, end in measured.items()} == {
            **{f"ended_{name}": age_s for name, age_s in AGES_S.items()},
            "current": math.inf,
            "ended_long_ago": None,
            "neverr": None,
            "ended_lately": 90.0,
            "scraped_rarely": math.inf,
            'ended_hours{node="warm"}': AGES_S["hours"] + 60,
            "ended_hours > 0": None,
        }
        options = ("--metrics=prometheus", f"--prometheus-url={server.url}")
        done = read_only_commands.run(
            "policy", "new", str(file), "--metric=ended_minutes", "--above=1", "-l", "app=web", *options
        )
        at = clock.format_rfc3339(now - 600)[:16]
        assert f"has no current series of this name: the last one ended at {at}" in done.stderr
        assert (
            "check that the exporter runs, and that Prometheus scrapes it: its page of targets" in done.stderr
        )
        assert "correct the name" not in done.stderr
        assert "ended_hours" not in done.stderr
        done = read_only_commands.run("policy", "new", str(file), "--metric=curent", "--above=1", *options)
        assert "expected a metric of nodes, such as current" in done.stderr
    finally:
        server.stop()


class ProtectedPrometheus:
    """A Prometheus that requires TLS, a client certificate and a password, with the files that a client needs."""

    def __init__(self, folder: Path) -> None:
        self.authority = CertificateAuthority(folder, "prometheus-ca")
        self.pair = self.authority.issue("nodewise")
        self.password = folder / "password"
        self.password.write_text("secret\n")
        self.url = ""

    def web(self) -> Object:
        server = self.authority.issue("prometheus", "127.0.0.1")
        files = {"cert_file": str(server.cert), "key_file": str(server.key)}
        settings = {
            "client_auth_type": "RequireAndVerifyClientCert",
            "client_ca_file": str(self.authority.ca_file),
        }
        return {"tls_server_config": files | settings, "basic_auth_users": {"nodewise": HASH}}

    def client(self) -> httpx2.Client:
        context = self.authority.client_context(self.pair)
        return httpx2.Client(verify=context, auth=("nodewise", "secret"), trust_env=False)

    def options(self) -> dict[str, str]:
        return {
            "prometheus_ca": str(self.authority.ca_file),
            "prometheus_cert": str(self.pair.cert),
            "prometheus_key": str(self.pair.key),
            "prometheus_user": "nodewise",
            "prometheus_password_file": str(self.password),
        }

    def fetch(self, **options: str) -> Series:
        async def once() -> Series:
            client = source(self.url, **(self.options() | options))
            try:
                return await client.fetch(MetricRequest("temp"), time.time())
            finally:
                await client.close()

        return asyncio.run(once())


@pytest.fixture
def guarded(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> Iterator[ProtectedPrometheus]:
    guarded = ProtectedPrometheus(tmp_path)
    series = {'temp{instance="a"}': "1"}
    with prometheus_process.prometheus_with_series(
        prometheus_programs, tmp_path / "held", series, guarded.web(), guarded.client()
    ) as server:
        guarded.url = server.url
        yield guarded


def test_certificate_and_password_are_shown(guarded: ProtectedPrometheus) -> None:
    assert values(guarded.fetch()) == {"a": 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prometheus_password_file": "/dev/null"}, "401"),
        ({"prometheus_cert": "", "prometheus_key": ""}, "certificate"),
        ({"prometheus_ca": ""}, "certificate"),
    ],
    ids=["no password", "no client certificate", "a CA that is not trusted"],
)
def test_a_missing_precondition_is_reported(
    guarded: ProtectedPrometheus, options: dict[str, str], message: str
) -> None:
    with pytest.raises(NodewiseError, match=message):
        guarded.fetch(**options)
