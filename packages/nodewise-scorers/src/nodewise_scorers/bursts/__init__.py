"""Simulation of pods whose usage differs from their requests."""
