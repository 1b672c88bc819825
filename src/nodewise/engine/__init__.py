"""Snapshots, the chain of agents, decisions and their explanation, recordings, and the tasks of the leader."""
