"""The CPU manager: pools of cores on a node, and the allocation of their CPU lists to tasks.

| file | content |
|---|---|
| `cpu_set_formats.py` | formats of CPU sets: the kernel's lists and masks, CMK's lists, `isolcpus=` |
| `topology.py` | sockets, NUMA nodes, cores and CPUs of a machine, from the texts of its files |
| `pool_planning.py` | the distribution of cores to pools, also by Intel SST-BF and SST-CP |
| `pool_allocations.py` | pools, CPU lists and the tasks on them |
| `allocator.py` | the choice of CPU lists for a task, and its environment |
| `allocation_store.py` | the interface of stores; `configmap_store.py` and `directory_store.py` implement it |
| `ended_tasks.py` | detection of tasks that have ended |
| `procfs.py`, `kernel_file_reader.py` | processes of a node, with their pods and containers |
| `reconfiguration_plan.py` | the moves of running tasks to other pools; `node/reconfiguration.py` executes them |
| `agent_messages.py` | the protocol between `isolate` and the node agent |
| `cmk_names.py` | CMK's names in a cluster |
| `workload/` | `isolate`, which runs in containers of workloads |
| `node/` | the machine of a node, its processes and its kubelet |
| `cpusets/` | enforcement by cpusets of containers |
| `agent/` | the node agent |
| `bundle.py`, `installation.py` | the program on hosts |
| `cluster/` | clients of the API server, advertised resources, reports, set-up and removal, in the API server |
| `webhook/` | the admission webhook, which gives pods what `isolate` needs |

`isolate` has to start fast in containers without Python, so the docstring of each file that it imports says that the
file needs the standard library only.
"""

__version__ = "0.1.0"
