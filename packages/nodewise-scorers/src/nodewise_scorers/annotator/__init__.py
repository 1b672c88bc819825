"""The node annotator writes the usage of nodes and the requests of their pods as annotations of nodes.

| module | content |
|---|---|
| `options.py` | settings |
| `node_pod_fields.py` | the fields of nodes and pods that are read |
| `node_usage.py` | node usage, the interface of its sources, and its annotations |
| `prometheus_usage.py` | usage statistics that Prometheus computes |
| `sampled_usage.py` | usage statistics of samples that the annotator takes |
| `sample_statistics.py` | mean, deviation and forecast of samples |
| `node_request_totals.py` | pod requests of each node, and their annotations |
| `patch_planning.py` | the annotations that have changed |
| `patch_writer.py` | writes a burst of patches |
| `annotator.py` | measures, plans and writes once per period |
| `controller.py` | runs the annotator in the extender's leader |

Replaces kube-safe-scheduler's two annotators. Only `patch_writer.py` and, through their sources,
`prometheus_usage.py` and `sampled_usage.py` do input and output.
"""
