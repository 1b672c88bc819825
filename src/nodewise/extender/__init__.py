"""The protocol of scheduler extenders: requests of kube-scheduler, the agents that answer them, the decisions.

A request goes through `routes`, `request_handler`, `wire_format` (bytes to values: `request_limits`,
`lenient_decoder`),
`agent_chain` (each agent in order, with one frozen snapshot), `decision` (verdicts with reasons) and back
through `wire_format`
(values to bytes: `node_name_json`). `snapshot_cache` makes the snapshots. `decision_document` prints a
decision as a document,
`decision_endpoint` serves the decisions that are kept (`decision_codec`), `attempt_explanation` says how an
attempt ended, `counterfactuals`
what would have changed it (`counterfactual_targets`). `recording` writes what came in and went out
(`recording_deltas`, `recording_file`). Nothing here
knows how an agent decides.
"""
