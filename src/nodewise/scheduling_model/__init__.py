"""Simulated clusters, a simulated kube-scheduler that calls real extenders over HTTP, and replays of recordings.

The package contains the parts of a simulated cluster: nodes and pods, the queue, plugins, the client of the extender
protocol, preemption and messages. The simulated scheduler imports no extender; it calls one, in the same process or
over the network. Only `recording_replay` and `in_process_extender` run the extender's request handler, and
`gpu_trace_replay` runs the gpu agent. Plots, measurements and output belong to `cli` and the benchmarks.

The simulated scheduler follows kube-scheduler 1.37.2: both pass the same tests, `tests/cluster/test_scheduler_*.py`.

    parsed_nodes_and_pods      nodes and pods with the fields and resources that a scheduler reads
    scheduler_plugins          filter and score plugins, queueing hints, the message for an unschedulable pod
    scheduling_cycle           one attempt to place one pod, with preemption
    simulated_cluster          the cluster with its scheduler and queue, over time
    extender_client            an extender: configuration, messages and client
    in_process_extender        an extender in the same process, as an HTTP transport
    in_memory_api              an API server in memory
    in_memory_api_http_server  its HTTP server
    gpu_trace_replay           a published GPU trace, placed by the gpu agent
    recording_replay           a recording answered again, with a comparison of the responses

Modelled: the filter plugins NodeUnschedulable, TaintToleration, NodeAffinity and NodeResourcesFit; the score plugins
NodeResourcesFit (LeastAllocated), NodeResourcesBalancedAllocation, TaintToleration and NodeAffinity; sampling;
extenders (filter, prioritize, preempt); preemption; the queue with back-off, queueing hints and flush. Not modelled:
volumes, ports, claims, topology spread, affinity between pods, images on nodes, disruption budgets, scheduling gates,
pod groups, several profiles, zones (nodes are tried in insertion order), the start time of pods, and extenders that
bind.
"""
