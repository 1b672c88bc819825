"""The scheduler extender: handles kube-scheduler's requests with a chain of agents, and explains the decisions.

    requests       routes, request_handler, wire_format (with request_limits, lenient_request_decoder, node_name_json)
    decisions      agent_chain (with score_weights), decision
    snapshots      snapshot_cache, cluster_state_reports, agent_state_rebuilds, clusterless_snapshots
    binding        binding, reservation_writer
    explanations   decision_endpoint, decision_document, decision_codec, decision_values_json,
                   scheduling_attempt_explanation, counterfactuals, pod_events
    settings       metric_values_endpoint
    recordings     request_recorder, recording_deltas, recording_file
    background     leader_controller_loop, pod_requeueing (with waiting_pods), agent_memory_storage
    third parties  third_party_agents, third_party_result_validation, sample_pods_and_nodes, agent_testing

Nothing here depends on how an agent decides.
"""
