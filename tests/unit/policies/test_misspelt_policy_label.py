"""Label keys that are nearly the policy label; tests/cluster/test_policy_label_admission.py tries them on a
real API server."""

import pytest

from nodewise.policies.agent import find_misspelt_policy_label

MISSPELT = (
    *("telemetry-polcy", "telemetry-policyy", "telemetry-poilcy", "telemetri-policy", "elemetry-policy"),
    *("Telemetry-Policy", "telemetry_policy", "telemetrypolicy", "telemetry.policy", "telemetry-policies"),
    *("x/telemetry-policy", "telemetry.intel.com/telemetry-policy", "x.y/Telemetry_Polcy"),
)
OTHERS = (
    *("telemetry", "policy", "telemetry-pipeline", "telemetry-profile", "network-policy"),
    *("telemetry-policy.example.com/enabled", "telemetry-plcyy", "app"),
)


@pytest.mark.parametrize("key", MISSPELT)
def test_a_misspelt_key_is_found(key: str) -> None:
    assert find_misspelt_policy_label(["app", key]) == key


@pytest.mark.parametrize("key", OTHERS)
def test_another_key_is_none(key: str) -> None:
    assert find_misspelt_policy_label([key]) == ""


def test_a_pod_with_the_label_itself_has_no_misspelt_one() -> None:
    assert find_misspelt_policy_label(["telemetry-policy", "x/telemetry-policy"]) == ""
