"""Prometheus, or a server with its HTTP API (Thanos, Mimir, VictoriaMetrics), as a source of node metrics.

`source` implements `MetricsSource`, and `history` reads the past. `prometheus_connection` and `client` do I/O: TLS,
credentials and calls. The other modules are pure: `queries` builds PromQL, `query_responses` decodes responses,
`series_labels` and `series_owners` match series to nodes, `node_matching` groups and reduces them, `range_samples`
decodes ranges, and `range_matrix` range queries.
"""
