"""The protocol of scheduler extenders: requests of kube-scheduler, the agents that answer them, the decisions.

A request goes through `routes`, `request_handler`, `wire` (bytes to values: `request_limits`, `lenient_decoder`),
`chain` (each agent in order, with one frozen snapshot), `decision` (verdicts with reasons) and back through `wire`
(values to bytes: `node_name_json`). `snapshot_cache` makes the snapshots. `report` prints a decision as a document,
`ledger` serves the decisions that are kept (`decision_codec`), `explaining` says how an attempt ended, `redeciding`
what would have changed it (`thresholds`). `recording` writes what came in and went out (`deltas`, `tape`). Nothing here
knows how an agent decides.
"""
