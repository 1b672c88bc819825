"""The CPU manager: pools of cores on a node, and who holds which of them.

| file | what lives there |
|---|---|
| `cpulist.py` | texts that name CPUs: the kernel's lists and masks, CMK's lists, `isolcpus=` |
| `topology.py` | sockets, NUMA nodes, cores and CPUs of a machine, from the texts of its files |
| `sysfs.py` | reads these files |
| `speed_select.py` | Intel SST-BF and SST-CP: which cores are faster, which matter more |
| `core_lists.py` | cores that somebody names |
| `pools.py` | which cores go to which pool |
| `state.py` | who holds what: pools, CPU lists, tasks |
| `claims.py` | which lists a task gets, and what it is told of them |
| `sweep.py` | which tasks are over |
| `procfs.py` | reads what processes there are |
| `cgroups.py` | which pod and container a process runs in |
| `reconfigure.py` | from the pools there are to others, under tasks that go on running |
| `configmap.py`, `directory.py` | the state as the texts of a ConfigMap, and as files |
| `book.py` | where the state is kept, whatever keeps it |
| `messages.py` | what `isolate` and the node agent say to each other |
| `requests.py`, `names.py` | the API server as a protocol, and the names that things have there |
| `store/` | the state in files or in a ConfigMap |
| `workload/` | `isolate`: what runs in workloads' containers |
| `node/` | the machine that the pools are on, its processes and its kubelet |
| `move/` | running tasks go to other CPUs |
| `confine/` | containers are held to the CPUs of their tasks |
| `agent/` | the node agent |
| `install/` | the program on hosts |
| `cluster/` | nodes that advertise cores, reports, set-up and removal, in the API server |
| `webhook/` | pods that ask for cores get what `isolate` needs |

What runs in workloads' containers has to start fast where there is no Python: every file here says in its
docstring whether it needs the standard library only.
"""
