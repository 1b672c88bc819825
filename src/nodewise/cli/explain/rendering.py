"""Rendering of an explanation as text and tables. Nothing is computed here."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import click

from nodewise import clock, quantity
from nodewise.cli import agent_values, tables, terminal
from nodewise.cli.explain import explanation as stories
from nodewise.cli.explain import missing_decision
from nodewise.cli.explain.explanation import Story
from nodewise.extender import decision_document
from nodewise.extender.attempt_explanation import Explanation, Finding, Measured
from nodewise.extender.counterfactuals import Change
from nodewise.extender.decision import Decision

FEW: Final = 20
"""So many nodes are shown one by one; of more, those that matter."""
_CLOSEST: Final = 3
_DETAILS: Final = "DETAILS"
_MADE_OF: Final = "MADE OF"
_OFTEN_EMPTY: Final = (_DETAILS, _MADE_OF)
"""Columns that are shown where there is anything in them."""


def text(story: Story, *, every_node: bool) -> None:
    """A few lines: what came of it, the nodes or their groups, and what would have changed it."""
    if story.explanation is None:
        terminal.say(f"{story.pod}: {_count(len(story.answers), 'replica')} asked, none knows a decision")
        _say(f"  {reason}" for reason in missing_decision.reasons(story.seen, story.answers))
        return
    findings = story.explanation.findings
    _say(_heading(story))
    _warn(story)
    if every_node or (len(findings) <= FEW and not _nobody_could_say(story.explanation)):
        rows = [
            [
                node.node,
                _score(node),
                agent_values.parts(node.parts) or "-",
                _values(node),
                _details(node) or "-",
                _why(node),
            ]
            for node in findings
        ]
        head = ("NODE", "SCORE", _MADE_OF, "MEASURED", _DETAILS, "REJECTED")
        tables.show(*tables.without(_OFTEN_EMPTY, head, rows))
    else:
        _tell_groups(story.explanation)
    _say(_ending(story.explanation))


def wide(story: Story, *, every_node: bool) -> None:
    """A row a node and rule: value, age, threshold. Of many nodes the best and those closest to passing."""
    if story.explanation is None or (not every_node and _nobody_could_say(story.explanation)):
        text(story, every_node=every_node)
        return
    findings = story.explanation.findings
    shown = findings if every_node or len(findings) <= FEW else _telling(findings)
    _say(_heading(story))
    _warn(story)
    rows = (row for node in shown for row in _rows(node))
    tables.show(("NODE", "VERDICT", "SCORE", "RULE", "VALUE", "AGE", "REJECTS"), rows)
    if len(shown) < len(findings):
        click.echo(f"{len(findings) - len(shown):,} more nodes: --nodes shows all")
    _say(_ending(story.explanation))


def _nobody_could_say(explanation: Explanation) -> bool:
    """Whether the nodes are all rejected for a reason that is none of theirs, so that one line says it all."""
    return bool(explanation.groups) and explanation.groups[0].reason.is_failure


def _warn(story: Story) -> None:
    warning = stories.warning(story)
    if warning:
        terminal.say(f"Warning: {warning}")


def _say(lines: Iterator[str]) -> None:
    for line in lines:
        terminal.say(line)


def _heading(story: Story) -> Iterator[str]:
    """What came of it, when, and what kube-scheduler says itself."""
    assert story.explanation is not None
    judged = story.explanation.attempt.judged
    total, passing = len(judged.names), int(judged.kept().sum())
    yield f"{story.pod} {_place(story)}: {_of(passing, total)}"
    known = f"; {story.tries} attempts since {story.since}" if story.tries > 1 else ""
    yield f"last attempt {clock.format_rfc3339(judged.at)}, {age(max(story.now - judged.at, 0.0))} ago{known}"
    yield from _remarks(story, judged)
    yield ""


def _place(story: Story) -> str:
    state = story.seen.state
    if state is None:
        return "is gone by now" if story.seen.gone else "at its last attempt"
    return f"is on {state.node}" if state.node else "waits"


def _of(passing: int, total: int) -> str:
    """How the attempt ended, of the nodes that kube-scheduler asked about."""
    if total == 1:
        return f"the one node asked about {'passes' if passing else 'is rejected'}"
    many = "all" if passing == total else f"{passing:,}" if passing else "none"
    return f"{many} of the {total:,} nodes asked about {'pass' if passing > 1 else 'passes'}"


def _remarks(story: Story, judged: Decision) -> Iterator[str]:
    state = story.seen.state
    if state and state.message:
        yield f"kube-scheduler: {state.message}"
    if state and state.uid and judged.pod.uid not in {"", state.uid}:
        yield "this attempt was about an earlier pod of that name"
    elif state and state.node:
        yield _chosen(story, state.node)
    preempted = story.explanation.attempt.preempted if story.explanation else None
    if preempted is not None:
        left, total = int(preempted.kept().sum()), len(preempted.names)
        yield f"of {_count(total, 'node')} where pods could be evicted for it, {left} would pass then"


def _end(bound: Decision) -> str:
    """What came of the bind."""
    node = bound.names[0]
    refused = decision_document.rejected(bound).get(node)
    if refused:
        return f"kube-scheduler chose {node}, and the bind failed: {refused[0]['reason']}"
    return f"kube-scheduler chose {node}; bound" + (f", with {bound.told}" if bound.told else "")


def _chosen(story: Story, node: str) -> str:
    """Why the pod is on this node, as far as it is our doing."""
    assert story.explanation is not None
    findings = story.explanation.findings
    own = next((finding for finding in findings if finding.node == node), None)
    if own is None:
        return f"kube-scheduler did not ask about {node} then: somebody else, or an earlier attempt, placed the pod"
    if own.reasons:
        return (
            f"{node} was rejected and the pod is there all the same: another scheduler placed it, or an entry "
            "with ignorable: true did while nodewise did not answer"
        )
    if own.score is None:
        return f"{node} passes; no scores were asked for or given"
    best = max(node.score or 0 for node in findings)
    if own.score == best:
        return f"{node} passes and has the best score, {best}"
    return (
        f"{node} passes with the score {own.score}, others have up to {best}: kube-scheduler adds its own scores; "
        "a larger weight of the extender's entry makes ours count more"
    )


def _tell_groups(explanation: Explanation) -> None:
    passing = [node for node in explanation.findings if not node.reasons]
    rows = [
        [f"{len(group.nodes):,}", group.reason.text(), _named(group.nodes, rejecting=True)]
        for group in explanation.groups
    ]
    if passing:
        rows.insert(0, [f"{len(passing):,}", "pass", _named(passing, rejecting=False)])
    tables.show(("NODES", "VERDICT", "BEST, OR CLOSEST TO PASSING"), rows)


def _named(nodes: Sequence[Finding], *, rejecting: bool) -> str:
    """The first few, each with its score and what was measured there."""
    texts = []
    for node in nodes[:_CLOSEST]:
        score = "" if node.score is None else f"score {node.score}"
        text_of_node = ", ".join(filter(None, (score, _values(node, rejecting=rejecting), _details(node))))
        texts.append(f"{node.node}: {text_of_node}" if text_of_node not in {"", "-"} else node.node)
    return "; ".join([*texts, *(["…"] if len(nodes) > _CLOSEST else [])])


def _telling(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Half of the few for those that pass, the rest for those that come closest."""
    passing = [node for node in findings if not node.reasons]
    best = passing[: max(FEW // 2, FEW - (len(findings) - len(passing)))]
    return [*best, *findings[len(passing) : len(passing) + FEW - len(best)]]


def _rows(node: Finding) -> Iterator[list[str]]:
    """The node's own row carries its first rule; the others follow without its name."""
    head = [node.node, "rejected" if node.reasons else "passes", _score(node)]
    rules = [
        [_rule(m), _value(m), _age(m), "yes" if m.rejects else "no" if m.target is not None else "-"]
        for m in node.measured
    ]
    if not rules:
        text = "; ".join(filter(None, (*(reason.text() for _, reason in node.reasons), _details(node))))
        rules = [[text or "-", "-", "-", "-"]]
    elif node.details:
        rules.append([_details(node), "-", "-", "-"])
    besides = filter(None, (agent_values.parts(node.parts), agent_values.numbers(node.numbers)))
    rules += [[text, "-", "-", "-"] for text in besides]
    for number, rule in enumerate(rules):
        yield [*(head if not number else ["", "", ""]), *rule]


def _score(node: Finding) -> str:
    return "-" if node.score is None else str(node.score)


def _values(node: Finding, *, rejecting: bool = False) -> str:
    """`heat 81.5 (4s), power 300 (4s)`; each value once. `rejecting`: those that speak against the node."""
    texts: dict[str, None] = {}
    for measured in node.measured:
        if measured.rejects or not rejecting:
            old = f" ({_age(measured)} old)" if measured.age_s is not None else ""
            texts[f"{measured.metric} {_value(measured)}{old}"] = None
    return ", ".join(texts) or ("" if rejecting else "-")


def _value(measured: Measured) -> str:
    state = measured.state.name.lower()
    if measured.value is None:
        return state
    shown = quantity.to_text(measured.value)
    return f"{shown} {state}" if state == "stale" else shown


def _age(measured: Measured) -> str:
    return "-" if measured.age_s is None else age(measured.age_s)


def _rule(measured: Measured) -> str:
    if measured.target is None:
        return f"{measured.metric} {measured.operator} (ranks)"
    return f"{measured.metric} {measured.operator} {quantity.to_text(measured.target)}"


def _details(node: Finding) -> str:
    return "; ".join(text for _, text in node.details)


def _why(node: Finding) -> str:
    return "; ".join(reason.text() for _, reason in node.reasons) or "-"


def age(seconds: float) -> str:
    """`4.2s`, `3m20s`."""
    return clock.format_duration(round(seconds, 1) if seconds < 10 else round(seconds))  # noqa: PLR2004


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _ending(explanation: Explanation) -> Iterator[str]:
    """What came of the bind, or what would have changed it, and what somebody can do."""
    if explanation.attempt.bound is not None:
        yield ""
        yield _end(explanation.attempt.bound)
    lines = [*_changes(explanation.changes), *_remedies(explanation)]
    if lines:
        yield ""
        yield "What would have changed it:"
        yield from (f"  {line}" for line in dict.fromkeys(lines))


def _changes(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        rule = change.rule
        target = quantity.to_text(rule.target or 0)
        if change.relaxed:
            first, *rest = change.relaxed
            more = "".join(f", {relaxed.more:,} at {quantity.to_text(relaxed.target)}" for relaxed in rest)
            verb = "passes" if first.more == 1 else "pass"
            yield (
                f"{rule.metric} {rule.operator}: {_count(first.more, 'more node')} {verb} at "
                f"{quantity.to_text(first.target)} instead of {target}{more}"
            )
        elif change.alone:
            verb = "passes" if change.alone == 1 else "pass"
            yield f"without the rule {rule.metric} {rule.operator} {target}: {_count(change.alone, 'more node')} {verb}"
        if change.unmeasured:
            verb = "passes" if change.unmeasured == 1 else "pass"
            yield f"{rule.metric}: {_count(change.unmeasured, 'more node')} {verb} with when_missing: pass in the rule"


def _remedies(explanation: Explanation) -> Iterator[str]:
    for group in explanation.groups:
        if remedy := group.reason.remedy():
            yield f"{remedy} ({_count(len(group.nodes), 'node')})"
    if explanation.held:
        yield "a rule lost most of its values at once, and its verdicts of before hold: bring its metric back"
    if explanation.stuck:
        yield f"{_count(explanation.stuck, 'node')} would need more than one of these changes"


def _json(story: Story, *, every_node: bool) -> None:  # noqa: ARG001 - always all
    click.echo(decision_document.encode(stories.document(story)))


FORMS: Final[dict[str, Callable[..., None]]] = {"text": text, "wide": wide, "json": _json}
