"""The scheduler extender: handles kube-scheduler's requests with a chain of agents, and explains the decisions.

    requests       routes, request_handler, wire_format (with request_limits, lenient_decoder, node_name_json)
    decisions      agent_chain (with score_weights), decision
    snapshots      snapshot_cache, cluster_state_reports, agent_state_rebuilds, clusterless_snapshots
    binding        binding, reservations
    explanations   decision_endpoint, decision_document, decision_codec, decision_values, attempt_explanation,
                   counterfactuals, pod_events
    recordings     recording, recording_deltas, recording_file
    background     leader_controller_loop, pod_requeueing (with waiting_pods), agent_memory_storage
    third parties  third_party_agents, result_validation, sample_objects, agent_testing

Nothing here depends on how an agent decides.
"""
