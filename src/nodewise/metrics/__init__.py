"""Node metrics: values of nodes with their time and source.

A source (`custom_metrics_api`, `resource_metrics_api`, `prometheus`, `metric_files`) fetches one metric as a `series`.
`source_selection` selects the source of each metric, `refresher` fetches the metrics that policies name, each
independently, and `metrics_snapshot` contains the newest series of each. `aggregation` reduces several values of a node
to one, and `node_attributes` contains the names, addresses and allocatable resources of nodes.

The package is independent of policies and pods. A missing value is never represented by a number.
"""
