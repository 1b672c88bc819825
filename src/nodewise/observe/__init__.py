"""What an operator sees of us: log lines and Prometheus metrics.

`log_events` is the table of every log event, `metrics` that of every metric; `logs` and `meters` emit what stands there
and nothing else; the reference page is printed from both. Nothing here knows what the program does.
"""
