"""The CPU manager: pools of cores on a node, and who holds which of them.

| file | what lives there |
|---|---|
| `cpulist.py` | texts that name CPUs: the kernel's lists and masks, CMK's lists, `isolcpus=` |

What runs in workloads' containers has to start fast where there is no Python: every file here says in its
docstring whether it needs the standard library only.
"""
