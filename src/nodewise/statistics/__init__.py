"""What the scoring agents and the annotator share: node statistics, pod requests, and what is done without them.

| file | what lives there |
|---|---|
| `annotations.py` | the annotations of nodes that carry statistics, and how their texts are read |
| `amounts.py` | quantities as whole milli or whole units |
| `capacity.py` | what pods can have of a node |
| `requests.py` | what a pod asks for |
| `queries.py` | what Prometheus is asked for, and the settings of all this |
| `load.py` | how much of each node is used, from annotations or from metrics |
| `missing.py` | what is done with a node without statistics |

Arrays are by node number, one longer than the index; what is not known is NaN, and never 0.
"""
