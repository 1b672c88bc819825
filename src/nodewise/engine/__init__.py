"""The engine: snapshots, the chain of agents, decisions, recordings and the leader's loop.

Nothing here depends on the protocol by which a scheduler asks.
"""
