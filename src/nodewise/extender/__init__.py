"""The scheduler extender: handles kube-scheduler's requests with the engine's chain of agents.

Nothing here depends on how an agent decides.
"""
