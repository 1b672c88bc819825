"""Node statistics and pod requests that the scoring agents and the annotator share.

| module | content |
|---|---|
| `annotations.py` | the annotations of nodes that carry statistics, and the parsing of their texts |
| `amounts.py` | quantities as whole milli-units or whole units |
| `capacity.py` | the allocatable resources of nodes |
| `requests.py` | the requests of pods, and which pods hold them |
| `queries.py` | Prometheus queries and the settings of statistics |
| `load.py` | the usage of all nodes, from annotations or from metrics |
| `missing.py` | the treatment of nodes without statistics |

Arrays are by node number and one longer than the index; unknown values are NaN, never 0.
"""
