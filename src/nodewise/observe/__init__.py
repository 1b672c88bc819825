"""Observability: log lines and Prometheus metrics.

`log_events` is the table of all log events and `metric_definitions` the table of all metrics. `logs` and
`metrics_registry` emit only what the tables contain, and the reference page is generated from both. The package is
independent of the rest of the program.
"""
