"""How fast nodewise is, on this machine: `python -m bench`, or `make bench`. Never part of the tests.

Real processes, mutual TLS 1.3, loopback. Each part is measured by itself and can be named: `python -m bench whole`.

    __main__     the parts, one after another
    names        a part: filter and prioritize with names, also while metrics refresh
    whole        a part: the same with whole nodes
    start        a part: start and memory, on a real API server with 50,000 pods
    growth       a part: the same with 500 to 20,000 nodes
    cluster      what a real kube-scheduler binds: `python -m bench.cluster`, or `make bench-cluster`
    results      results.json: its keys, their targets, where each part was measured
    report       results.json in words: the table on stdout, README.md
    plots        results.json in pictures
    rounds       alternating rounds and what they come to
    stage        everything that runs, started and stopped
    fleet        the data: nodes, policies, pods, metric answers
    population   nodes and pods by the ten thousand, written into etcd
    apiserver    a process: the API server's double, for what needs no real one
    nothing      a process: the same stack as the extender's, answering fixed bytes
    child        what the double and the do-nothing server have in common
    clients      asks a server, one request in flight, by one of:
    client/      a process: Go's net/http, which kube-scheduler uses
    caller       a process: Python's sockets, where there is no Go
    rivals       who takes turns in `cluster`
    binding      one round of `cluster`
"""
