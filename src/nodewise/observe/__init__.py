"""What an operator sees of us: log lines and Prometheus metrics.

`catalogue` is the one table of every event and every metric; `logs` and `meters` emit what stands there and
nothing else; the reference page is printed from it. Nothing here knows what the program does.
"""
