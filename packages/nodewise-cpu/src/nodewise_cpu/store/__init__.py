"""The allocations of a node, stored in a ConfigMap (`configmap.py`) or in a directory (`directory.py`)."""
