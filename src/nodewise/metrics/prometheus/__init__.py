"""Prometheus, and whoever speaks its HTTP API (Thanos, Mimir, VictoriaMetrics), as a source of node metrics.

`source` is what the refresher asks. Of the rest `access` and `client` touch the world (TLS, credentials, calls);
`queries` (what to ask), `answers` (what came) and `matching` (whose it is) compute.
"""
