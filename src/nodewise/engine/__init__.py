"""The engine: snapshots, the chain of agents, decisions and their explanation, recordings, and tasks of the leader.

    decisions      agent_chain, decision
    snapshots      snapshot_cache, cluster_state_changes
    explanations   decision_json, scheduling_attempt_explanation, counterfactuals, pod_events
    settings       metric_values_endpoint
    recordings     request_recorder, recording_file
    background     leader_controller_loop, pod_requeueing, agent_memory_storage
    third parties  third_party_agents, third_party_result_validation

Nothing here depends on how an agent decides.
"""
