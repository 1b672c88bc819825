"""Node metrics: what is measured on each node, when, and by whom.

A source (`custom_metrics_api`, `resource_metrics_api`, `prometheus`, `metric_files`) fetches one metric as a
`series`; `source_selection` chooses among
several; `metrics_snapshot` keeps the newest of each; `refresher` asks for what policies name, each metric on its own;
`aggregation` reduces several values of a node to one; `column` lays a series out by node number for arithmetic.
`node_attributes` is what sources know of nodes.
Nothing here knows a policy, a threshold or a pod. A value that is not there is never a number.
"""
