"""Holds containers to the CPUs of their tasks, through the container runtime."""
