"""Prometheus, or a server with its HTTP API (Thanos, Mimir, VictoriaMetrics), as a source of node metrics.

`source` implements `MetricsSource`. `prometheus_connection` and `client` do I/O: TLS, credentials and calls. The other
modules are pure: `queries` builds PromQL, `query_responses` decodes responses, `node_matching` matches series to nodes,
and `range_samples` decodes ranges.
"""
