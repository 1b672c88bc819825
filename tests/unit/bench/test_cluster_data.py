"""The cluster of the benchmarks has the properties that the results document."""

import json

from bench import generated_cluster_objects

NAMES = generated_cluster_objects.names(200)


def test_two_rules_reject_half_of_the_nodes_whatever_answers_are_read():
    for hot_seed, errors_seed in ((0, 0), (3, 1)):
        hot = _values(generated_cluster_objects.TEMPERATURE, hot_seed)
        errors = _values(generated_cluster_objects.ERRORS, errors_seed)
        rejected = {name for name in NAMES if hot[name] > 80 or errors[name] > 0}
        assert len(rejected) == generated_cluster_objects.REJECTED_SHARE * len(NAMES)


def test_values_change_from_answer_to_answer():
    before, after = _values(generated_cluster_objects.POWER, 0), _values(generated_cluster_objects.POWER, 1)
    assert before.keys() == after.keys() == set(NAMES)
    assert all(before[name] != after[name] for name in NAMES)


def test_requests_name_all_nodes_each_in_another_order():
    requests = [json.loads(body) for body in generated_cluster_objects.requests(NAMES, 4)]
    assert len({tuple(request["NodeNames"]) for request in requests}) == 4
    assert all(sorted(request["NodeNames"]) == sorted(NAMES) for request in requests)
    assert {request["Pod"]["metadata"]["labels"]["telemetry-policy"] for request in requests} == {
        generated_cluster_objects.POLICY
    }


def test_policies_name_ten_metrics():
    rules = [
        rule
        for policy in generated_cluster_objects.policies()
        for strategy in policy["spec"]["strategies"].values()
        for rule in strategy["rules"]
    ]
    assert {rule["metricname"] for rule in rules} == set(generated_cluster_objects.METRICS)
    assert len(generated_cluster_objects.METRICS) == 10


def _values(metric: str, seed: int) -> dict[str, float]:
    items = json.loads(generated_cluster_objects.answer(metric, NAMES, seed))["items"]
    return {item["describedObject"]["name"]: _number(item["value"]) for item in items}


def _number(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
