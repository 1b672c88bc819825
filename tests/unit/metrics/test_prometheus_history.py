"""The history of metrics in Prometheus: parts within its limits, several series of a node, and pods that started."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2
import numpy as np
import pytest

from nodewise.base.errors import BadInput, Unavailable
from nodewise.metrics.prometheus import history as prometheus_history
from nodewise.metrics.prometheus.range_matrix import NodeMatrix, TimeGrid
from nodewise.metrics.series import ValueState
from tests.unit.metrics.fake_prometheus_history import URL, FakeHistory, Value, history_of, request_of
from tests.unit.metrics.recorded_responses import recorded

START = 1_699_000_020.0
FRESH, MISSING, INVALID = ValueState.FRESH, ValueState.MISSING, ValueState.INVALID


def series(name: str, **values: Value) -> dict[tuple[tuple[str, str], ...], Value]:
    return {(("__name__", name), ("instance", f"{node}:9100")): value for node, value in values.items()}


def minute(at: float) -> int:
    return round((at - START) / 60)


def read(fake: FakeHistory, steps: int, aggregate: str = ""):
    history = history_of(fake, ("a", "b"))
    grid = TimeGrid(START, 60.0, steps)
    matrices = asyncio.run(history.read([request_of("temp", aggregate)], grid))
    [matrix] = matrices.values()
    return matrix, history


def test_values_gaps_and_texts_that_are_no_numbers() -> None:
    texts = ["81.5", None, "NaN", "+Inf", "1e+300", "7e+10"]
    fake = FakeHistory(series("temp", a=lambda at: texts[minute(at)], b=lambda at: str(minute(at))))
    matrix, _ = read(fake, 6)
    assert matrix.states[:, 0].tolist() == [FRESH, MISSING, INVALID, INVALID, INVALID, FRESH]
    assert matrix.values[:, 0].tolist() == [81_500_000_000, 0, 0, 0, 0, 7 * 10**19]
    assert matrix.values[:, 1].tolist() == [number * 10**9 for number in range(6)]
    assert fake.queries[0]["query"] == 'last_over_time({__name__="temp"}[60s])'


def test_a_part_beyond_the_limit_of_the_server_is_read_in_halves() -> None:
    fake = FakeHistory(series("temp", a=lambda at: str(minute(at))), most_points=3)
    matrix, history = read(fake, 10)
    assert matrix.values[:, 0].tolist() == [number * 10**9 for number in range(10)]
    assert "exceeded maximum resolution" in history.halvings[0]


class LimitOfTenant(FakeHistory):
    """A server that refuses ranges that are longer than five minutes with a recorded response."""

    response: Mapping[str, Any]

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        start, end = (float(request.url.params.get(name, "0")) for name in ("start", "end"))
        if end - start > 300.0:
            return httpx2.Response(self.response["status"], json=self.response["body"])
        return super().answer(request)


@pytest.mark.parametrize(
    ("back_end", "limit"),
    [
        ("mimir", "length"),
        ("mimir", "series"),
        ("mimir", "points"),
        ("cortex", "length"),
        ("cortex", "points"),
    ],
)
def test_a_part_beyond_the_limit_of_a_tenant_is_read_in_halves(back_end: str, limit: str) -> None:
    fake = LimitOfTenant(series("temp", a=lambda at: str(minute(at))))
    fake.response = recorded(back_end)["limits"][limit]
    assert read(fake, 10)[0].values[:, 0].tolist() == [number * 10**9 for number in range(10)]


def test_blocked_query_is_not_read_in_halves() -> None:
    fake = LimitOfTenant(series("temp", a=lambda _: "1"))
    fake.response = recorded("mimir")["limits"]["blocked"]
    with pytest.raises(BadInput, match="blocked by the cluster administrator"):
        read(fake, 10)


def test_a_server_that_does_not_answer_is_asked_again_for_less_and_fails_in_the_end() -> None:
    fake = FakeHistory(series("temp", a=lambda _: "1"))
    fake.unanswered = 2
    assert read(fake, 8)[0].values[:, 0].tolist() == [10**9] * 8
    fake.unanswered = 1000
    with pytest.raises(Unavailable, match="503"):
        read(fake, 4)


def test_a_few_metrics_are_read_at_once() -> None:
    names = [f"m{number}" for number in range(20)]
    fake = FakeHistory({key: value for name in names for key, value in series(name, a=lambda _: "1").items()})
    history, running, most = history_of(fake, ("a",)), 0, 0

    async def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return fake.answer(request)

    history._connection.http = httpx2.AsyncClient(base_url=URL, transport=httpx2.MockTransport(answer))
    matrices = asyncio.run(history.read([request_of(name) for name in names], TimeGrid(START, 60.0, 3)))
    assert [matrices[name].values.tolist() for name in names] == [[[10**9]] * 3] * 20
    assert most == 4


def test_a_query_that_is_invalid_is_not_repeated() -> None:
    fake = FakeHistory({})
    fake.answer = lambda _: _error()  # type: ignore[method-assign,assignment]
    with pytest.raises(BadInput, match="parse error"):
        read(fake, 4)


def _error():
    return httpx2.Response(400, json={"status": "error", "errorType": "bad_data", "error": "parse error"})


@pytest.mark.parametrize(
    ("aggregate", "values", "states"),
    [
        ("", [1, 0, 0, 4], [FRESH, INVALID, INVALID, FRESH]),
        ("max", [1, 9, 2, 4], [FRESH] * 4),
        ("min", [1, 2, 2, 4], [FRESH] * 4),
        ("sum", [2, 11, 0, 4], [FRESH, FRESH, INVALID, FRESH]),
        ("avg", [1, 5.5, 0, 4], [FRESH, FRESH, INVALID, FRESH]),
    ],
)
def test_several_series_of_a_node(aggregate: str, values: list[float], states: list[int]) -> None:
    first, second = ["1", "2", "2", "4"], ["1", "9", "NaN", None]
    fake = FakeHistory(
        {
            (("__name__", "temp"), ("instance", "a"), ("cpu", "0")): lambda at: first[minute(at)],
            (("__name__", "temp"), ("instance", "a"), ("cpu", "1")): lambda at: second[minute(at)],
        }
    )
    matrix, _ = read(fake, 4, aggregate)
    assert matrix.states[:, 0].tolist() == states
    assert matrix.values[:, 0].tolist() == [round(value * 10**9) for value in values]
    # again without series that have ended
    assert fake.queries[-1]["query"] == 'last_over_time({__name__="temp"}[60s]) and {__name__="temp"}'


def exporters(**labels: str) -> FakeHistory:
    """Two exporters that report a value of node a for 6 minutes, the second one not in the first minute."""
    first, second = ["82", "83", "85", "90.5", "7e+10", "84"], [None, "91", "85", "81", "85", "NaN"]
    own = [("__name__", "temp"), ("instance", "a")]
    return FakeHistory(
        {
            (*own, ("job", "left"), *labels.items()): lambda at: first[minute(at)],
            (*own, ("job", "right")): lambda at: second[minute(at)],
        }
    )


def ranges(matrix: NodeMatrix) -> list[tuple[int, int, float, float]]:
    """Step, node, lowest and highest value."""
    own = matrix.differing
    columns = (own.steps, own.nodes, own.lowest / 10**9, own.highest / 10**9)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("most_points", [11_000, 4], ids=["at once", "in halves"])
def test_values_that_differ_are_kept_for_rules_that_all_of_them_meet(most_points: int) -> None:
    fake = exporters()
    fake.most_points = most_points
    matrix, _ = read(fake, 6)
    assert matrix.states[:, 0].tolist() == [FRESH, INVALID, FRESH, INVALID, INVALID, INVALID]
    assert ranges(matrix) == [(1, 0, 83.0, 91.0), (3, 0, 81.0, 90.5)]
    assert ranges(matrix.since(2)) == [(1, 0, 81.0, 90.5)]
    assert ranges(read(exporters(), 6, "max")[0]) == []


@pytest.mark.parametrize("aggregate", ["", "max", "avg"])
def test_values_of_two_clusters_differ_while_both_have_series(aggregate: str) -> None:
    matrix, _ = read(exporters(cluster="east"), 6, aggregate)
    assert matrix.states[:, 0].tolist() == [FRESH] + [INVALID] * 5
    assert ranges(matrix) == [(1, 0, 83.0, 91.0), (2, 0, 85.0, 85.0), (3, 0, 81.0, 90.5)]
    assert ranges(read(exporters(cluster="east"), 6, "sum")[0]) == []


def test_nan_after_a_value_is_a_missed_scrape_until_the_value_is_too_old() -> None:
    texts = ["41", "NaN", "NaN", "NaN", "NaN", "42", "NaN", None, "NaN"]
    fake = FakeHistory(series("temp", a=lambda at: texts[round((at - START) / 20)]))
    history = history_of(fake, ("a", "b"))
    [matrix] = asyncio.run(history.read([request_of("temp")], TimeGrid(START, 20.0, 9))).values()
    held = [41, 41, 41, 0, 0, 42, 42, 0, 0]
    assert matrix.values[:, 0].tolist() == [value * 10**9 for value in held]
    assert matrix.states[:, 0].tolist() == [FRESH] * 3 + [INVALID] * 2 + [FRESH] * 2 + [MISSING, INVALID]


def test_nan_of_an_expression_is_invalid() -> None:
    texts = ["41", "NaN"]
    fake = FakeHistory(series("temp", a=lambda at: texts[round((at - START) / 20)]))
    history = history_of(fake, ("a", "b"))
    request = request_of("temp")._replace(query="temp / 2")
    [matrix] = asyncio.run(history.read([request], TimeGrid(START, 20.0, 2))).values()
    assert matrix.states[:, 0].tolist() == [FRESH, INVALID]


def test_each_query_is_for_a_complete_and_current_answer() -> None:
    fake = FakeHistory(series("temp", a=lambda _: "1"))
    _, history = read(fake, 2)
    asyncio.run(history.clock())
    asyncio.run(history.series("kube_pod_start_time"))
    names = ("nocache", "latency_offset", "partial_response", "deny_partial_response")
    assert [tuple(query[name] for name in names) for query in fake.queries] == [
        ("1", "1ms", "false", "1")
    ] * 3


def test_series_of_other_nodes_are_named() -> None:
    fake = FakeHistory(series("temp", a=lambda _: "1", gone=lambda _: "2"))
    _, history = read(fake, 2)
    assert history.unmatched == {"gone:9100"}


def test_the_parts_are_small_for_many_nodes_and_never_beyond_the_limit_of_prometheus() -> None:
    names = tuple(f"n{number}" for number in range(5000))
    assert history_of(FakeHistory({}), names).steps_per_part == 50
    assert history_of(FakeHistory({}), ("a",)).steps_per_part < prometheus_history.MAX_POINTS_PER_SERIES


def test_pods_that_started() -> None:
    def of(metric: str, value: str, **labels: str) -> dict[str, object]:
        return {"metric": {"namespace": "web", "pod": "w", **labels}, "value": [1.0, value]}

    fake = FakeHistory({})
    fake.instant = {
        "kube_pod_start_time": [of("", "1699000100", uid="u1"), of("", "1699000050", pod="x", uid="u2")],
        "kube_pod_info": [of("", "1", uid="u1", node="a", created_by_kind="DaemonSet")],
        "kube_pod_labels": [of("", "1", uid="u1", label_app_kubernetes_io_name="web")],
    }
    pods = asyncio.run(prometheus_history.read_pod_starts(history_of(fake, ("a",)), 3600.0))
    expected = [("x", 1699000050.0, "", ""), ("w", 1699000100.0, "a", "DaemonSet")]
    assert [(pod.name, pod.started_at, pod.node, pod.owner_kind) for pod in pods] == expected
    assert [pod.labels for pod in pods] == [{}, {"app_kubernetes_io_name": "web"}]


def test_the_clock_is_that_of_prometheus() -> None:
    fake = FakeHistory({})
    assert asyncio.run(history_of(fake, ("a",)).clock()) == fake.now


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], "no result"), (["NaN"], "'NaN'"), (["x"], "'x'"), (["1e99"], "'1e99'"), (["5", "6"], "'5', '6'")],
)
def test_a_server_that_does_not_return_its_time_is_no_prometheus(values: list[str], expected: str) -> None:
    class OtherServer(FakeHistory):
        def _instant(self, query: str) -> list[dict[str, object]]:
            return [{"metric": {"n": str(at)}, "value": [1.0, text]} for at, text in enumerate(values)]

    with pytest.raises(Unavailable) as raised:
        asyncio.run(history_of(OtherServer({}), ("a",)).clock())
    [problem] = raised.value.problems
    assert problem.found.strip() == expected
    assert "the time, as Prometheus returns it" in problem.expected


@pytest.mark.parametrize("most_points", [11_000, 2])
def test_values_of_devices_have_a_column_for_each_device_of_any_part(most_points: int) -> None:
    fake = FakeHistory(
        {
            (("UUID", "G1"), ("__name__", "temp"), ("instance", "a:9100")): lambda _: "50",
            (("UUID", "G2"), ("__name__", "temp"), ("instance", "a:9100")): lambda at: (
                "7" if minute(at) > 3 else None
            ),
            (("UUID", "G1"), ("__name__", "temp"), ("instance", "gone:9100")): lambda at: (
                "9" if minute(at) < 1 else None
            ),
            (("__name__", "temp"), ("instance", "b:9100")): lambda _: "1",
        },
        most_points,
    )
    request = request_of("temp")._replace(device_label="UUID")
    history = history_of(fake, ("a", "b"))
    [matrix] = asyncio.run(history.read([request], TimeGrid(START, 60.0, 5))).values()
    assert matrix.devices == ("a/G1", "a/G2", "gone/G1")
    present = matrix.states == FRESH
    assert present.tolist() == [[True, False, True], *[[True, False, False]] * 3, [True, True, False]]
    assert (matrix.values[4] // 10**9).tolist() == [50, 7, 0]
    assert history.unmatched == {"a series without UUID"}


def test_grid() -> None:
    grid = TimeGrid(START, 60.0, 5)
    assert np.array_equal(grid.times, START + 60.0 * np.arange(5))
    assert (grid.part(3, 5).start, grid.part(3, 5).steps, grid.end) == (START + 180, 2, START + 240)
