"""Prometheus, or a server with its HTTP API (Thanos, Mimir, VictoriaMetrics), as a source of node metrics.

`source` implements `MetricsSource` and builds PromQL, and `history` reads the past. `client` does I/O: TLS, credentials
and calls. The other modules are pure: `query_responses` decodes responses, `node_matching` matches series to nodes,
groups and reduces them, and `range_matrix` decodes ranges.
"""
