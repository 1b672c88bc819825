"""The scheduler's protocol: what kube-scheduler sends, who is asked about it, and what it is told.

`app` serves the routes; a request goes through `answering`: `wire` (bytes to values) -> `chain` (each agent in turn,
one frozen snapshot) -> `decision` (reasons) -> `wire` (values to bytes). `snapshot_cache` keeps it. `report` tells a
decision as a document, `ledger` (as `arrays`) gives away those that are kept, `explaining` tells how an attempt ended,
`redeciding` what would have changed it (`thresholds`: at which targets). `recording` keeps what came in and went out
(`deltas`: worlds as entries, `tape`: the file). Nothing here knows what any agent decides by.
"""
