"""What runs on a node and touches it: the wrapper of workloads, the node agent, moving, enforcing, installing."""
