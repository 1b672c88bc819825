"""What runs on a node and touches it.

| file | what lives there |
|---|---|
| `isolate.py`, `arguments.py` | the wrapper of workloads, and its command line |
| `running.py`, `affinity.py` | its command, and where it runs itself |
| `client.py`, `direct.py`, `inside.py` | where it claims CPUs: of the agent, or of the state itself |
| `files.py`, `journal.py`, `configmaps.py` | the state in a directory, and in a ConfigMap |
| `machine.py`, `founding.py`, `node_report.py` | the machine, its first pools, what it is and has |
| `sweeping.py`, `telling.py` | what is over taken out of the state, and told |
| `threads.py`, `families.py`, `moving.py` | other pools under tasks, moved with all that they started |
| `agent.py`, `chores.py` | the node agent, and what it does by itself |
| `claiming.py`, `reclaiming.py`, `reconfiguring.py` | what it answers, and takes back |
| `listening.py`, `doorway.py`, `turns.py` | its socket |
| `peers.py`, `requested.py` | who asks there, and what they may have |
| `probing.py` | its admin port |
| `enforcing.py`, `confinement.py` | containers held to their tasks' CPUs |
| `containers.py`, `residents.py` | the container runtime, and which processes containers have |
| `kubelet.py`, `feature.py` | the kubelet's own managers, and what Node Feature Discovery is told |
| `packaging.py`, `relocating.py`, `installing.py` | the program without dependencies, built and put on hosts |
"""
