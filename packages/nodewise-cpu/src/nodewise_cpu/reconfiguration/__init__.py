"""The execution of a reconfiguration: running tasks are moved to other CPUs, all of them or none."""
