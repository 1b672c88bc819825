"""A cluster in memory, and a stand-in for kube-scheduler that asks a real extender over HTTP; recordings, replayed.

Here belongs what a simulated cluster is made of: nodes and pods as a scheduler reads them, the queue, the
plugins, the extender's protocol from the caller's side, preemption, and the words of the outcome. What an
extender answers does not belong here: the stand-in asks one, in the same process or far away, and imports none.
Only `replay` and `bursts_simulation` run the real chain itself, on what a real extender recorded and on what
they simulate, and `gpu_trace` the gpu agent.
Nor belongs here what draws, measures or prints.

The stand-in keeps the rules of kube-scheduler 1.36.3, and stands beside the real one: both pass the same
suite, `tests/cluster/test_scheduler_*.py`.

    objects    Node and Pod: what is read of the objects that Kubernetes knows under these names
    resources  what pods ask for and nodes have, as kube-scheduler counts it
    selectors  node affinity, node selectors, taints
    node_info  a node and the pods that it holds
    plugins    why a node is no place for a pod, and which event may change that
    scores     how the default plugins rank nodes
    extender_* an extender: its configuration, the protocol, and the words of its failures
    diagnosis  the words of PodScheduled and of the event FailedScheduling
    preemption whom to evict
    scheduling one attempt to place one pod
    queue      which pod is tried next, and when it is tried again
    cluster    all of it together, over time
    api        an API server in memory; `applying` is its server-side apply, `in_memory_api_server` serves it over HTTP
    bursts     pods whose requests lie, placed with the help of agents: `bursts_workload` draws them,
    `bursts_placed_pod` is
               one on its node, `bursts_node_annotations` what stands on nodes, `bursts_extender` the chain
               that is asked trace      a published GPU trace, placed by the gpu agent; `gpu_trace_files` reads it
    replay     a recording answered once more; `response_differences` tells two answers apart

What is modelled: the filter plugins NodeUnschedulable, TaintToleration, NodeAffinity and
NodeResourcesFit; the score plugins NodeResourcesFit (LeastAllocated), NodeResourcesBalancedAllocation,
TaintToleration and NodeAffinity; sampling; extenders (filter, prioritize, preempt); preemption; the queue
with its back-off, its hints and its flush.
What is not: volumes, ports, claims, spreading, affinity between pods, images on nodes, disruption budgets,
scheduling gates, pod groups, several profiles, zones (nodes are tried in the order in which they came), the
time that a pod takes to start, and extenders that bind.
"""
