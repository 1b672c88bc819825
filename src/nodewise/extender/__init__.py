"""The scheduler's protocol: what kube-scheduler sends, who is asked about it, and what it is told.

`app` names the routes; a request goes `wire` (bytes to values) -> `chain` (each agent in turn, one frozen View)
-> `decision` (kept, with reasons) -> `wire` (values to bytes). `world` keeps the View. `report` tells a decision as
a document. Nothing here knows what any agent decides by.
"""
