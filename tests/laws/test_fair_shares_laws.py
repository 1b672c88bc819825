"""Max-min fairness of `namespace_budgets.fair_shares`."""

from hypothesis import given
from hypothesis import strategies as st

from nodewise.agents.telemetry.namespace_budgets import fair_shares

REQUESTS = st.dictionaries(st.text(max_size=3), st.integers(0, 5000), max_size=20)
TOTALS = st.integers(0, 20_000)


@given(REQUESTS, TOTALS)
def test_shares_exceed_neither_the_total_nor_the_requests(requested: dict[str, int], total: int) -> None:
    shares = fair_shares(requested, total)
    assert shares.keys() == requested.keys()
    assert sum(shares.values()) <= total
    assert all(shares[name] <= amount for name, amount in requested.items())
    if sum(requested.values()) <= total:
        assert shares == requested


@given(REQUESTS, TOTALS)
def test_who_requests_no_more_than_an_equal_share_gets_it_all(requested: dict[str, int], total: int) -> None:
    shares = fair_shares(requested, total)
    for name, amount in requested.items():
        assert shares[name] >= min(amount, total // len(requested))
