"""The node annotator writes the usage of nodes and the requests of their pods as annotations of nodes.

| module | content |
|---|---|
| `options.py` | settings |
| `node_requests.py` | the fields of nodes and pods that are read, and the pod requests of each node |
| `node_usage.py` | the usage of nodes from Prometheus or samples, and its annotations |
| `node_patches.py` | the annotations that have changed, and the burst of patches |
| `annotator.py` | measures, plans and writes once per period, also in the extender's leader |
| `leader_task.py` | the annotator as a task of the extender's leader |

Replaces kube-safe-scheduler's two annotators.
"""
