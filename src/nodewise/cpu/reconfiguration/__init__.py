"""Moves running tasks to other CPUs, all of it or nothing."""
