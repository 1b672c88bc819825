"""The CPU manager: pools of cores on a node, and who holds which of them.

| file | what lives there |
|---|---|
| `cpulist.py` | texts that name CPUs: the kernel's lists and masks, CMK's lists, `isolcpus=` |
| `topology.py` | sockets, NUMA nodes, cores and CPUs of a machine, from the texts of its files |
| `sysfs.py` | reads these files |

What runs in workloads' containers has to start fast where there is no Python: every file here says in its
docstring whether it needs the standard library only.
"""
