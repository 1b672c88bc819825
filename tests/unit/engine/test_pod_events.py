import numpy as np

from nodewise.agent import Evidence, Names, Verdict
from nodewise.engine.decision import Decision, PodEventRecorder, PodRef
from tests.unit.extender.test_wire_format import TextReason

NANO = 10**9


def decision(codes: list[int], verb: str = "filter", values: tuple[int, ...] = (81, 97)) -> Decision:
    evidence = Evidence(
        "heat",
        "GreaterThan",
        80 * NANO,
        np.array(values) * NANO,
        np.zeros(len(values), np.uint8),
        np.zeros(len(values)),
    )
    verdict = Verdict(np.array(codes, np.int16), (TextReason("heat GreaterThan 80"),), (evidence,))
    names = Names.of([f"n{i}" for i in range(len(codes))])
    return Decision(verb, PodRef("d", "p", "u"), 0.0, 1, names, (("telemetry", verdict),))  # type: ignore[arg-type]


class FakeRecorder:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def record(self, about: object, kind: str, reason: str, note: str, action: str) -> None:
        self.notes.append(note)


def test_an_event_has_the_reasons_without_measured_values() -> None:
    recorder = FakeRecorder()
    PodEventRecorder(recorder)(decision([1, 1]))  # type: ignore[arg-type]
    assert recorder.notes == ["none of 2 candidates passes: 2 heat GreaterThan 80"]


def test_no_event_while_a_node_passes_or_for_other_verbs() -> None:
    recorder = FakeRecorder()
    record_events = PodEventRecorder(recorder)  # type: ignore[arg-type]
    record_events(decision([1, 0]))
    record_events(decision([1, 1], verb="preempt"))
    record_events(Decision("filter", PodRef("d", "p"), 0.0, 1, Names.of([])))
    assert recorder.notes == []


def test_an_event_has_the_reason_of_a_failed_bind() -> None:
    recorder = FakeRecorder()
    record_events = PodEventRecorder(recorder)  # type: ignore[arg-type]
    record_events(decision([1], verb="bind"))
    record_events(Decision("bind", PodRef("d", "p"), 0.0, 1, Names.of(["n0"]), description="main: card0"))
    assert recorder.notes == ["not bound to n0: heat GreaterThan 80"]
