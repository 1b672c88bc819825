"""`nodewise cpu validate` without the rights to examine a node."""

from typing import Any

from nodewise.base.errors import Refused
from nodewise_cpu.cluster import node_validation
from nodewise_cpu.cluster.node_validation import ValidationTarget


class RefusingClient:
    """Refuses to list pods."""

    def get(self, path: str, params: dict[str, str] | None = None) -> Any:
        assert params is not None
        raise Refused(f"get {path}: forbidden")


def test_pods_that_cannot_be_listed_are_no_success() -> None:
    checks = node_validation.check_tasks_and_collector(
        RefusingClient(), None, ValidationTarget("n1", "default")
    )  # type: ignore[arg-type]
    assert [(check.name, check.ok, check.remedy) for check in checks] == [
        ("agent", False, "the right to list pods")
    ]
