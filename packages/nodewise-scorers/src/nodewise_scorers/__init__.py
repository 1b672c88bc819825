"""Agents that score nodes by their load, and the annotator, which writes statistics of nodes for them."""

__version__ = "0.1.0"
