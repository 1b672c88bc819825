"""The matrix of metric back ends: each version has the interface and the properties that other tests rely on."""

import time

from tests.cluster.metric_back_ends import MetricBackEnd
from tests.unit.metrics.prometheus_suite import fetch, values


def test_imported_samples_are_queried(metric_back_end: MetricBackEnd) -> None:
    now = time.time()
    server = metric_back_end.start(
        series={'rack_temp{node="a"}': ("41.5", 40.0)},
        samples=[f'rack_load{{node="b"}} {age_s} {now - age_s:.3f}' for age_s in range(600, 0, -60)],
    )
    assert values(fetch(server.url, "rack_temp")) == {"a": 41.5}
    assert values(fetch(server.url, "rack_load", max_age_s=90.0)) == {"b": 60.0}
    [counted] = server.ask("count_over_time(rack_load[700s])")
    assert counted["value"][1] == "10"


def test_samples_survive_a_restart(metric_back_end: MetricBackEnd) -> None:
    server = metric_back_end.start(series={'rack_temp{node="a"}': ("41.5", 10.0)})
    server.process.stop()
    server.start()
    assert values(fetch(server.url, "rack_temp")) == {"a": 41.5}
