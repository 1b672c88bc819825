"""What runs on a node and touches it.

| file | what lives there |
|---|---|
| `isolate.py`, `arguments.py`, `running.py`, `affinity.py` | the wrapper of workloads: its command line, its command, its own affinity |
| `client.py`, `direct.py`, `inside.py` | where it claims CPUs: of the agent, or of the state itself |
| `files.py`, `journal.py`, `configmaps.py` | the state in a directory, and in a ConfigMap |
| `machine.py`, `founding.py`, `node_report.py` | the machine; its first pools; what it is and has |
| `sweeping.py`, `telling.py` | what is over taken out of the state, and told |
| `threads.py`, `families.py`, `moving.py` | where threads run; tasks moved with all that they started; other pools under them |
| `agent.py`, `claiming.py`, `reclaiming.py`, `reconfiguring.py`, `chores.py` | the node agent: what it answers, and what it does by itself |
| `listening.py`, `doorway.py`, `turns.py`, `peers.py`, `requested.py`, `probing.py` | its socket, who asks there, what they may have; its admin port |
| `enforcing.py`, `confinement.py`, `containers.py`, `residents.py` | containers held to their tasks' CPUs, through the container runtime |
| `kubelet.py`, `feature.py` | the kubelet's own managers; what Node Feature Discovery is told |
| `packaging.py`, `relocating.py`, `installing.py` | the program without dependencies, built and put on hosts |
"""
