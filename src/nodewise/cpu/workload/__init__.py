"""What runs in workloads' containers: the command `isolate`, and how it asks for CPUs."""
