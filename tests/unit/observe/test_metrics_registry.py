import pytest

from nodewise.observe.metrics_registry import MetricsRegistry

LABELS = {"agent": "telemetry", "verdict": "passed"}
SHOWN = 'nodewise_verdicts_total{agent="telemetry",verdict="passed"}'


def exposed_values(metrics_registry: MetricsRegistry) -> dict[str, float]:
    lines = metrics_registry.exposition().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if "#" not in name
    }


def test_labels_may_come_in_any_order() -> None:
    metrics_registry = MetricsRegistry()
    metrics_registry.count("verdicts_total", 2, **LABELS)
    metrics_registry.count("verdicts_total", 3, verdict="passed", agent="telemetry")
    assert exposed_values(metrics_registry)[SHOWN] == 5


def test_forgotten_series_is_not_exposed_and_starts_at_zero() -> None:
    metrics_registry = MetricsRegistry()
    metrics_registry.count("verdicts_total", 2, **LABELS)
    metrics_registry.forget("verdicts_total", **LABELS)
    assert SHOWN not in exposed_values(metrics_registry)
    metrics_registry.count("verdicts_total", 1, **LABELS)
    assert exposed_values(metrics_registry)[SHOWN] == 1


def test_missing_series_can_be_forgotten() -> None:
    MetricsRegistry().forget("verdicts_total", **LABELS)


@pytest.mark.parametrize(
    ("name", "labels"), [("strange_total", {}), ("verdicts_total", {"agent": "telemetry"})]
)
def test_unknown_metric_is_an_error(name: str, labels: dict[str, str]) -> None:
    with pytest.raises(KeyError):
        MetricsRegistry().count(name, **labels)


def test_a_gauge_is_shown_once_it_is_set_and_a_counter_from_the_start() -> None:
    metrics_registry = MetricsRegistry()
    assert "nodewise_ready" not in exposed_values(metrics_registry)
    assert exposed_values(metrics_registry)["nodewise_wakes_total"] == 0
    metrics_registry.set("ready", 0)
    metrics_registry.set("ready", 1)
    assert exposed_values(metrics_registry)["nodewise_ready"] == 1
