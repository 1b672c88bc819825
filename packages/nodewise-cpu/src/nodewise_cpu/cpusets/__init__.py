"""Enforcement of allocations: cpusets of containers, set through the container runtime."""
