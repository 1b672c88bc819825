"""The node annotator: what nodes use and what pods ask of them, as annotations of nodes, for agents that read these.

| file | what lives there |
|---|---|
| `options.py` | settings |
| `fields.py` | the fields of nodes and pods that are read |
| `measuring.py`, `measured.py` | who measures what nodes use, and what comes of it |
| `averages.py`, `sampling.py` | statistics of Prometheus, and of samples that we take |
| `samples.py`, `forecast.py` | samples made into statistics; what comes next |
| `usage.py` | what is free by what is used, as annotations |
| `allocation.py` | what pods ask for, and what that leaves, as annotations |
| `patches.py` | which annotations moved |
| `planning.py` | what is to be written of each node |
| `writing.py` | the burst of patches |
| `loop.py` | all that, once a period |
| `controller.py` | the same in the extender's leader |

Takes over from kube-safe-scheduler's two annotators. Only `writing.py`, and `averages.py` and
`sampling.py` through their sources, touch the world.
"""
