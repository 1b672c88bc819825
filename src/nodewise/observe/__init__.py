"""Observability: log lines and Prometheus metrics.

`logs` has the table of all log events and `metrics_registry` the table of all metrics. They emit only what the tables
contain, and the reference page is generated from both. The package is independent of the rest of the program.
"""
