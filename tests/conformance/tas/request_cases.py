"""The requests of the tables' rows: one case for each row and form.

A case is one request about one cluster. Its tag is the namespace of its objects and the prefix of its metrics, so
that cases do not affect each other. `own` replaces both in a response.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.conformance.tas import case_table_rows
from tests.conformance.tas.case_table_rows import (
    ExpectedResponse,
    ExtenderRequestRow,
    Form,
    HttpCall,
    OperatorRow,
    OperatorTable,
    RequestRow,
    RequestTable,
    RowCluster,
    ViolationRow,
    ViolationTable,
)


class TasCase(NamedTuple):
    """One request about one cluster."""

    row: RequestRow
    tag: str
    path: str
    form: Form

    def __str__(self) -> str:
        form = f" ({self.form})" if self.row.ask and self.form != "as sent" else ""
        return f"{self.row.number} {self.row.name}{form}"

    def own(self, text: bytes) -> bytes:
        """A response with the names of the table."""
        tag = self.tag.encode()
        return text.replace(tag + b"_", b"").replace(tag + b"/", b"d/")


def filtering() -> list[TasCase]:
    return _cases("filter")


def prioritizing() -> list[TasCase]:
    return _cases("prioritize")


def http() -> list[TasCase]:
    return _cases("http")


def operators() -> list[TasCase]:
    table = case_table_rows.read("operators", OperatorTable)
    return list(_numbered((made for row in table.rows for made in _operator_rows(row)), HttpCall().path))


def violations() -> list[TasCase]:
    table = case_table_rows.read("violations", ViolationTable)
    return list(_numbered((made for row in table.rows for made in _violation_rows(row)), HttpCall().path))


def all_cases() -> list[TasCase]:
    return [*filtering(), *prioritizing(), *operators(), *violations(), *http()]


def _cases(name: str) -> list[TasCase]:
    table = case_table_rows.read(name, RequestTable)
    return list(_numbered(table.rows, table.path))


def _numbered(rows: Iterable[RequestRow], path: str) -> Iterator[TasCase]:
    """A case for each form of each row. The tags of rows with the same number differ by their position."""
    seen: dict[str, int] = {}
    for row in rows:
        seen[row.number] = place = seen.get(row.number, 0) + 1
        for form in _forms(row.ask):
            yield TasCase(row, f"{row.number.lower()}-{place}", row.call.path if row.call else path, form)


def _forms(ask: ExtenderRequestRow | None) -> tuple[Form, ...]:
    return ask.forms if ask and ask.body is None and not ask.node_list else ("as sent",)


def _operator_rows(row: OperatorRow) -> Iterator[RequestRow]:
    """A row for each rule: a filter request for one node and a policy with this rule."""
    values = {"n1": row.value}
    if row.value is None:
        values["n2"] = "1"  # a metric without a value on any node counts as never fetched
    for rule in (*row.breaks, *row.keeps):
        whole = f"m {rule}" if isinstance(rule, str) else {"metricname": "m", **rule}
        broken = {"n1": f"telemetry policy d/rule: {row.reason or whole}"} if rule in row.breaks else {}
        yield RequestRow(
            number=row.number,
            name=f"{row.name}: {row.value} {rule}",
            cluster_state=RowCluster(metrics={"m": values}, policies={"rule": {"dontschedule": [whole]}}),
            ask=ExtenderRequestRow(policy="rule", nodes=("n1",)),
            expect=ExpectedResponse(kept=() if broken else ("n1",), failed=broken, logged=row.logged),
            differs=row.differs,
        )


_NODES = ("node-1", "node-2")
_LOGICAL: dict[str, dict[str, str]] = {
    "no logical operator": {},
    "an empty one": {"logicalOperator": ""},
    "anyOf": {"logicalOperator": "anyOf"},
    "allOf": {"logicalOperator": "allOf"},
}


def _violation_rows(row: ViolationRow) -> Iterator[RequestRow]:
    """A row for each form of the logical operator."""
    for how, rules in _LOGICAL.items():
        reasons = row.all if how == "allOf" else row.any
        yield RequestRow(
            number=row.number,
            name=f"{row.name}: {how}",
            cluster_state=RowCluster(
                metrics={"memory": {"node-1": "10"}, "cpu": {"node-1": "200"}},
                policies={"pol": {"dontschedule": {**rules, "rules": list(row.rules)}}},
                nodes=("node-2",),
            ),
            ask=ExtenderRequestRow(policy="pol", nodes=_NODES),
            expect=ExpectedResponse(
                kept=tuple(node for node in _NODES if node not in reasons),
                failed={node: f"telemetry policy d/pol: {reason}" for node, reason in reasons.items()},
            ),
            differs=row.differs,
        )
