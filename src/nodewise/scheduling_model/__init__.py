"""Simulated clusters, a simulated kube-scheduler that calls real extenders over HTTP, and replays of recordings.

The package contains the parts of a simulated cluster: nodes and pods, the queue, plugins, the client of the extender
protocol, preemption and messages. The simulated scheduler imports no extender; it calls one, in the same process or
over the network. Only `recording_replay` and `in_process_extender` run the extender's request handler, and
`gpu_trace_replay` runs the gpu agent. `policy_timeline` and the modules that use it run the telemetry agent alone.
Plots, measurements and output belong to `cli` and the benchmarks.

The simulated scheduler follows kube-scheduler 1.37.2: both pass the same tests, `tests/cluster/test_scheduler_*.py`.

    parsed_nodes_and_pods   Node and Pod: the fields that a scheduler reads
    resource_requests       requests and allocatable resources, as kube-scheduler calculates them
    node_affinity_and_taints
                            node affinity, node selectors, taints and tolerations
    node_info               a node with its pods
    filter_plugins          filter plugins and queueing hints
    score_plugins           scores of the default plugins
    extender_*              an extender: configuration, client and messages
    go_http_error_texts     error texts of Go's HTTP client for failed calls
    in_process_extender     an extender in the same process, as an HTTP transport
    unschedulable_message   messages of PodScheduled and FailedScheduling
    preemption              victims for a pod that fits nowhere
    scheduling_cycle        one attempt to place one pod
    scheduling_queue        order and time of attempts
    cluster_inventory       nodes and pods of the cluster
    simulated_cluster       the cluster with its scheduler, over time
    in_memory_api*          an API server in memory, and its HTTP server; `change_history`, `served_kinds` and
                            `server_side_apply` belong to it
    bursts_*                pods whose usage differs from their requests, placed with agents
    gpu_trace*              a published GPU trace, placed by the gpu agent
    policy_timeline         policies at one time after another, with the agent's state builder
    policy_backtest         policies over the history of metrics; `backtest_*` are its arrays, variants and measures
    policy_diff             what changes if some policies replace others
    policy_suite*           tests of policies
    recording_replay        a recording answered again; `response_differences` compares responses

Modelled: the filter plugins NodeUnschedulable, TaintToleration, NodeAffinity and NodeResourcesFit; the score plugins
NodeResourcesFit (LeastAllocated), NodeResourcesBalancedAllocation, TaintToleration and NodeAffinity; sampling;
extenders (filter, prioritize, preempt); preemption; the queue with back-off, queueing hints and flush.
Not modelled: volumes, ports, claims, topology spread, affinity between pods, images on nodes, disruption budgets,
scheduling gates, pod groups, several profiles, zones (nodes are tried in insertion order), the start time of pods, and
extenders that bind.
"""
