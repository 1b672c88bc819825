"""Simulated clusters, a simulated kube-scheduler that calls real extenders over HTTP, and replays of recordings.

The package contains the parts of a simulated cluster: nodes and pods, the queue, plugins, the client of the extender
protocol, and messages. The simulated scheduler imports no extender; it calls one, in the same process or
over the network. Only `recording_replay` and `in_process_extender` run the extender's request handler, and
`gpu_trace_replay` runs the gpu agent. Plots, measurements and output belong to `cli` and the benchmarks.

The simulated scheduler follows kube-scheduler 1.37.2: both pass the same tests, `tests/cluster/test_scheduler_*.py`.

    parsed_nodes_and_pods      nodes and pods with the fields and resources that a scheduler reads
    scheduler_plugins          filter and score plugins, the message for an unschedulable pod
    simulated_cluster          the cluster with its scheduler and queue, over time
    extender_client            an extender: configuration, messages and client
    in_process_extender        an extender in the same process, as an HTTP transport
    in_memory_api              an API server in memory
    in_memory_api_http_server  its HTTP server
    gpu_trace_replay           a published GPU trace, placed by the gpu agent
    recording_replay           a recording answered again, with a comparison of the responses

Modelled: the filter plugins NodeUnschedulable, TaintToleration, NodeAffinity and NodeResourcesFit; the score plugins
NodeResourcesFit (LeastAllocated), NodeResourcesBalancedAllocation, TaintToleration and NodeAffinity; sampling;
extenders (filter and prioritize); the queue with back-off, events and flush. Not modelled: preemption (no pod is
evicted, and the message is the one without candidates), changes of nodes, volumes, ports, claims, topology spread,
affinity between pods, images on nodes, scheduling gates, pod groups, several profiles, zones (nodes are tried in
insertion order), and extenders that bind.
"""
