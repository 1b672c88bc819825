"""Node statistics and pod requests that the scoring agents and the annotator share.

| module | content |
|---|---|
| `load_annotations.py` | the annotations of nodes that carry statistics, and the parsing of their texts |
| `integer_quantities.py` | quantities as whole milli-units or whole units |
| `node_capacity.py` | the allocatable resources of nodes |
| `pod_requests.py` | the requests of pods, and which pods hold them |
| `prometheus_load_queries.py` | Prometheus queries and the settings of statistics |
| `node_usage_reader.py` | the usage of all nodes, from annotations or from metrics |
| `missing_statistics.py` | the treatment of nodes without statistics |

Arrays are by node number and one longer than the index; unknown values are NaN, never 0.
"""
