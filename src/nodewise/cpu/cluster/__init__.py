"""What of the CPU manager is in the API server.

| file | what lives there |
|---|---|
| `blocking.py` | the API server, one call after the other |
| `versions.py` | what an API server of a certain version understands |
| `advertise.py` | how many cores a node says it has, its label and its taint |
| `reports.py` | reports of nodes, and the definitions of their kinds |
| `validating.py`, `trial.py` | whether a node is as it should be, and what to do; a pod that is only tried |
| `objects.py`, `pods.py` | the pods by which nodes are prepared, and how far they are |
| `applying.py` | objects of the cluster made what they should be |
| `setup.py`, `fleet.py`, `removal.py` | nodes prepared, given other pools, and left |
"""
