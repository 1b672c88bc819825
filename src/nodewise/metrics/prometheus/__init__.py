"""Prometheus, or a server with its HTTP API (Thanos, Mimir, VictoriaMetrics), as a source of node metrics.

`source` is what the refresher asks. Of the rest `prometheus_connection` and `client` touch the world (TLS,
credentials, calls);
`queries` (what to ask), `query_responses` (what came) and `node_matching` (whose it is) compute.
"""
