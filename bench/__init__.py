"""Benchmarks of nodewise on this machine: `python -m bench`, or `make bench`. They are not part of the tests.

Real processes, mutual TLS 1.3, loopback. Each part is measured separately and can be selected: `python -m bench whole`.

    __main__                  runs the parts
    requests_with_node_names  part `names`: filter and prioritize with names, also while metrics refresh
    requests_with_whole_nodes part `whole`: the same with whole nodes
    gpu_agent                 part `gpu`: the gpu agent
    scoring_agents            part `scoring`: the scoring agents
    startup_and_memory        part `start`: start and memory, on a real API server with 50,000 pods
    scaling                   part `growth`: the same with 500 to 20,000 nodes
    isolate_times             part `isolate`: the CPU manager
    bursty_pods               part `bursts`: simulated bursty pods
    cluster                   bind rate of a real kube-scheduler: `python -m bench.cluster`, or `make bench-cluster`
    policy_backtest           time and memory of a backtest: `python -m bench.policy_backtest`
    policy_mutants            share of mutants that suites detect: `python -m bench.policy_mutants`
    compared_extenders        the extenders that `cluster` compares
    scheduler_bind_rounds     one round of `cluster`
    native_mode_rounds        native mode in `cluster`
    native_label_latency      labels of native mode in `cluster`: latency, and writes at rest
    results                   results.json: its keys, their targets, where each part was measured
    report                    results.json as text: the table on stdout, README.md
    plots                     results.json as plots
    alternating_rounds        alternating rounds and their summaries
    bench_processes           processes of the benchmarks
    cluster_data              nodes, policies, pods, metric responses
    hostile_namespace         pods and policies of a hostile namespace at its limits
    etcd_population           tens of thousands of nodes and pods, written into etcd
    apiserver                 a process: a fake API server, for parts that need no real one
    null_server               a process: the no-op server, the extender's HTTP stack with fixed responses
    server_command_line       common parts of the fake API server and the no-op server
    load_clients              sends requests, one in flight, with one of:
    client/                   a process: Go's net/http, which kube-scheduler uses
    python_client             a process: Python's sockets, if there is no Go
    cpu_spin                  a process: a loop that measures its iterations
    exec_times                a process: starts a command repeatedly
"""
