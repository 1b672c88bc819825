"""The scheduler extender: handles kube-scheduler's requests with the engine's chain of agents.

    requests       routes, request_handler, wire_format
    snapshots      clusterless_snapshots
    binding        binding, reservation_writer
    agents' tests  agent_testing

Nothing here depends on how an agent decides.
"""
