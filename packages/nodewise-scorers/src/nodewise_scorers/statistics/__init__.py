"""Node statistics and pod requests that the scoring agents and the annotator share.

| module | content |
|---|---|
| `load_annotations.py` | the annotations of nodes that carry statistics, and the allocatable resources of nodes |
| `prometheus_load_queries.py` | Prometheus queries and the settings of statistics |
| `node_usage_reader.py` | the usage of all nodes, from annotations or from metrics |
| `missing_statistics.py` | the treatment of nodes without statistics |

Arrays are by node number and one longer than the index; unknown values are NaN, never 0.
"""
